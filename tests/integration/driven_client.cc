#include "driven_client.h"

#include <csignal>
#include <cstddef>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "orbitkv/wire/session_layout.h"

namespace orbitkv::integration {

DrivenClient::DrivenClient(const std::filesystem::path& directory, const std::string& socket,
                           const std::string& instance, std::uint64_t deadline_ms) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  input_ = os::UniqueFd(ends[1]);
  const os::UniqueFd read_end(ends[0]);
  const std::vector<std::string> command = {ORBITKV_CLIENT_DRIVER_PROGRAM, socket, instance,
                                            std::to_string(deadline_ms)};
  program_ = std::make_unique<Program>(directory, command, [&] {
    if (::dup2(read_end.get(), 0) < 0) ::_exit(126);
  });
  Expect("up", "up");
}

std::string DrivenClient::Do(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(input_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return {};
  return program_->WaitLine(answers_++).value_or("");
}

void DrivenClient::Expect(const std::string& line, const std::string& answer) {
  EXPECT_EQ(Do(line), answer) << line << "\n" << program_->error();
}

std::string DrivenClient::Save(std::uint32_t chain) {
  Expect("save " + std::to_string(chain), "ok");
  return Do("finish");
}

std::string DrivenClient::Load(std::uint32_t chain) {
  Expect("ask " + std::to_string(chain), "ok");
  if (const std::string found = Do("answer"); found != "found 4") return found;
  Expect("begin", "ok");
  Expect("load", "ok");
  return Do("finish");
}

std::uint64_t DrivenClient::Posted() const {
  const std::string folder = "/proc/" + std::to_string(program_->pid());
  std::ifstream maps(folder + "/maps");
  std::ifstream memory(folder + "/mem", std::ios::binary);
  std::uint64_t posted = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:orbitkv-session") == std::string::npos) continue;
    std::uint32_t head = 0;
    const std::uint64_t address = std::stoull(line, nullptr, 16);
    memory.seekg(static_cast<std::streamoff>(address + offsetof(wire::SessionHeader, request_head)));
    memory.read(reinterpret_cast<char*>(&head), sizeof head);
    EXPECT_TRUE(memory.good()) << line;
    posted += head;
  }
  return posted;
}

std::size_t DrivenClient::Sockets() const {
  std::size_t count = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(program_->pid()) + "/fd", error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    count += target.string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

}  // namespace orbitkv::integration
