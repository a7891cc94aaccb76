// Where an engine could go on, counted from its groups' rules and tokens alone: what the Manager's answers are held
// against. It shares nothing with the contract that the Manager compiles.
// Owns: plain values. Threads: values. Blocks: no.
// Units: tokens, hash blocks (positions, prefixes, boundaries) and blocks of a group, as named.
// Errors: none. Invariant: boundaries are those of the registration's groups, each the end of a block in all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "orbitkv/state/identity.h"

namespace orbitkv::sim {

// A block of a group; index: of the hash that names it, counted from a prefix.
struct Place {
  std::uint32_t group = 0;
  std::uint32_t index = 0;
  auto operator<=>(const Place&) const = default;
};

class Rules {
 public:
  explicit Rules(std::vector<state::GroupShape> groups = {});

  const std::vector<state::GroupShape>& groups() const { return groups_; }
  // Hash blocks that one block of the group takes.
  std::uint32_t RatioOf(std::uint32_t group) const { return groups_[group].block_tokens / hash_tokens_; }
  // One group that is stored for every hash: what is there of a prefix is usable.
  bool single() const {
    return groups_.size() == 1 && RatioOf(0) == 1 && groups_[0].kind == state::GroupKind::kFullAttention;
  }
  bool IsBoundary(std::uint32_t position) const;
  // The blocks that must come from outside, group by group, each in the order of the prompt. boundary counts from the
  // prefix and is one.
  std::vector<Place> Needs(std::uint32_t prefix, std::uint32_t boundary) const;
  // Every boundary whose needs are there, ascending, counted from the prefix; hashes: how many follow it.
  std::vector<std::uint32_t> Boundaries(std::uint32_t prefix, std::uint32_t hashes,
                                        const std::function<bool(Place)>& there) const;

 private:
  bool Reads(const state::GroupShape& group, std::uint64_t next_token, std::uint64_t block_end) const;

  std::vector<state::GroupShape> groups_;
  std::uint32_t hash_tokens_ = 1;
};

}  // namespace orbitkv::sim
