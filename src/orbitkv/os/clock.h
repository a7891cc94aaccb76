// CLOCK_MONOTONIC in nanoseconds: the one clock of deadlines, the same in every process of a host. The time of day is
// for what people read, and may jump.
// Threads: any. Blocks: no. Units: nanoseconds; kNoDeadline never comes.
#pragma once

#include <cstdint>
#include <limits>

namespace orbitkv::os {

inline constexpr std::uint64_t kNoDeadline = std::numeric_limits<std::uint64_t>::max();

std::uint64_t MonotonicNs();
// Since 1970.
std::uint64_t UnixSeconds();

// now + delta without wrapping past kNoDeadline.
inline std::uint64_t DeadlineAfter(std::uint64_t delta_ns) {
  const std::uint64_t now = MonotonicNs();
  return delta_ns > kNoDeadline - now ? kNoDeadline : now + delta_ns;
}

}  // namespace orbitkv::os
