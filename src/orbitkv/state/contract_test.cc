// The contract against an oracle that counts tokens: small cases exhaustively, and the refusals one by one.
#include "orbitkv/state/contract.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

namespace orbitkv::state {
namespace {

GroupRule Full(std::uint32_t block) { return {GroupKind::kFullAttention, block, 0, 100}; }
GroupRule Window(std::uint32_t block, std::uint32_t window) { return {GroupKind::kSlidingWindow, block, window, 10}; }
GroupRule Recurrent(std::uint32_t block) { return {GroupKind::kRecurrent, block, 0, 7}; }
GroupRule Chunked(std::uint32_t block, std::uint32_t chunk) { return {GroupKind::kChunkedLocal, block, chunk, 5}; }

RecoveryContract Compiled(std::vector<GroupRule> groups, std::uint32_t hash_block = 0, std::uint32_t shards = 1) {
  auto contract = RecoveryContract::Compile({std::move(groups), hash_block, shards});
  EXPECT_TRUE(contract) << ToString(contract.error());
  return std::move(*contract);
}

// Knows rules and tokens only: which tokens' state the next token reads.
class Oracle {
 public:
  Oracle(std::vector<GroupRule> groups, std::uint32_t hash_block) : groups_(std::move(groups)), hash_(hash_block) {}

  bool Reads(const GroupRule& rule, std::int64_t next_token, std::int64_t token) const {
    switch (rule.kind) {
      case GroupKind::kFullAttention: return true;
      case GroupKind::kSlidingWindow: return next_token - token < rule.span_tokens;
      case GroupKind::kRecurrent: return token == next_token - 1;
      case GroupKind::kChunkedLocal: return token / rule.span_tokens == next_token / rule.span_tokens;
    }
    return true;
  }

  // The blocks of the group that must come from outside.
  std::vector<std::uint32_t> Needs(std::size_t group, std::uint32_t prefix, std::uint32_t boundary) const {
    const GroupRule& rule = groups_[group];
    const std::int64_t next = std::int64_t{boundary} * hash_;
    std::vector<std::uint32_t> blocks;
    for (std::int64_t start = 0; start < next; start += rule.block_tokens) {
      const std::int64_t end = start + rule.block_tokens;
      if (end <= std::int64_t{prefix} * hash_) continue;
      bool reads = false;
      for (std::int64_t token = start; token < std::min(end, next); ++token) reads |= Reads(rule, next, token);
      if (reads) blocks.push_back(static_cast<std::uint32_t>(start / rule.block_tokens));
    }
    return blocks;
  }

  bool Aligned(std::uint32_t boundary) const {
    return std::ranges::all_of(
        groups_, [&](const GroupRule& rule) { return std::uint64_t{boundary} * hash_ % rule.block_tokens == 0; });
  }

 private:
  std::vector<GroupRule> groups_;
  std::uint32_t hash_;
};

struct Case {
  std::string name;
  std::vector<GroupRule> groups;
  std::uint32_t hash_block;  // 0: the common divisor
  std::uint32_t positions;   // hash blocks of the prompt
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"full", {Full(2)}, 0, 8},
      {"full finer hashes", {Full(4)}, 2, 8},
      {"recurrent", {Recurrent(2)}, 0, 8},
      {"full recurrent", {Full(2), Recurrent(4)}, 0, 8},
      {"recurrent finer than full", {Full(6), Recurrent(2)}, 0, 9},
      {"two coarse", {Full(2), Window(3, 5)}, 0, 12},
      {"three kinds", {Full(2), Window(2, 4), Recurrent(4)}, 0, 6},
      {"two full", {Full(1), Full(2)}, 0, 8},
      {"chunk and window", {Chunked(2, 6), Window(2, 5)}, 0, 7},
  };
  for (std::uint32_t window = 1; window <= 9; ++window) {
    cases.push_back({"window " + std::to_string(window), {Window(2, window)}, 0, 9});
    cases.push_back({"full window " + std::to_string(window), {Full(2), Window(4, window)}, 0, 8});
    cases.push_back({"window full " + std::to_string(window), {Window(2, window), Full(4)}, 0, 8});
    cases.push_back({"chunk " + std::to_string(window), {Chunked(2, window)}, 0, 9});
    cases.push_back({"full chunk " + std::to_string(window), {Full(2), Chunked(4, window)}, 0, 8});
  }
  return cases;
}

