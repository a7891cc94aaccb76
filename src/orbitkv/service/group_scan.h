// The walk of a look-up whose groups have rules of their own: where an engine could go on, and what must be kept for
// it.
//
// First it looks at the hashes and notes legal boundaries; of each it marks the blocks that the boundary demands, so
// that the marks are what all boundaries together need. Then it pins what is marked. When a block cannot be pinned (it
// went meanwhile, or the budget is used up), the boundaries behind it are given up, and the pins that only they needed.
//
// Owns: nothing of the cache; the pins belong to the refs that the caller keeps. Threads: one. Blocks: no.
// Units: hash blocks behind the prefix. Errors: none.
// Invariant: each entry of refs is pinned or none; when the walk is over there are found() of them, pinned where a
//            boundary needs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/state/contract.h"

namespace orbitkv::service {

class FoundPins;

class GroupScan {
 public:
  // whole: nothing is offered short of all hashes. pins: blocks are pinned, else only looked at.
  GroupScan(const Namespace& space, std::uint32_t prefix_blocks, bool whole, bool pins);

  // Looks at no more than max_hashes, and pins no more blocks; true when the walk is over. hashes is the same each
  // time.
  bool Step(cache::BlockCache& cache, FoundPins& pins, Session& session, std::span<const state::BlockHash> hashes,
            std::uint32_t max_hashes, std::vector<cache::BlockRef>& refs);

  std::uint32_t found() const { return boundaries_.empty() ? 0 : boundaries_.back(); }
  const std::vector<std::uint32_t>& boundaries() const { return boundaries_; }
  std::uint32_t over_budget() const { return over_budget_; }
  std::uint32_t step_hashes() const { return static_cast<std::uint32_t>(looked_up_.size()); }

 private:
  bool Look(cache::BlockCache& cache, std::span<const state::BlockHash> hashes, std::uint32_t max_hashes);
  bool Pin(FoundPins& pins, Session& session, std::uint32_t max_blocks, std::vector<cache::BlockRef>& refs);
  void Mark(std::uint32_t boundary);
  void Cut(FoundPins& pins, Session& session, std::vector<cache::BlockRef>& refs);

  const Namespace* space_;
  std::uint32_t prefix_;
  bool whole_;
  bool pins_;
  state::BoundaryScan scan_;
  std::vector<cache::BlockRef> seen_;        // of the first walk
  std::vector<std::uint32_t> boundaries_;    // ascending
  std::vector<std::uint32_t> needed_;        // groups, up to the last boundary
  std::vector<std::uint32_t> marked_until_;  // of each group, the block behind the last marked one
  std::vector<cache::BlockUse> looked_up_;   // of one step
  std::uint32_t over_budget_ = 0;
  bool looking_ = true;
};

}  // namespace orbitkv::service
