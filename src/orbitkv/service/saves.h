// Blocks on their way from the pool to what lies behind it, before the pool needs their room.
//
// A block is put in line when an engine has stored it (write policy kAll), or stored it anew after it was lost
// (kReuse), and under both when it is restored from the pool and not saved yet, or when Resaves finds that the source
// has lost it. Work takes blocks out of the line, oldest first, as long as bytes in flight are within their bound: of
// the groups that are complete, every component that the source does not have. A group that lacks a shard is of no use
// to anybody, here or behind the pool, and not saved: its block is among the first victims. While a component is
// written its block is pinned as if a rank read it; while a block waits in line, eviction prefers others of about the
// same worth, but waits for nothing.
//
// Owns: the line, and the granted pins of what is being saved, one per component. Threads: one. Blocks: no.
// Units: bytes of slots as the pool rounds them. Limits: Limits::save_queue blocks in line, the newest are dropped.
// Errors: what cannot be saved stays in the pool only, and is counted.
// Invariant: a component is pinned exactly while its save was taken and is not reported.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/cache/frequency_sketch.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/source.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

class Saves {
 public:
  // Of one call of Work.
  static constexpr std::uint32_t kBlocksPerStep = 64;

  Saves(const Limits& limits, cache::BlockCache& cache, Counters& counters);

  void SetSource(const Source* source) { source_ = source; }
  // An engine has stored a component of the block.
  void Stored(const Namespace& space, const state::BlockHash& hash);
  // A restore takes these groups of the block out of the pool.
  void Used(const Namespace& space, const state::BlockHash& hash, const cache::BlockUse& use);
  // Something of the block is not behind the pool, or not any more.
  void Again(const Namespace& space, const state::BlockHash& hash);
  // For Again beside what engines store.
  bool HasRoom() const { return line_.size() * 2 < limits_.save_queue; }

  bool HasWork() const { return !line_.empty() && !blocked_; }
  void Work();
  std::vector<SaveRequest> Take() { return std::exchange(untaken_, {}); }
  void Done(std::uint64_t id, SaveResult result);
  // Blocks of this namespace wait in line.
  bool Uses(NamespaceRow row) const { return rows_.contains(row); }
  void Export(Gauges& gauges) const;

 private:
  struct Waiting {
    const Namespace* space = nullptr;
    state::BlockHash hash;
  };
  struct Write {
    cache::BlockRef ref;
    std::uint32_t component = 0;
    std::uint64_t generation = 0;
    std::uint64_t slot_bytes = 0;
  };

  bool active() const { return source_ != nullptr && limits_.save_policy != SavePolicy::kOff; }
  void PutInLine(const Namespace& space, const state::BlockHash& hash, cache::BlockRef ref);
  // False when the bytes in flight leave no room for all of it; what there was room for is on its way.
  bool Send(const Waiting& block);
  bool SendComponent(const Waiting& block, const cache::BlockUse& use, std::uint32_t component);

  const Limits& limits_;
  cache::BlockCache& cache_;
  Counters& counters_;
  const Source* source_ = nullptr;
  std::unique_ptr<cache::FrequencySketch> seen_;  // with kReuse: what engines stored
  std::deque<Waiting> line_;
  std::map<NamespaceRow, std::uint64_t> rows_;  // of the line
  std::map<std::uint64_t, Write> writes_;
  std::vector<SaveRequest> untaken_;
  std::vector<std::uint32_t> components_;  // of one Send
  std::uint64_t next_id_ = 1;
  std::uint64_t bytes_ = 0;
  bool blocked_ = false;  // no room for bytes in flight
};

}  // namespace orbitkv::service
