#include "orbitkv/os/exec.h"

#include <cerrno>
#include <unistd.h>
#include <vector>

namespace orbitkv::os {

Status Exec(std::span<const std::string> command) {
  if (command.empty()) return Fail(Code::kNotFound, "no program is named");
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  auto error = FailErrno("the program cannot be started");
  if (error.error().sys_errno == ENOENT) error.error().code = Code::kNotFound;
  return error;
}

}  // namespace orbitkv::os