// Which (group, block) are numbered by which bit of a presence bitmap.
std::vector<std::pair<std::uint32_t, std::uint32_t>> Components(const RecoveryContract& contract,
                                                                std::uint32_t positions) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> components;
  for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
    for (std::uint32_t block = 0; contract.KeyPosition(group, block) < positions; ++block) {
      components.emplace_back(group, block);
    }
  }
  return components;
}

TEST(Contract, DemandIsWhatTheNextTokenReads) {
  for (const Case& one : Cases()) {
    const RecoveryContract contract = Compiled(one.groups, one.hash_block);
    const Oracle oracle(one.groups, contract.hash_block_tokens());
    for (std::uint32_t boundary = 0; boundary <= one.positions; ++boundary) {
      for (std::uint32_t prefix = 0; prefix <= one.positions; ++prefix) {
        const auto demand = contract.Demand(prefix, boundary);
        ASSERT_EQ(demand.has_value(), boundary > prefix && oracle.Aligned(boundary)) << one.name;
        if (!demand) continue;
        ASSERT_EQ(demand->size(), one.groups.size());
        for (std::uint32_t group = 0; group < demand->size(); ++group) {
          const GroupDemand& got = (*demand)[group];
          std::vector<std::uint32_t> blocks;
          for (std::uint32_t i = 0; i < got.block_count; ++i) blocks.push_back(got.first_block + i);
          ASSERT_EQ(got.group, group);
          ASSERT_EQ(blocks, oracle.Needs(group, prefix, boundary))
              << one.name << ", prefix " << prefix << ", boundary " << boundary << ", group " << group;
        }
      }
    }
  }
}

// Every presence bitmap, every prefix.
TEST(Contract, BoundariesAreThoseWhoseDemandIsPresent) {
  for (const Case& one : Cases()) {
    const RecoveryContract contract = Compiled(one.groups, one.hash_block);
    const Oracle oracle(one.groups, contract.hash_block_tokens());
    const auto components = Components(contract, one.positions);
    ASSERT_LE(components.size(), 16U);
    for (std::uint32_t prefix = 0; prefix < one.positions; ++prefix) {
      // By boundary, the bits it needs.
      std::map<std::uint32_t, std::uint32_t> needs;
      for (std::uint32_t boundary = prefix + 1; boundary <= one.positions; ++boundary) {
        if (!oracle.Aligned(boundary)) continue;
        std::uint32_t& bits = needs[boundary];
        for (std::uint32_t group = 0; group < one.groups.size(); ++group) {
          for (const std::uint32_t block : oracle.Needs(group, prefix, boundary)) {
            const auto at = std::ranges::find(components, std::pair(group, block));
            ASSERT_NE(at, components.end());
            bits |= 1U << (at - components.begin());
          }
        }
      }
      for (std::uint32_t bitmap = 0; bitmap < (1U << components.size()); ++bitmap) {
        std::vector<std::uint32_t> present(one.positions - prefix);
        for (std::size_t i = 0; i < components.size(); ++i) {
          const auto [group, block] = components[i];
          const std::uint32_t position = contract.KeyPosition(group, block);
          if (((bitmap >> i) & 1U) != 0 && position >= prefix) present[position - prefix] |= 1U << group;
        }
        std::vector<std::uint32_t> expected;
        for (const auto& [boundary, bits] : needs) {
          if ((bits & ~bitmap) == 0) expected.push_back(boundary);
        }
        ASSERT_EQ(contract.Boundaries(prefix, present), expected)
            << one.name << ", prefix " << prefix << ", bitmap " << bitmap;
      }
    }
  }
}

TEST(Contract, BitsOfGroupsWithoutAComponentAreIgnored) {
  const RecoveryContract contract = Compiled({Full(2), Window(4, 3)});
  EXPECT_EQ(contract.Boundaries(0, std::vector<std::uint32_t>{0b11, 0b01, 0b01, 0b11}),
            (std::vector<std::uint32_t>{4}));
}

