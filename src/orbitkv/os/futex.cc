#include "orbitkv/os/futex.h"

#include <cerrno>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"

namespace orbitkv::os {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

bool FutexWait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t deadline_ns) {
  timespec until = {};
  until.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000U);
  until.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000U);
  const timespec* timeout = deadline_ns == kNoDeadline ? nullptr : &until;
  // WAIT_BITSET, because only it takes an absolute time.
  const long result = ::syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 || errno != ETIMEDOUT;
}

void FutexWake(const std::atomic<std::uint32_t>* word, int count) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

}  // namespace orbitkv::os
