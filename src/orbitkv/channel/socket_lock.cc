#include "orbitkv/channel/socket_lock.h"

#include <algorithm>
#include <optional>

#include "orbitkv/base/log.h"
#include "orbitkv/channel/handshake.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

constexpr const char* kLog = "bootstrap";
constexpr std::uint64_t kProbeNs = 1'000'000'000U;
constexpr std::uint64_t kLockPollNs = 50'000'000U;

std::string ParentOf(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status CheckDirectory(const std::string& directory) {
  ORBITKV_TRY(os::EnsureDirectory(directory, 0700));
  ORBITKV_ASSIGN_OR_RETURN(const os::DirectoryFacts facts, os::DirectoryFactsOf(directory));
  if (facts.uid != os::OwnUid() && facts.uid != 0) {
    return Fail(Code::kRefused, "the socket's directory belongs to another user; choose another path", facts.uid);
  }
  if ((facts.mode & 022U) != 0 && (facts.mode & 01000U) == 0) {
    log::Warning(kLog, "others may replace the socket directory={} mode={:o}; use a directory of mode 0700", directory,
                 facts.mode);
  }
  return {};
}

}  // namespace

// A killed Manager keeps its lock while its memory is torn down, so a held lock is waited for, unless someone answers.
Result<os::FileLock> LockSocket(const std::string& socket_path, std::uint64_t wait_ns) {
  ORBITKV_TRY(CheckDirectory(ParentOf(socket_path)));
  const std::uint64_t deadline = os::DeadlineAfter(wait_ns);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(auto lock, os::FileLock::TryAcquire(socket_path + ".lock"));
    if (lock) return std::move(*lock);
    const auto pid = ProbeManager(socket_path, std::min(os::DeadlineAfter(kProbeNs), deadline));
    if (pid) {
      return Fail(Code::kRefused, "another Manager serves this socket; stop it or choose another path",
                  static_cast<std::uint64_t>(*pid));
    }
    if (os::MonotonicNs() >= deadline) {
      return Fail(Code::kTimedOut, "the socket's lock is held by a process that does not answer");
    }
    os::WaitReadable(-1, std::min(os::DeadlineAfter(kLockPollNs), deadline));
  }
}

}  // namespace orbitkv::channel
