#include "driven_program.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace orbitkv::integration {

DrivenProgram::DrivenProgram(const std::filesystem::path& directory, const std::vector<std::string>& command) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  input_ = os::UniqueFd(ends[0]);
  const os::UniqueFd theirs(ends[1]);
  program_ = std::make_unique<Program>(directory, command, [&theirs] {
    if (::dup2(theirs.get(), 0) < 0) ::_exit(126);
  });
}

std::string DrivenProgram::Next() { return program_->WaitLine(lines_++).value_or(""); }

std::string DrivenProgram::Do(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t sent = ::send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(text.size())) return {};
  return Next();
}

}  // namespace orbitkv::integration
