// How often something may happen: a burst at once, then one in each interval.
// Owns: one number. Threads: one. Blocks: no. Units: absolute CLOCK_MONOTONIC nanoseconds; time never runs backwards.
// Invariant: between any two moments T apart, no more than burst + T / interval are allowed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orbitkv::channel {

class Pace {
 public:
  struct Options {
    std::uint32_t burst = 1;
    std::uint64_t interval_ns = 0;
  };

  explicit Pace(const Options& options) : options_(options) {}

  // When the next one may happen: now, or later.
  std::uint64_t When(std::uint64_t now_ns) const {
    const std::uint64_t ahead_ns = (options_.burst - 1) * options_.interval_ns;
    return std::max(now_ns, rested_at_ns_ > ahead_ns ? rested_at_ns_ - ahead_ns : 0);
  }
  // The same, and that is its turn: the next one's comes behind it.
  std::uint64_t Take(std::uint64_t now_ns) {
    const std::uint64_t at_ns = When(now_ns);
    rested_at_ns_ = std::max(rested_at_ns_, at_ns) + options_.interval_ns;
    return at_ns;
  }

 private:
  const Options options_;
  std::uint64_t rested_at_ns_ = 0;  // when a whole burst is free again
};

}  // namespace orbitkv::channel
