#include "orbitkv/state/contract.h"

#include <algorithm>
#include <numeric>

#include "orbitkv/base/check.h"

namespace orbitkv::state {
namespace {

Status CheckRule(const GroupRule& rule, std::uint32_t group) {
  if (rule.block_tokens == 0) return Fail(Code::kInvalid, "a cache group's blocks have no tokens", group);
  if (rule.block_bytes == 0) return Fail(Code::kInvalid, "a cache group's blocks have no bytes", group);
  switch (rule.kind) {
    case GroupKind::kFullAttention:
    case GroupKind::kRecurrent:
      if (rule.span_tokens == 0) return {};
      return Fail(Code::kInvalid, "only a window or chunked group has a span", group, rule.span_tokens);
    case GroupKind::kSlidingWindow:
      if (rule.span_tokens > 0) return {};
      return Fail(Code::kInvalid, "a sliding window of 0 tokens", group);
    case GroupKind::kChunkedLocal:
      if (rule.span_tokens > 0) return {};
      return Fail(Code::kInvalid, "an attention chunk of 0 tokens", group);
  }
  return Fail(Code::kInvalid, "a cache group of unknown kind", group, static_cast<std::uint64_t>(rule.kind));
}

}  // namespace

std::uint32_t CommonBlockTokens(std::span<const std::uint32_t> block_tokens) {
  std::uint32_t common = 0;
  for (const std::uint32_t tokens : block_tokens) common = std::gcd(common, tokens);
  return common;
}

Result<RecoveryContract> RecoveryContract::Compile(const ContractDeclaration& declaration) {
  const std::size_t count = declaration.groups.size();
  if (count == 0 || count > kMaxGroups) {
    return Fail(Code::kInvalid, "the number of cache groups is out of range", count, kMaxGroups);
  }
  if (declaration.shard_count == 0 || declaration.shard_count > kMaxContractShards) {
    return Fail(Code::kInvalid, "the number of shards is out of range", declaration.shard_count, kMaxContractShards);
  }
  std::vector<std::uint32_t> sizes;
  for (std::uint32_t group = 0; group < count; ++group) {
    ORBITKV_TRY(CheckRule(declaration.groups[group], group));
    sizes.push_back(declaration.groups[group].block_tokens);
  }
  RecoveryContract contract;
  contract.shard_count_ = declaration.shard_count;
  contract.hash_block_tokens_ =
      declaration.hash_block_tokens != 0 ? declaration.hash_block_tokens : CommonBlockTokens(sizes);
  std::uint64_t alignment = 1;
  for (std::uint32_t group = 0; group < count; ++group) {
    const GroupRule& rule = declaration.groups[group];
    if (rule.block_tokens % contract.hash_block_tokens_ != 0) {
      return Fail(Code::kInvalid, "a group's block size is no multiple of the hash block", rule.block_tokens,
                  contract.hash_block_tokens_);
    }
    Group& compiled = contract.groups_.emplace_back();
    compiled.rule = rule;
    compiled.ratio = rule.block_tokens / contract.hash_block_tokens_;
    // Both factors are bounded: the product stays far inside 64 bits.
    alignment = std::lcm(alignment, std::uint64_t{compiled.ratio});
    if (alignment > kMaxAlignmentBlocks) {
      return Fail(Code::kInvalid, "the groups' blocks end together too rarely", alignment, kMaxAlignmentBlocks);
    }
    if (rule.kind == GroupKind::kSlidingWindow) {
      compiled.window_blocks =
          rule.span_tokens == 1 ? 0 : (rule.span_tokens - 2) / rule.block_tokens + 1;  // of span_tokens - 1, rounded up
    }
  }
  contract.alignment_blocks_ = static_cast<std::uint32_t>(alignment);
  return contract;
}

std::uint64_t RecoveryContract::LastBoundary(std::uint64_t tokens) const {
  return tokens == 0 ? 0 : (tokens - 1) / scheduler_block_tokens() * alignment_blocks_;
}

std::uint32_t RecoveryContract::Trailing(std::uint32_t group, std::uint32_t boundary) const {
  const Group& one = groups_[group];
  const std::uint32_t blocks = boundary / one.ratio;
  switch (one.rule.kind) {
    case GroupKind::kFullAttention: return blocks;
    case GroupKind::kSlidingWindow: return std::min(blocks, one.window_blocks);
    case GroupKind::kRecurrent: return std::min(blocks, 1U);
    case GroupKind::kChunkedLocal: {
      const std::uint64_t tokens = std::uint64_t{boundary} * hash_block_tokens_;
      const std::uint64_t chunk_start = tokens / one.rule.span_tokens * one.rule.span_tokens;
      return blocks - static_cast<std::uint32_t>(chunk_start / one.rule.block_tokens);
    }
  }
  return blocks;
}

GroupDemand RecoveryContract::DemandOf(std::uint32_t group, std::uint32_t prefix, std::uint32_t boundary) const {
  const std::uint32_t blocks = boundary / groups_[group].ratio;
  // A block that the prefix covers in part is needed whole.
  const std::uint32_t first = std::max(blocks - Trailing(group, boundary), prefix / groups_[group].ratio);
  return GroupDemand{group, first, blocks - first};
}

Result<std::vector<GroupDemand>> RecoveryContract::Demand(std::uint32_t prefix, std::uint32_t boundary) const {
  if (!IsBoundary(prefix, boundary)) {
    return Fail(Code::kInvalid, "no boundary behind the prefix where all groups end a block", boundary, prefix);
  }
  std::vector<GroupDemand> demand;
  for (std::uint32_t group = 0; group < group_count(); ++group) demand.push_back(DemandOf(group, prefix, boundary));
  return demand;
}

Result<StateBundle> RecoveryContract::Describe(std::uint32_t prefix, std::uint32_t boundary) const {
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<GroupDemand> demand, Demand(prefix, boundary));
  StateBundle bundle{.prefix = prefix, .boundary = boundary, .descriptors = {}};
  for (const GroupDemand& one : demand) {
    if (one.block_count == 0) continue;
    const GroupRule& group_rule = rule(one.group);
    for (std::uint32_t shard = 0; shard < shard_count_; ++shard) {
      bundle.descriptors.push_back({.group = one.group,
                                    .shard = shard,
                                    .kind = group_rule.kind,
                                    .first_token = std::uint64_t{one.first_block} * group_rule.block_tokens,
                                    .token_count = std::uint64_t{one.block_count} * group_rule.block_tokens,
                                    .bytes = std::uint64_t{one.block_count} * group_rule.block_bytes});
    }
  }
  return bundle;
}

