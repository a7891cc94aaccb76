// CLOCK_MONOTONIC nanoseconds as the time point that condition variables take.
// Threads: pure. Blocks: no. Invariant: std::chrono::steady_clock is CLOCK_MONOTONIC on Linux.
#pragma once

#include <chrono>
#include <cstdint>

namespace orbitkv::client {

// A time past the end of the clock's range means "never".
inline std::chrono::steady_clock::time_point TimePoint(std::uint64_t ns) {
  constexpr auto kMax = std::chrono::nanoseconds::max();
  if (ns >= static_cast<std::uint64_t>(kMax.count())) return std::chrono::steady_clock::time_point(kMax);
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace orbitkv::client
