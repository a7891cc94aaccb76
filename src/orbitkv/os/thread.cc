#include "orbitkv/os/thread.h"

#include <charconv>
#include <csignal>
#include <pthread.h>
#include <sched.h>
#include <system_error>

#include "orbitkv/base/check.h"
#include "orbitkv/os/file.h"

namespace orbitkv::os {

Status Thread::Start(const std::string& name, std::function<void()> function) {
  ORBITKV_CHECK(!thread_.joinable());
  // Signals belong to the thread that asked for them, so the new one inherits a mask of all.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status result;
  try {
    thread_ = std::thread(std::move(function));
    ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  } catch (const std::system_error&) {
    result = Fail(Code::kExhausted, "cannot start a thread");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

Status PinThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return Fail(Code::kInvalid, "no such cpu", static_cast<std::uint64_t>(cpu));
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    return FailErrno("cannot pin a thread", static_cast<std::uint64_t>(cpu));
  }
  return {};
}

int CpuCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

std::optional<std::uint64_t> CpuWaitNs() {
  constexpr std::uint64_t kMostBytes = 256;
  const auto told = ReadFile("/proc/thread-self/schedstat", kMostBytes);  // time on a cpu, time without one, turns
  if (!told) return std::nullopt;
  const std::size_t begin = told->find(' ') + 1;
  std::uint64_t waited_ns = 0;
  const auto read = std::from_chars(told->data() + begin, told->data() + told->size(), waited_ns);
  if (begin == 0 || read.ec != std::errc()) return std::nullopt;
  return waited_ns;
}

}  // namespace orbitkv::os
