// Logical look-ups, each counted once: how many blocks engines asked for, how many of them they took, and how many an
// unbounded cache would have had.
//
// A logical look-up is one attempt of a request, however often the engine asks while it waits to schedule it. It is
// counted when its lease ends: with what a restore took, or with nothing. One that gets no lease is counted with its
// answer. The newest ones of each instance are remembered, so that they are not counted again.
//
// Counting hashes is left for Work, in bounded steps.
// Owns: the figures of each instance until Forget, hashes that wait to be counted. Threads: one. Blocks: no.
// Units: blocks. Limits: kMostWaiting hashes wait; those of look-ups beyond are not in the estimate.
// Errors: none.
// Invariant: a look-up is counted once while it is remembered.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "orbitkv/base/units.h"
#include "orbitkv/service/distinct.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::service {

struct RequestKey {
  InstanceId instance;
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  auto operator<=>(const RequestKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const RequestKey& key) {
    return H::combine(std::move(h), key.instance, key.hi, key.lo);
  }
};

class Lookups {
 public:
  static constexpr std::size_t kMostWaiting = 4U << 20U;
  static constexpr std::size_t kRemembered = 4096;  // of one instance

  struct Figures {
    std::uint64_t lookups = 0;
    std::uint64_t blocks = 0;
    std::uint64_t hits = 0;  // taken by restores
    double distinct = 0;     // of the blocks asked for

    // The share of blocks that were asked for before: what an unbounded cache would have.
    double unbounded_hit_rate() const {
      if (blocks == 0) return 0;
      const double repeated = static_cast<double>(blocks) - distinct;
      return repeated < 0 ? 0 : repeated / static_cast<double>(blocks);
    }
  };

  // asked: all its hashes; hits: those that a restore took. Of a look-up that was counted, the hits alone.
  void Count(const RequestKey& request, std::uint32_t attempt, std::vector<state::BlockHash> asked, std::uint64_t hits);
  // Of a selected read, whose discovery was the look-up.
  void AddHits(InstanceId instance, std::uint64_t hits);

  bool HasWork() const { return !waiting_.empty(); }
  void Work(std::uint32_t max_hashes);

  void Forget(InstanceId instance);
  Figures Of(InstanceId instance) const;

 private:
  struct Instance {
    Figures figures;
    DistinctBlocks distinct;
    absl::flat_hash_map<RequestKey, std::uint32_t> counted;  // the attempt that was; looked up only
    std::deque<RequestKey> order;
  };
  struct Waiting {
    InstanceId instance;
    std::vector<state::BlockHash> hashes;
    std::size_t counted = 0;
  };

  std::map<InstanceId, std::unique_ptr<Instance>> instances_;
  std::deque<Waiting> waiting_;
  std::size_t waiting_hashes_ = 0;
};

}  // namespace orbitkv::service
