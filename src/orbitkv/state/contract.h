// What an engine needs to go on computing at a boundary: the recovery contract of one registration.
//
// Prompts are hashed in hash blocks, and a *position* is the number of a hash block from the prompt's start. The blocks
// of a cache group span one or more hash blocks (the group's ratio) and are named by the last hash inside them: group g
// has a component at position p when ratio(g) divides p + 1. A *boundary* B stands behind the first B hash blocks; it
// is where every group ends a block, so it is a multiple of the alignment.
//
// At a boundary each group demands a number of blocks that end there (Trailing): all of them for full attention, those
// that the next token's window or chunk reaches for local attention, the last one for recurrent state. All groups'
// first demanded blocks never go back as B grows. An engine that has the prefix P holds what P demands, so what it
// lacks at B is the part of the demand that lies beyond P, and one walk over the hashes with a run length per group
// finds every legal boundary.
//
// Owns: plain values. Threads: values. Blocks: no.
// Units: tokens, hash blocks (positions, boundaries, prefixes, alignment) and group blocks (demand), as named; bytes.
// Errors: Compile refuses with kInvalid and names the rule's fault; Demand and the checks refuse with kInvalid what is
//         no boundary, and with kRefused a demand that this contract does not make.
// Invariants: every ratio divides the alignment; group numbers are below kMaxGroups, so that groups are bits of a word.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"

namespace orbitkv::state {

inline constexpr std::uint32_t kMaxGroups = 32;
inline constexpr std::uint32_t kMaxContractShards = 64;
inline constexpr std::uint32_t kMaxAlignmentBlocks = 1U << 20U;  // hash blocks between two boundaries
inline constexpr std::uint32_t kMaxPosition = 1U << 30U;         // twice the longest prompt imaginable still fits

enum class GroupKind : std::uint8_t {
  kFullAttention = 1,
  kSlidingWindow = 2,  // the next token sees span_tokens tokens, itself with them
  kRecurrent = 3,      // one state, as it is at the end of a block
  kChunkedLocal = 4,   // the next token sees the tokens since the last multiple of span_tokens
};

struct GroupRule {
  GroupKind kind = GroupKind::kFullAttention;
  std::uint32_t block_tokens = 0;
  std::uint32_t span_tokens = 0;  // of a window or chunk; 0 for the other kinds
  std::uint32_t block_bytes = 0;  // of one block in one shard
  bool operator==(const GroupRule&) const = default;
};

struct ContractDeclaration {
  std::vector<GroupRule> groups;
  std::uint32_t hash_block_tokens = 0;  // 0: the greatest common divisor of the block sizes
  std::uint32_t shard_count = 1;
};

// The greatest common divisor; 0 without rules.
std::uint32_t CommonBlockTokens(std::span<const std::uint32_t> block_tokens);

// One component's part of a boundary. Value type.
struct StateDescriptor {
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  GroupKind kind = GroupKind::kFullAttention;
  std::uint64_t first_token = 0;
  std::uint64_t token_count = 0;
  std::uint64_t bytes = 0;
  auto operator<=>(const StateDescriptor&) const = default;
};

// All that a boundary needs beyond a prefix, ordered by group and shard; empty demands are left out.
struct StateBundle {
  std::uint32_t prefix = 0;
  std::uint32_t boundary = 0;
  std::vector<StateDescriptor> descriptors;
  bool operator==(const StateBundle&) const = default;
};

// The blocks [first_block, first_block + block_count) of a group, in every shard.
struct GroupDemand {
  std::uint32_t group = 0;
  std::uint32_t first_block = 0;
  std::uint32_t block_count = 0;
  bool operator==(const GroupDemand&) const = default;
};

class RecoveryContract {
 public:
  static Result<RecoveryContract> Compile(const ContractDeclaration& declaration);

