#include "orbitkv/os/pidfd.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/syscall.h>
#include <unistd.h>

#include "orbitkv/os/file.h"

namespace orbitkv::os {

Result<UniqueFd> OpenPidfd(std::int32_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (fd.valid()) return fd;
  auto error = FailErrno("cannot open a process", static_cast<std::uint64_t>(pid));
  if (error.error().sys_errno == ESRCH) error.error().code = Code::kNotFound;
  if (error.error().sys_errno == ENOSYS) error.error().code = Code::kUnsupported;
  return error;
}

Result<UniqueFd> OwnPidfd() { return OpenPidfd(OwnPid()); }

std::int32_t OwnPid() { return ::getpid(); }

std::uint32_t OwnUid() { return ::geteuid(); }

Result<std::int32_t> PidOf(int pidfd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return FailErrno("cannot read a descriptor's facts (is /proc mounted?)");
  char text[1024];
  const auto got = ::read(file.get(), text, sizeof text);
  if (got < 0) return FailErrno("cannot read a descriptor's facts");
  const std::string_view facts(text, static_cast<std::size_t>(got));
  const auto at = facts.find("\nPid:\t");
  if (at == std::string_view::npos) return Fail(Code::kInvalid, "the descriptor is not a pidfd");
  std::int32_t pid = 0;
  const auto number = facts.substr(at + 6);
  if (std::from_chars(number.data(), number.data() + number.size(), pid).ec != std::errc{}) {
    return Fail(Code::kInvalid, "the descriptor is not a pidfd");
  }
  return pid;
}

bool ProcessEnded(int pidfd) {
  pollfd entry = {.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

bool ProcessEnding(std::int32_t pid) {
  constexpr unsigned long kExiting = 0x4;  // PF_EXITING
  const auto text = ReadFile("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text) return true;
  // Behind the name, which may hold anything: state, five numbers, flags.
  const auto name_end = text->rfind(')');
  if (name_end == std::string::npos) return true;
  char state = 'X';
  unsigned long flags = 0;
  const int got = std::sscanf(text->c_str() + name_end + 1, " %c %*d %*d %*d %*d %*d %lu", &state, &flags);
  return got != 2 || state == 'Z' || state == 'X' || (flags & kExiting) != 0;
}

}  // namespace orbitkv::os
