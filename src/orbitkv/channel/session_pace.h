// How fast one process may end its sessions and open others.
//
// Every session that a process ended without ending itself counts against it for a while: a few at once are an engine
// that starts anew, many more are a process that only keeps the Manager busy. Sessions that stay open do not count, so
// that any number of them may be opened at once.
//
// Owns: one number for each process that ended sessions lately. Threads: one. Blocks: no.
// Units: absolute CLOCK_MONOTONIC nanoseconds; process ids as the Manager sees them. Those that it does not see are 0
//        and share one pace.
// Limits: kMostProcesses; beyond it, whoever has the least against it is forgotten.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace orbitkv::channel {

class SessionPace {
 public:
  struct Options {
    std::uint32_t burst = 256;
    std::uint64_t interval_ns = 50'000'000;  // in which one ended session is forgotten
  };
  static constexpr std::size_t kMostProcesses = 4096;

  explicit SessionPace(const Options& options) : options_(options) {}

  // Nanoseconds until the process may open another session; 0: now.
  std::uint64_t Wait(std::int32_t pid, std::uint64_t now_ns) const {
    const auto at = forgotten_at_.find(pid);
    if (at == forgotten_at_.end() || at->second <= now_ns) return 0;
    const std::uint64_t held_ns = at->second - now_ns;
    const std::uint64_t most_ns = (options_.burst - 1) * options_.interval_ns;
    return held_ns > most_ns ? held_ns - most_ns : 0;
  }

  void Ended(std::int32_t pid, std::uint64_t now_ns) {
    if (forgotten_at_.size() >= kMostProcesses) Forget(now_ns);
    std::uint64_t& at = forgotten_at_[pid];
    // Bounded, so that many sessions that end at once keep a process waiting no longer than the burst itself.
    at = std::min(std::max(at, now_ns) + options_.interval_ns, now_ns + 2 * options_.burst * options_.interval_ns);
  }

  std::size_t processes() const { return forgotten_at_.size(); }

 private:
  void Forget(std::uint64_t now_ns) {
    std::erase_if(forgotten_at_, [now_ns](const auto& one) { return one.second <= now_ns; });
    if (forgotten_at_.size() < kMostProcesses) return;
    forgotten_at_.erase(std::ranges::min_element(forgotten_at_, {}, [](const auto& one) { return one.second; }));
  }

  const Options options_;
  std::map<std::int32_t, std::uint64_t> forgotten_at_;  // process -> when nothing counts against it any more
};

}  // namespace orbitkv::channel
