// The last uses of blocks, also of blocks that are gone: who continues whose prompt, and what the reuse model learns
// from.
//
// A use of a block stands in a ring until the ring comes round or the block is used again. As uses are in the order of
// their times, the ages of all of them are kept up to date by one place in the ring for each edge between two bins of
// ages: those before it have passed the edge.
// Owns: the ring and an open-addressing table from keys to places, half full; nothing is allocated after
// construction. The model belongs to the caller. Threads: one. Never blocks.
// Units: ticks as in ReuseModel. Errors: none.
// Invariants: a key has one live use at most; every live use is in exactly one bin of the model; no call moves more
// than a constant number of uses over edges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/cache/reuse_model.h"

namespace orbitkv::cache {

class TouchHistory {
 public:
  struct Use {
    std::uint64_t key = 0;
    Ticks touched = 0;
    std::uint8_t cls = 0;
    std::uint8_t turn = 0;      // from 1; or the pace, as the class says
    std::uint8_t children = 0;  // different blocks that were seen to follow it, up to 255
    std::uint8_t bin = kDead;
  };
  static_assert(sizeof(Use) == 16);
  static constexpr std::size_t kTableBytesPerUse = 2 * sizeof(std::uint32_t);

  // capacity is rounded down to a power of two.
  TouchHistory(std::uint32_t capacity, ReuseModel& model);
  std::size_t capacity() const { return ring_.size(); }

  // The last use of the key; null when it is not remembered. Until the next Add.
  Use* Find(std::uint64_t key);
  // The key is used now; what is remembered of it ends with a use.
  void Add(const Use& use);
  // Lets uses pass edges, a bounded number in each call.
  void Advance(Ticks now);

 private:
  static constexpr std::uint8_t kDead = 0xff;
  static constexpr std::uint32_t kFree = 0xffffffffU;

  std::size_t Home(std::uint64_t key) const { return key & (table_.size() - 1); }
  std::size_t Next(std::size_t at) const { return (at + 1) & (table_.size() - 1); }
  Use& UseOf(std::uint64_t number) { return ring_[number & (ring_.size() - 1)]; }
  std::size_t FindPlace(std::uint64_t key) const;
  void ErasePlace(std::size_t hole);
  void PassEdges(Use& use, Ticks now);

  ReuseModel& model_;
  std::vector<Use> ring_;
  std::vector<std::uint32_t> table_;
  std::uint64_t added_ = 0;  // number of the next use
  std::array<std::uint64_t, ReuseModel::kBins>
      passed_{};  // by edge: number of the first use that may not have passed it
  std::uint32_t next_edge_ = 1;
};

}  // namespace orbitkv::cache