std::vector<std::uint32_t> RecoveryContract::Boundaries(std::uint32_t prefix,
                                                        std::span<const std::uint32_t> present) const {
  std::vector<std::uint32_t> boundaries;
  if (prefix > kMaxPosition) return boundaries;
  BoundaryScan scan(*this, prefix);
  for (const std::uint32_t groups : present) {
    if (scan.exhausted()) break;
    if (scan.Step(groups)) boundaries.push_back(scan.position());
  }
  return boundaries;
}

Status RecoveryContract::CheckDemand(std::uint32_t prefix, std::uint32_t boundary,
                                     std::span<const GroupDemand> given) const {
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<GroupDemand> demand, Demand(prefix, boundary));
  std::uint32_t seen = 0;
  for (const GroupDemand& one : given) {
    if (one.group >= group_count()) return Fail(Code::kRefused, "the demand names an unknown group", one.group);
    if (((seen >> one.group) & 1U) != 0) return Fail(Code::kRefused, "the demand names a group twice", one.group);
    seen |= 1U << one.group;
    const GroupDemand& own = demand[one.group];
    if (one.block_count != own.block_count || (own.block_count > 0 && one.first_block != own.first_block)) {
      return Fail(Code::kRefused, "the demand names other blocks of a group than its rule", one.group, one.block_count);
    }
  }
  for (const GroupDemand& own : demand) {
    if (own.block_count > 0 && ((seen >> own.group) & 1U) == 0) {
      return Fail(Code::kRefused, "the demand is incomplete: it leaves out a group", own.group, own.block_count);
    }
  }
  return {};
}

Status RecoveryContract::CheckBundle(const StateBundle& given) const {
  ORBITKV_ASSIGN_OR_RETURN(const StateBundle own, Describe(given.prefix, given.boundary));
  std::vector<StateDescriptor> sorted = given.descriptors;
  std::ranges::sort(sorted);
  if (sorted == own.descriptors) return {};
  for (const StateDescriptor& descriptor : own.descriptors) {
    if (!std::ranges::binary_search(sorted, descriptor)) {
      return Fail(Code::kRefused, "the bundle lacks a component or describes it otherwise", descriptor.group,
                  descriptor.shard);
    }
  }
  return Fail(Code::kRefused, "the bundle holds components that the boundary does not demand", sorted.size(),
              own.descriptors.size());
}

BoundaryScan::BoundaryScan(const RecoveryContract& contract, std::uint32_t prefix)
    : contract_(&contract),
      position_(prefix),
      to_boundary_(contract.alignment_blocks_ - prefix % contract.alignment_blocks_) {
  ORBITKV_CHECK(prefix <= kMaxPosition);
  for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
    const std::uint32_t ratio = contract.groups_[group].ratio;
    runs_[group] = Run{.blocks = 0, .to_end = ratio - prefix % ratio, .in_prefix = prefix / ratio};
  }
}

bool BoundaryScan::Step(std::uint32_t present) {
  if (exhausted_ || position_ >= kMaxPosition) {
    exhausted_ = true;
    return false;
  }
  ++position_;
  const std::uint32_t count = contract_->group_count();
  for (std::uint32_t group = 0; group < count; ++group) {
    Run& run = runs_[group];
    if (--run.to_end > 0) continue;
    run.to_end = contract_->groups_[group].ratio;
    if (((present >> group) & 1U) != 0) {
      ++run.blocks;
    } else {
      run.blocks = 0;
      if (contract_->IsDense(group)) exhausted_ = true;
    }
  }
  if (--to_boundary_ > 0) return false;
  to_boundary_ = contract_->alignment_blocks_;
  if (exhausted_) return false;
  for (std::uint32_t group = 0; group < count; ++group) {
    const std::uint32_t beyond = position_ / contract_->groups_[group].ratio - runs_[group].in_prefix;
    if (runs_[group].blocks < std::min(contract_->Trailing(group, position_), beyond)) return false;
  }
  return true;
}

}  // namespace orbitkv::state