  std::uint32_t group_count() const { return static_cast<std::uint32_t>(groups_.size()); }
  std::uint32_t shard_count() const { return shard_count_; }
  std::uint32_t hash_block_tokens() const { return hash_block_tokens_; }
  std::uint32_t alignment_blocks() const { return alignment_blocks_; }
  std::uint64_t scheduler_block_tokens() const { return std::uint64_t{alignment_blocks_} * hash_block_tokens_; }
  const GroupRule& rule(std::uint32_t group) const { return groups_[group].rule; }
  std::uint32_t ratio(std::uint32_t group) const { return groups_[group].ratio; }
  bool HasComponent(std::uint32_t group, std::uint32_t position) const {
    return (std::uint64_t{position} + 1) % groups_[group].ratio == 0;
  }
  // Whether the group is stored at every position that it has, so that a missing component is a fault. The others are
  // stored where an engine kept them.
  bool IsDense(std::uint32_t group) const { return groups_[group].rule.kind == GroupKind::kFullAttention; }

  // The largest boundary that a look-up for so many tokens may offer: the last token is always computed.
  std::uint64_t LastBoundary(std::uint64_t tokens) const;
  bool IsBoundary(std::uint32_t prefix, std::uint32_t boundary) const {
    return boundary > prefix && boundary <= kMaxPosition && boundary % alignment_blocks_ == 0;
  }

  // Blocks of the group that end at the boundary and are demanded there, whatever the engine has. boundary is aligned.
  std::uint32_t Trailing(std::uint32_t group, std::uint32_t boundary) const;
  // The same without those that lie inside the prefix. boundary is one of the prefix (IsBoundary).
  GroupDemand DemandOf(std::uint32_t group, std::uint32_t prefix, std::uint32_t boundary) const;
  // One entry per group, in order, also when it is empty.
  Result<std::vector<GroupDemand>> Demand(std::uint32_t prefix, std::uint32_t boundary) const;
  Result<StateBundle> Describe(std::uint32_t prefix, std::uint32_t boundary) const;
  // The position whose hash names the block.
  std::uint32_t KeyPosition(std::uint32_t group, std::uint32_t block) const {
    return (block + 1) * groups_[group].ratio - 1;
  }

  // Every legal boundary, ascending. present[i] has bit g when group g has a component at position prefix + i in every
  // shard; bits of groups that have none there are ignored.
  std::vector<std::uint32_t> Boundaries(std::uint32_t prefix, std::span<const std::uint32_t> present) const;

  // Whether a demand that somebody else made is the one of this contract: each group once, in any order; a group whose
  // demand is empty may be left out.
  Status CheckDemand(std::uint32_t prefix, std::uint32_t boundary, std::span<const GroupDemand> given) const;
  // The same for a bundle, whose descriptors may come in any order.
  Status CheckBundle(const StateBundle& given) const;

 private:
  friend class BoundaryScan;

  struct Group {
    GroupRule rule;
    std::uint32_t ratio = 1;
    std::uint32_t window_blocks = 0;  // of a sliding window
  };

  RecoveryContract() = default;

  std::vector<Group> groups_;
  std::uint32_t shard_count_ = 1;
  std::uint32_t hash_block_tokens_ = 0;
  std::uint32_t alignment_blocks_ = 1;
};

// Walks over the hashes behind a prefix and says at which of them the engine could go on. The contract outlives it.
class BoundaryScan {
 public:
  // prefix is at most kMaxPosition.
  BoundaryScan(const RecoveryContract& contract, std::uint32_t prefix);

  // Takes the groups that are present at the next position, as Boundaries does. Returns whether a legal boundary stands
  // behind it.
  bool Step(std::uint32_t present);
  // No later boundary is legal: a group that needs its whole prefix has a hole.
  bool exhausted() const { return exhausted_; }
  std::uint32_t position() const { return position_; }  // the next one

 private:
  struct Run {
    std::uint32_t blocks = 0;     // consecutive ones that are present, up to here
    std::uint32_t to_end = 0;     // positions up to the end of the block that comes
    std::uint32_t in_prefix = 0;  // whole blocks that the engine has
  };

  const RecoveryContract* contract_;
  std::array<Run, kMaxGroups> runs_{};
  std::uint32_t position_;
  std::uint32_t to_boundary_;
  bool exhausted_ = false;
};

}  // namespace orbitkv::state
