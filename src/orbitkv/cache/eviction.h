// Which block goes when room is needed. The cache tells the policy what happens to
// blocks and asks it for victims.
//
// Blocks are numbers below max_blocks that the cache reuses. A *candidate* is a block that may be taken away now: it
// holds bytes, no block continues it, nobody has pinned it. Candidates are kept apart by lane: blocks of one lane have
// slots of the same sizes, so that taking one of them makes room for another.
// Owns: its own bookkeeping, sized by AddLane and the constructor; nothing is allocated afterwards.
// Threads: one (the dispatcher). Never blocks; no clock: times come in and never go back.
// Errors: none; calls that break the order of a block's life are a broken invariant of the caller.
// Invariant: Victim never names a block that is not a candidate of that lane.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace orbitkv::cache {

struct BlockFacts {
  std::uint64_t key = 0;  // of its contents: a block that comes back has it again, others have others
  std::uint64_t last_use_ns = 0;
  std::uint32_t lane = 0;
  std::uint32_t depth = 0;          // blocks before it in its prompt
  std::uint64_t parent_key = 0;     // of the block that it continues; 0 at depth 0
  std::uint32_t prompt_tokens = 0;  // of the request that brought it
  std::uint32_t answer_tokens = 0;
  bool awaited = false;  // it was brought ahead of a use
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // Lanes are numbered 0, 1, 2, ... in the order in which they are added.
  virtual void AddLane() = 0;
  // A life: OnInsert, then any of the calls between, then OnRemove. A block is no candidate at first.
  virtual void OnInsert(std::uint32_t block, const BlockFacts& facts) = 0;
  virtual void OnTouch(std::uint32_t block, std::uint64_t now_ns) = 0;
  virtual void OnCandidate(std::uint32_t block) = 0;    // it became one; it was none
  virtual void OnNoCandidate(std::uint32_t block) = 0;  // it was one
  virtual void OnRemove(std::uint32_t block) = 0;       // candidate or not
  // The candidate that is worth least, which stays one until it is removed. Another call says the same if nothing
  // happened in between.
  virtual std::optional<std::uint32_t> Victim(std::uint32_t lane) = 0;
};

}  // namespace orbitkv::cache