TEST(Contract, GeometryFollowsFromTheBlockSizes) {
  const RecoveryContract contract = Compiled({Full(48), Window(32, 64), Recurrent(96)}, 0, 2);
  EXPECT_EQ(contract.hash_block_tokens(), 16U);
  EXPECT_EQ(contract.scheduler_block_tokens(), 96U);
  EXPECT_EQ(contract.alignment_blocks(), 6U);
  EXPECT_EQ(contract.ratio(0), 3U);
  EXPECT_EQ(contract.ratio(1), 2U);
  EXPECT_EQ(contract.ratio(2), 6U);
  EXPECT_TRUE(contract.HasComponent(0, 2));
  EXPECT_FALSE(contract.HasComponent(0, 3));
  EXPECT_TRUE(contract.HasComponent(2, 5));
  EXPECT_EQ(contract.KeyPosition(1, 2), 5U);
  EXPECT_TRUE(contract.IsDense(0));
  EXPECT_FALSE(contract.IsDense(1));
  EXPECT_FALSE(contract.IsDense(2));
  // The last token is computed, so a prompt of whole blocks keeps one back.
  EXPECT_EQ(contract.LastBoundary(0), 0U);
  EXPECT_EQ(contract.LastBoundary(96), 0U);
  EXPECT_EQ(contract.LastBoundary(97), 6U);
  EXPECT_EQ(contract.LastBoundary(193), 12U);
}

// vLLM's window manager needs ceil((window - 1) / block) blocks.
TEST(Contract, TheWindowReachesOneTokenLessThanItsLength) {
  EXPECT_EQ(Compiled({Window(32, 64)}).Trailing(0, 100), 2U);
  EXPECT_EQ(Compiled({Window(32, 65)}).Trailing(0, 100), 2U);
  EXPECT_EQ(Compiled({Window(32, 66)}).Trailing(0, 100), 3U);
  EXPECT_EQ(Compiled({Window(32, 33)}).Trailing(0, 100), 1U);
  EXPECT_EQ(Compiled({Window(32, 1)}).Trailing(0, 100), 0U);
  EXPECT_EQ(Compiled({Window(32, 0xffffffffU)}).Trailing(0, 100), 100U);
}

TEST(Contract, ABundleDescribesEveryGroupAndShard) {
  const RecoveryContract contract = Compiled({Full(2), Window(4, 4), Chunked(4, 8)}, 0, 2);
  const auto bundle = contract.Describe(2, 8);  // tokens 4 to 16; the chunk starts at 16
  ASSERT_TRUE(bundle);
  const std::vector<StateDescriptor> expected = {
      {0, 0, GroupKind::kFullAttention, 4, 12, 600},
      {0, 1, GroupKind::kFullAttention, 4, 12, 600},
      {1, 0, GroupKind::kSlidingWindow, 12, 4, 10},
      {1, 1, GroupKind::kSlidingWindow, 12, 4, 10},
  };
  EXPECT_EQ(bundle->descriptors, expected);
  StateBundle shuffled = *bundle;
  std::ranges::reverse(shuffled.descriptors);
  EXPECT_TRUE(contract.CheckBundle(shuffled));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    StateBundle hole = *bundle;
    hole.descriptors.erase(hole.descriptors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(contract.CheckBundle(hole).error().code, Code::kRefused);
    for (int field = 0; field < 6; ++field) {
      StateBundle other = *bundle;
      StateDescriptor& changed = other.descriptors[i];
      if (field == 0) changed.group = 2;
      if (field == 1) changed.shard = 2;
      if (field == 2) changed.kind = GroupKind::kRecurrent;
      if (field == 3) changed.first_token -= 4;
      if (field == 4) changed.token_count += 4;
      if (field == 5) changed.bytes += 1;
      EXPECT_EQ(contract.CheckBundle(other).error().code, Code::kRefused) << field;
    }
  }
  StateBundle more = *bundle;
  more.descriptors.push_back({2, 0, GroupKind::kChunkedLocal, 12, 4, 5});
  EXPECT_EQ(contract.CheckBundle(more).error().code, Code::kRefused);
  StateBundle between = *bundle;
  between.boundary = 7;
  EXPECT_EQ(contract.CheckBundle(between).error().code, Code::kInvalid);
}

