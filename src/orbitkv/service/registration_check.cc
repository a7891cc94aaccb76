#include "orbitkv/service/registration_check.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "orbitkv/state/digest.h"

namespace orbitkv::service {
namespace {

constexpr std::size_t kMaxNameBytes = 256;

std::string DescribeRule(const state::GroupShape& group) {
  switch (group.kind) {
    case state::GroupKind::kFullAttention: return "full attention";
    case state::GroupKind::kSlidingWindow: return fmt::format("a window of {} tokens", group.span_tokens);
    case state::GroupKind::kRecurrent: return "recurrent state";
    case state::GroupKind::kChunkedLocal: return fmt::format("chunks of {} tokens", group.span_tokens);
  }
  return fmt::format("kind {}", static_cast<int>(group.kind));
}

std::string DescribeRules(const std::vector<state::GroupShape>& groups) {
  std::string text;
  for (const state::GroupShape& group : groups) {
    text +=
        fmt::format("{}{} with blocks of {} tokens", text.empty() ? "" : ", ", DescribeRule(group), group.block_tokens);
  }
  return fmt::format("{}, hashed every {} tokens", text, state::HashBlockTokens(groups));
}

std::string Describe(const std::vector<state::GroupShape>& groups) {
  std::string text;
  for (const state::GroupShape& group : groups) {
    text += fmt::format("{}{} pages of {} bytes per block of {} tokens for {}", text.empty() ? "" : ", ",
                        group.page_count, group.page_bytes, group.block_tokens, DescribeRule(group));
  }
  return fmt::format("{}, hashed every {} tokens", text, state::HashBlockTokens(groups));
}

std::string CheckGroups(const Registration& registration) {
  if (registration.groups.empty()) return "a worker registers its cache groups, this one names none";
  for (const state::GroupShape& group : registration.groups) {
    if (group.block_tokens == 0 || group.page_count == 0 || group.page_bytes == 0) {
      return fmt::format("an empty cache group: {}", Describe(registration.groups));
    }
    if (SlotBytes(group) == 0) return fmt::format("a block of 4 GiB or more: {}", Describe(registration.groups));
    if (group.hash_block_tokens != registration.groups.front().hash_block_tokens) {
      return fmt::format("cache groups with hash blocks of {} and {} tokens: all are hashed the same way",
                         registration.groups.front().hash_block_tokens, group.hash_block_tokens);
    }
  }
  if (const auto contract = ContractOf(registration.groups, registration.shard_count); !contract) {
    return fmt::format("{} ({}, {}): {}", contract.error().text, contract.error().a, contract.error().b,
                       Describe(registration.groups));
  }
  return {};
}

// A scheduler knows the rules of its groups, but not how workers keep a page.
bool SameRules(const std::vector<state::GroupShape>& one, const std::vector<state::GroupShape>& other) {
  return state::HashBlockTokens(one) == state::HashBlockTokens(other) &&
         std::ranges::equal(one, other, [](const state::GroupShape& a, const state::GroupShape& b) {
           return a.kind == b.kind && a.block_tokens == b.block_tokens && a.span_tokens == b.span_tokens;
         });
}

}  // namespace

std::uint32_t SlotBytes(const state::GroupShape& group) {
  // Three factors of 32, 64 and 4 bits: kept in range by bounding the page before multiplying.
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint32_t>::max();
  if (group.page_bytes > kMax) return 0;
  const std::uint64_t pages = group.page_bytes * group.page_count;
  const std::uint64_t bytes = (pages + 7) / 8 * 8 + std::uint64_t{8} * group.page_count;
  return pages > kMax || bytes > kMax ? 0 : static_cast<std::uint32_t>(bytes);
}

Result<state::RecoveryContract> ContractOf(std::span<const state::GroupShape> groups, std::uint32_t shard_count) {
  state::ContractDeclaration declaration;
  declaration.hash_block_tokens = state::HashBlockTokens(groups);
  declaration.shard_count = shard_count;
  for (const state::GroupShape& group : groups) {
    declaration.groups.push_back({group.kind, group.block_tokens, group.span_tokens, SlotBytes(group)});
  }
  return state::RecoveryContract::Compile(declaration);
}

std::string CheckRegistration(const Registration& registration, const Limits& limits) {
  if (registration.instance.empty() || registration.instance.size() > kMaxNameBytes) {
    return fmt::format("the name of the instance has {} bytes, 1 to {} are allowed", registration.instance.size(),
                       kMaxNameBytes);
  }
  if (registration.world_size == 0 || registration.world_size > limits.max_ranks) {
    return fmt::format("world_size is {}, 1 to {} are allowed", registration.world_size, limits.max_ranks);
  }
  if (registration.shard_count == 0 || registration.shard_count > registration.world_size) {
    return fmt::format("shard_count is {} with {} ranks: there is at least one shard and at most one per rank",
                       registration.shard_count, registration.world_size);
  }
  if (registration.shard_count > limits.max_shards) {
    return fmt::format("shard_count is {}, at most {} are supported", registration.shard_count, limits.max_shards);
  }
  if (registration.role == Role::kScheduler) return {};
  if (registration.rank.value() >= registration.world_size) {
    return fmt::format("rank {} of {} ranks: ranks count from 0", registration.rank.value(), registration.world_size);
  }
  if (registration.shard >= registration.shard_count) {
    return fmt::format("shard {} of {} shards: shards count from 0", registration.shard, registration.shard_count);
  }
  if (!registration.representation) return "a worker registers its representation digest, this one names none";
  return CheckGroups(registration);
}

std::string CheckAgreement(const Registration& registration, const Instance& instance) {
  if (registration.computation != instance.computation) {
    return fmt::format(
        "instance '{}' computes with digest {}, this process with {}: all processes of one engine need the same model "
        "and options",
        instance.name, state::ToHex(instance.computation), state::ToHex(registration.computation));
  }
  if (registration.world_size != instance.ranks.size()) {
    return fmt::format("instance '{}' has {} ranks, this process says {}", instance.name, instance.ranks.size(),
                       registration.world_size);
  }
  if (registration.shard_count != instance.shard_count) {
    return fmt::format("instance '{}' has {} shards, this process says {}", instance.name, instance.shard_count,
                       registration.shard_count);
  }
  if (!registration.groups.empty() && !instance.declared.empty() &&
      !SameRules(registration.groups, instance.declared)) {
    return fmt::format("instance '{}' has {}; this process says {}", instance.name, DescribeRules(instance.declared),
                       DescribeRules(registration.groups));
  }
  if (registration.role == Role::kScheduler) return {};
  if (instance.representation && *registration.representation != *instance.representation) {
    return fmt::format(
        "workers of instance '{}' represent pages with digest {}, this one with {}: all workers need the same page "
        "layout",
        instance.name, state::ToHex(*instance.representation), state::ToHex(*registration.representation));
  }
  if (instance.representation && registration.groups != instance.groups) {
    return fmt::format("workers of instance '{}' have {}, this one {}", instance.name, Describe(instance.groups),
                       Describe(registration.groups));
  }
  const RankSlot& rank = instance.ranks[registration.rank.value()];
  if (rank.shard && *rank.shard != registration.shard) {
    return fmt::format("rank {} of instance '{}' has shard {}, this process says {}", registration.rank.value(),
                       instance.name, *rank.shard, registration.shard);
  }
  return {};
}

bool CompletesRanks(const Registration& registration, const Instance* instance) {
  if (registration.role == Role::kScheduler) return false;
  if (instance == nullptr) return registration.world_size == 1;
  if (instance->space != nullptr) return false;
  for (std::uint32_t rank = 0; rank < instance->ranks.size(); ++rank) {
    if (rank != registration.rank.value() && !instance->RankLive(rank)) return false;
  }
  return true;
}

std::string CheckCoverage(const Registration& registration, const Instance* instance) {
  std::vector<bool> covered(registration.shard_count);
  covered[registration.shard] = true;
  if (instance != nullptr) {
    for (const RankSlot& rank : instance->ranks) {
      if (rank.shard) covered[*rank.shard] = true;
    }
  }
  const auto hole = std::ranges::find(covered, false);
  if (hole == covered.end()) return {};
  return fmt::format("with this one all {} ranks of instance '{}' have registered, and none has shard {} of {}",
                     registration.world_size, registration.instance, hole - covered.begin(), registration.shard_count);
}

}  // namespace orbitkv::service
