// One look-up's walk over its hashes: which of the blocks are here, pinned as they are found, and which boundaries that
// makes legal.
//
// A walk takes several steps when it is long, and may be resumed after loading brought what it stopped at. What it has
// found stays pinned in between.
//
// Owns: the hashes of the look-up, stored once, and the found pins of what it met; give those back through FoundPins
//       (or move them into a lease) before it goes. Threads: one. Blocks: no.
// Units: hash blocks behind the query's prefix. Of a selected read: the selected blocks, in the order of its views.
// Errors: none; a budget that is used up ends the walk like an absent block, and over_budget() says so.
// Invariant: found() blocks are the first ones, and each that is needed has its ref.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/group_scan.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::service {

// The found pins of all look-ups and leases, within the budgets of their instance and session.
class FoundPins {
 public:
  FoundPins(const Limits& limits, cache::BlockCache& cache) : limits_(limits), cache_(cache) {}

  // False when a budget is used up or one of the groups is not complete (any more).
  bool Take(Session& session, const cache::BlockUse& use);
  // Empties refs; those that are none hold nothing.
  void Give(Session& session, std::vector<cache::BlockRef>& refs);
  // The same pins count against another session of the same instance from now on.
  void Move(Session& from, Session& to, std::span<const cache::BlockRef> refs);

 private:
  bool sessions_counted() const { return limits_.lease_percent_per_session < limits_.lease_percent_per_instance; }

  const Limits& limits_;
  cache::BlockCache& cache_;
};

// What a pinned block takes of a budget: all that hangs on it.
std::uint64_t HeldBytes(const Namespace& space, const cache::BlockCache& cache, cache::BlockRef ref);

class Scan {
 public:
  // The query names nothing but what the space has.
  static Status Check(const Namespace& space, const wire::QueryView& query);
  static std::uint64_t CountHashes(const wire::QueryView& query);
  Scan(const Namespace& space, const wire::QueryView& query);

  // Looks at no more than max_hashes; true when the walk is over.
  bool Step(cache::BlockCache& cache, FoundPins& pins, Session& session, std::uint32_t max_hashes);
  // Goes on where the walk ended.
  void Resume();
  // Begins again; its pins must have been given back.
  void Restart();

  const Namespace& space() const { return *space_; }
  std::span<const state::BlockHash> hashes() const { return hashes_; }
  std::uint32_t prefix_blocks() const { return prefix_blocks_; }
  // Blocks of the prompt before the block of hashes()[index].
  std::uint32_t DepthOf(std::uint32_t index) const {
    return prefix_blocks_ + (positions_.empty() ? index : positions_[index]);
  }
  std::uint32_t found() const { return found_; }
  bool complete() const { return found_ == hashes_.size(); }
  // No boundary lies behind what was found.
  bool exhausted() const {
    const std::uint64_t step = space_->contract.alignment_blocks();
    return ((prefix_blocks_ + found_) / step + 1) * step > prefix_blocks_ + hashes_.size();
  }
  // The groups have rules of their own.
  bool grouped() const { return groups_.has_value(); }
  // Blocks that the last step met and had no budget for.
  std::uint32_t over_budget() const { return over_budget_; }
  // Hashes that the last step looked at.
  std::uint32_t step_hashes() const { return groups_ ? groups_->step_hashes() : step_hashes_; }
  // Nothing is offered short of all the hashes.
  bool all_or_nothing() const { return mode_ == wire::QueryMode::kFullPrefix || mode_ == wire::QueryMode::kSelected; }
  // Every boundary that may be taken, ascending; empty: every one up to found().
  std::vector<std::uint32_t> Boundaries() const;

  // One per found block; none where no boundary needs it.
  std::vector<cache::BlockRef>& refs() { return refs_; }
  bool selected() const { return mode_ == wire::QueryMode::kSelected; }
  // The scan is spent.
  std::vector<state::BlockHash> TakeHashes() { return std::move(hashes_); }

 private:
  const Namespace* space_;
  wire::QueryMode mode_;
  bool pins_ = true;
  std::optional<GroupScan> groups_;  // of a space whose groups have rules of their own
  std::uint32_t over_budget_ = 0;
  std::uint32_t prefix_blocks_ = 0;
  std::uint32_t looked_at_ = 0;
  std::uint32_t step_hashes_ = 0;
  std::uint32_t found_ = 0;
  std::vector<state::BlockHash> hashes_;
  std::vector<std::uint32_t> positions_;  // of a selected read
  std::vector<cache::BlockRef> refs_;     // pinned
};

}  // namespace orbitkv::service
