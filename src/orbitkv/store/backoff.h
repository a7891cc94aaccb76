// When something that failed is tried again: at once after a single failure, later and later when it goes on.
// Owns: nothing but its state. Threads: one. Blocks: no. Units: nanoseconds of the caller's clock.
// Invariant: after a success it is as new.
#pragma once

#include <algorithm>
#include <cstdint>

namespace orbitkv::store {

class Backoff {
 public:
  static constexpr std::uint64_t kFirstNs = 1'000'000'000;
  static constexpr std::uint64_t kLongestNs = 60'000'000'000;
  static constexpr std::uint32_t kFailuresAllowed = 3;

  // at_once: one failure is enough. Returns whether a pause begins.
  bool Failed(std::uint64_t now_ns, bool at_once) {
    if (Pausing(now_ns) || (++failures_ < kFailuresAllowed && !at_once)) return false;
    failures_ = kFailuresAllowed;
    until_ns_ = now_ns + delay_ns_;
    delay_ns_ = std::min(delay_ns_ * 2, kLongestNs);
    return true;
  }
  void Succeeded(std::uint64_t now_ns) {
    if (!Pausing(now_ns)) *this = Backoff{};
  }
  bool Pausing(std::uint64_t now_ns) const { return now_ns < until_ns_; }
  std::uint64_t until_ns() const { return until_ns_; }

 private:
  std::uint32_t failures_ = 0;
  std::uint64_t until_ns_ = 0;
  std::uint64_t delay_ns_ = kFirstNs;
};

}  // namespace orbitkv::store
