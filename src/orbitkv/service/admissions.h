// One decision per block of an instance: the first component (group and shard) that reserves a block decides whether
// the instance stores it, and the others follow, so that memory is not spent on blocks that will never be complete.
//
// A decision holds for one round, that is until each component has asked once; one that asks again begins a new round.
// Owns: the newest decisions of one instance, at most `capacity`. Threads: one. Blocks: no. Units: none.
// Errors: none; a decision that was forgotten is made again by whoever asks next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"

#include "orbitkv/state/state_key.h"

namespace orbitkv::service {

class Admissions {
 public:
  Admissions(std::uint32_t component_count, std::size_t capacity)
      : component_count_(component_count), capacity_(capacity) {}

  // What was decided for this block, or none when the decision is this component's.
  std::optional<bool> Ask(const state::BlockHash& hash, std::uint32_t component);
  void Decide(const state::BlockHash& hash, std::uint32_t component, bool admitted);
  std::size_t size() const { return decisions_.size(); }

 private:
  struct Decision {
    absl::InlinedVector<std::uint64_t, 1> asked;  // one bit per component
    std::uint32_t asked_count = 0;
    std::uint64_t number = 0;
    bool admitted = false;
  };
  struct Entry {
    state::BlockHash hash;
    std::uint64_t number = 0;  // a later decision about the same block has another one
  };

  const std::uint32_t component_count_;
  const std::size_t capacity_;
  absl::flat_hash_map<state::BlockHash, Decision> decisions_;  // looked up only
  std::deque<Entry> order_;
  std::uint64_t next_number_ = 1;
};

}  // namespace orbitkv::service