TEST(Contract, AForeignDemandIsTheOwnOneOrRefused) {
  const RecoveryContract contract = Compiled({Full(2), Window(4, 4), Chunked(4, 8)});
  const std::vector<GroupDemand> own = {{0, 2, 6}, {1, 3, 1}};
  EXPECT_TRUE(contract.CheckDemand(2, 8, own));
  EXPECT_TRUE(contract.CheckDemand(2, 8, std::vector<GroupDemand>{{1, 3, 1}, {2, 0, 0}, {0, 2, 6}}));
  const std::vector<std::vector<GroupDemand>> wrong = {
      {},
      {{0, 2, 6}},
      {{1, 3, 1}},
      {{0, 2, 5}, {1, 3, 1}},
      {{0, 3, 6}, {1, 3, 1}},
      {{0, 2, 6}, {1, 2, 1}},
      {{0, 2, 6}, {1, 2, 2}},
      {{0, 2, 6}, {1, 3, 1}, {1, 3, 1}},
      {{0, 2, 6}, {1, 3, 1}, {2, 3, 1}},
      {{0, 2, 6}, {1, 3, 1}, {3, 0, 0}},
      {{0, 2, 6}, {1, 3, 1}, {0xffffffffU, 0, 0}},
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    const Status status = contract.CheckDemand(2, 8, wrong[i]);
    ASSERT_FALSE(status) << i;
    EXPECT_EQ(status.error().code, Code::kRefused) << i;
  }
  for (const auto& [prefix, boundary] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{2, 7}, {8, 8}, {9, 8}, {0, 0}, {0, kMaxPosition + 2}}) {
    EXPECT_EQ(contract.CheckDemand(prefix, boundary, own).error().code, Code::kInvalid) << boundary;
  }
}

TEST(Contract, FaultyDeclarationsAreNamed) {
  const auto text = [](std::vector<GroupRule> groups, std::uint32_t hash_block = 0, std::uint32_t shards = 1) {
    const auto contract = RecoveryContract::Compile({std::move(groups), hash_block, shards});
    return contract ? std::string() : std::string(contract.error().text);
  };
  EXPECT_EQ(text({}), "the number of cache groups is out of range");
  EXPECT_EQ(text(std::vector<GroupRule>(kMaxGroups + 1, Full(2))), "the number of cache groups is out of range");
  EXPECT_EQ(text(std::vector<GroupRule>(kMaxGroups, Full(2))), "");
  EXPECT_EQ(text({Full(2)}, 0, 0), "the number of shards is out of range");
  EXPECT_EQ(text({Full(2)}, 0, kMaxContractShards + 1), "the number of shards is out of range");
  EXPECT_EQ(text({Full(0)}), "a cache group's blocks have no tokens");
  EXPECT_EQ(text({{GroupKind::kFullAttention, 2, 0, 0}}), "a cache group's blocks have no bytes");
  EXPECT_EQ(text({Window(2, 0)}), "a sliding window of 0 tokens");
  EXPECT_EQ(text({Chunked(2, 0)}), "an attention chunk of 0 tokens");
  EXPECT_EQ(text({{GroupKind::kFullAttention, 2, 8, 1}}), "only a window or chunked group has a span");
  EXPECT_EQ(text({{GroupKind::kRecurrent, 2, 8, 1}}), "only a window or chunked group has a span");
  EXPECT_EQ(text({{static_cast<GroupKind>(0), 2, 0, 1}}), "a cache group of unknown kind");
  EXPECT_EQ(text({{static_cast<GroupKind>(5), 2, 0, 1}}), "a cache group of unknown kind");
  EXPECT_EQ(text({Full(6)}, 4), "a group's block size is no multiple of the hash block");
  EXPECT_EQ(text({Full(6), Full(4)}, 3), "a group's block size is no multiple of the hash block");
  EXPECT_EQ(text({Full(1021), Full(1031)}), "the groups' blocks end together too rarely");
  EXPECT_EQ(text({Full(0xffffffffU), Full(0xfffffffeU)}), "the groups' blocks end together too rarely");
  EXPECT_EQ(text({Full(kMaxAlignmentBlocks)}, 1), "");
  EXPECT_EQ(text({Full(kMaxAlignmentBlocks + 1)}, 1), "the groups' blocks end together too rarely");
}

TEST(Contract, PositionsBeyondTheLimitAreNoBoundaries) {
  const RecoveryContract contract = Compiled({Full(2)});
  EXPECT_TRUE(contract.Boundaries(kMaxPosition, std::vector<std::uint32_t>{1, 1}).empty());
  EXPECT_TRUE(contract.Boundaries(0xffffffffU, std::vector<std::uint32_t>{1, 1}).empty());
  EXPECT_EQ(contract.Boundaries(kMaxPosition - 1, std::vector<std::uint32_t>{1, 1}),
            (std::vector<std::uint32_t>{kMaxPosition}));
}

}  // namespace
}  // namespace orbitkv::state
