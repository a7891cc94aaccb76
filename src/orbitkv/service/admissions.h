// One decision per block of an instance: the first shard that reserves a block decides whether the instance stores it,
// and the other shards follow, so that memory is not spent on blocks that will never be complete.
//
// A decision holds for one round, that is until each shard has asked once; a shard that asks again begins a new round.
// Owns: the newest decisions of one instance, at most `capacity`. Threads: one. Blocks: no. Units: none.
// Errors: none; a decision that was forgotten is made again by whoever asks next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"

#include "orbitkv/state/state_key.h"

namespace orbitkv::service {

class Admissions {
 public:
  Admissions(std::uint32_t shard_count, std::size_t capacity) : shard_count_(shard_count), capacity_(capacity) {}

  // What was decided for this block, or none when the decision is this shard's.
  std::optional<bool> Ask(const state::BlockHash& hash, std::uint32_t shard);
  void Decide(const state::BlockHash& hash, std::uint32_t shard, bool admitted);
  std::size_t size() const { return decisions_.size(); }

 private:
  struct Decision {
    std::uint64_t asked = 0;  // one bit per shard
    std::uint64_t number = 0;
    bool admitted = false;
  };
  struct Entry {
    state::BlockHash hash;
    std::uint64_t number = 0;  // a later decision about the same block has another one
  };

  const std::uint32_t shard_count_;  // at most 64
  const std::size_t capacity_;
  absl::flat_hash_map<state::BlockHash, Decision> decisions_;  // looked up only
  std::deque<Entry> order_;
  std::uint64_t next_number_ = 1;
};

}  // namespace orbitkv::service
