// Engines whose cache groups have rules of their own: publishing per group, look-ups that offer boundaries, grants of
// exactly a boundary's demand.
#include <gmock/gmock.h>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/service/test_groups.h"

namespace orbitkv::service {
namespace {

using state::GroupKind;
using testing::ElementsAre;

TEST(Groups, ABoundaryNeedsEveryGroup) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 12), 12U);
  EXPECT_EQ(world.Ask(chain).found_blocks, 0U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 2), 2U);
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(2, 4));
  // The window's blocks in between were never kept; two that end a prompt were.
  ASSERT_EQ(world.PublishGroup(chain, 1, 4, 2), 2U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4, 12));
  EXPECT_EQ(outcome.found_blocks, 12U);
  EXPECT_EQ(world.found_pins(), 12U);
  world.ExpectQuiet();
}

TEST(Groups, AGrantHoldsExactlyItsBoundary) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 12), 12U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 6), 6U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4, 6, 8, 10, 12));
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 8, {0}, 1));
  EXPECT_EQ(world.cache().gauges().granted_pins, 8U);
  EXPECT_EQ(world.found_pins(), 0U);
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  // Group by group: all of the full one, the two window blocks that end at 8.
  EXPECT_THAT(world.Places(), ElementsAre(std::pair(0U, 0U), std::pair(0U, 1U), std::pair(0U, 2U), std::pair(0U, 3U),
                                          std::pair(0U, 4U), std::pair(0U, 5U), std::pair(0U, 6U), std::pair(0U, 7U),
                                          std::pair(1U, 5U), std::pair(1U, 7U)));
  for (const wire::PlanEntry& entry : world.plan()) {
    EXPECT_EQ(entry.slot_checksum, GroupWorld::Checksum(chain[entry.block], entry.group, 0));
    EXPECT_EQ(entry.slot_bytes, entry.group == 0 ? 2016U : 512U);
  }
  EXPECT_TRUE(world.End(world.worker(), 1));
  EXPECT_EQ(world.service().counters().restored_blocks, 10U);
  EXPECT_EQ(world.service().counters().restored_bytes, 8 * 2016U + 2 * 512U);
  world.ExpectQuiet();
}

TEST(Groups, DemandIsRelativeToThePrefix) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 12), 12U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 3, 3), 3U);
  // At 8 the window needs blocks 2 and 3: an engine that has 6 hash blocks has block 2.
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(10, 12));
  const QueryOutcome outcome = world.Ask(chain, 6);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4, 6));
  EXPECT_EQ(CodeOf(world.Begin(world.worker(), outcome.lease, 3, {0}, 1)), Code::kRefused) << "no boundary lies there";
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 2, {0}, 2));
  ASSERT_EQ(world.Plan(world.worker(), 2), PlanStatus::kArmed);
  EXPECT_THAT(world.Places(), ElementsAre(std::pair(0U, 0U), std::pair(0U, 1U), std::pair(1U, 1U)));
  world.ExpectQuiet();
}

TEST(Groups, AHoleInTheMiddleOfTheWindowMovesTheBoundaries) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 16);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 16), 16U);
  for (const std::uint32_t block : {0U, 1U, 2U, 4U, 5U, 6U}) ASSERT_EQ(world.PublishGroup(chain, 1, block, 1), 1U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4, 6, 12, 14));
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 12, {0}, 1));
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  EXPECT_EQ(world.plan().size(), 14U);
  world.ExpectQuiet();
}

TEST(Groups, AHoleInFullAttentionEndsTheWalk) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 5), 5U);
  ASSERT_EQ(world.PublishGroup(chain, 0, 6, 6), 6U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 6), 6U);
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(2, 4));
  world.ExpectQuiet();
}

TEST(Groups, RecurrentStateCountsAtTheBoundaryOnly) {
  GroupWorld world({{.block_tokens = 32, .page_count = 2, .page_bytes = 1000},
                    {.block_tokens = 96, .page_count = 1, .page_bytes = 700, .kind = GroupKind::kRecurrent}});
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 12), 12U);
  for (const std::uint32_t block : {0U, 2U}) ASSERT_EQ(world.PublishGroup(chain, 1, block, 1), 1U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(3, 9));
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 9, {0}, 1));
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  ASSERT_EQ(world.plan().size(), 10U);
  EXPECT_EQ(world.plan().back().group, 1U);
  EXPECT_EQ(world.plan().back().block, 8U);
  world.ExpectQuiet();
}

TEST(Groups, StateAloneHoldsOneBlockPerBoundary) {
  GroupWorld world({{.block_tokens = 64, .page_count = 1, .page_bytes = 700, .kind = GroupKind::kRecurrent}});
  const auto chain = Chain(1, 9);
  for (const std::uint32_t block : {1U, 4U, 7U}) ASSERT_EQ(world.PublishGroup(chain, 0, block, 1), 1U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 5, 8));
  EXPECT_EQ(world.found_pins(), 3U);
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 5, {0}, 1));
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  EXPECT_THAT(world.Places(), ElementsAre(std::pair(0U, 4U)));
  EXPECT_EQ(world.cache().gauges().granted_pins, 1U);
  world.ExpectQuiet();
}

TEST(Groups, EveryShardMustHaveItsPart) {
  GroupWorld world(FullAndWindow(), 2);
  const auto chain = Chain(1, 8);
  for (const std::uint32_t shard : {0U, 1U}) ASSERT_EQ(world.PublishGroup(chain, 0, 0, 8, shard), 8U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 4, 0), 4U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 2, 1), 2U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4));
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 4, {0, 1}, 1));
  std::set<std::uint64_t> offsets;
  for (const std::uint32_t shard : {0U, 1U}) {
    ASSERT_EQ(world.Plan(world.worker(shard), 1, shard), PlanStatus::kArmed);
    ASSERT_EQ(world.plan().size(), 6U);
    for (const wire::PlanEntry& entry : world.plan()) {
      EXPECT_EQ(entry.slot_checksum, GroupWorld::Checksum(chain[entry.block], entry.group, shard));
      EXPECT_TRUE(offsets.insert(entry.offset).second);
    }
  }
  world.ExpectQuiet();
}

TEST(Groups, AMismatchIsCheckedInItsGroup) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 4);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 4), 4U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 2), 2U);
  const QueryOutcome outcome = world.Ask(chain);
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 4, {0}, 1));
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  const wire::PlanEntry doubted = world.plan()[5];
  ASSERT_TRUE(world.End(world.worker(), 1, 0, wire::EndResult::kMismatch, {5}));
  const auto requests = world.service().TakeVerifyRequests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].key.group, 1U);
  EXPECT_EQ(requests[0].page_bytes, 500U);
  EXPECT_EQ(requests[0].offset, doubted.offset);
  EXPECT_EQ(requests[0].key.hash, chain[3]);
  // The window's part is not offered meanwhile, nor after it was found wrong; the full one stays.
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(2));
  world.service().VerifyDone(requests[0].id, false, world.now());
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(2));
  EXPECT_EQ(world.PublishGroup(chain, 0, 0, 4), 0U);
  EXPECT_EQ(world.PublishGroup(chain, 1, 0, 2), 1U);
  EXPECT_THAT(world.Ask(chain).boundaries, ElementsAre(2, 4));
  world.ExpectQuiet();
}

TEST(Groups, ALongWalkOffersTheSameInManySteps) {
  WorldOptions options;
  options.limits.step_hashes = 7;
  GroupWorld world(FullAndWindow(), 1, options);
  const auto chain = Chain(1, 100);
  for (std::uint32_t first = 0; first < 100; first += 5) ASSERT_EQ(world.PublishGroup(chain, 0, first, 5), 5U);
  for (const std::uint32_t block : {0U, 20U, 21U, 22U, 48U, 49U}) ASSERT_EQ(world.PublishGroup(chain, 1, block, 1), 1U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 44, 46, 100));
  EXPECT_EQ(world.found_pins(), 100U);
  // A walk that ends half way leaves nothing.
  wire::QueryView view;
  view.header.group = wire::kAllGroups;
  view.header.request_key_lo = 2;
  view.hashes = chain;
  for (int steps = 0; steps < 20; ++steps) {
    Result<QueryOutcome> walk = world.service().StartQuery(world.worker(), view, world.now());
    for (int i = 0; i < steps && walk->more; ++i) walk = world.service().ContinueQuery(world.worker(), world.now());
    ASSERT_TRUE(walk->more);
    world.service().CancelStep(world.worker(), world.now());
    EXPECT_EQ(world.found_pins(), 100U);
  }
  world.ExpectQuiet();
}

TEST(Groups, WhatIsOfferedFitsTheBudget) {
  WorldOptions options;
  options.pool_bytes = 8 * kMiB;
  options.max_blocks = 1024;
  options.limits.lease_percent_per_instance = 1;  // 80 KiB: full blocks take 2 KiB, windows half a KiB
  GroupWorld world(FullAndWindow(), 1, options);
  const auto chain = Chain(1, 100);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 100), 100U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 50), 50U);
  const QueryOutcome outcome = world.Ask(chain);
  EXPECT_GT(outcome.found_blocks, 20U);
  EXPECT_LT(outcome.found_blocks, 42U);
  EXPECT_EQ(outcome.boundaries.back(), outcome.found_blocks);
  EXPECT_EQ(outcome.boundaries.size() * 2, outcome.found_blocks);
  EXPECT_EQ(world.found_pins(), outcome.found_blocks);
  EXPECT_LE(world.service().gauges().leased_bytes, 8 * kMiB / 100);
  EXPECT_GT(world.service().counters().query_blocks_over_budget, 0U);
  // What only a boundary out of reach needed is not held: each pinned block belongs to the last boundary.
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, outcome.found_blocks, {0}, 1));
  EXPECT_EQ(world.cache().gauges().granted_pins, outcome.found_blocks);
  world.ExpectQuiet();
}

TEST(Groups, AWholePrefixIsOneBoundary) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 8);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 8), 8U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 3), 3U);
  EXPECT_EQ(world.Ask(chain, 0, wire::QueryMode::kFullPrefix).found_blocks, 0U);
  EXPECT_EQ(world.found_pins(), 0U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 3, 1), 1U);
  EXPECT_THAT(world.Ask(chain, 0, wire::QueryMode::kFullPrefix).boundaries, ElementsAre(8));
  EXPECT_EQ(world.Ask(std::span(chain).first(7), 0, wire::QueryMode::kFullPrefix).found_blocks, 0U);
  const QueryOutcome seen = world.Ask(chain, 0, wire::QueryMode::kDiscovery);
  EXPECT_THAT(seen.boundaries, ElementsAre(2, 4, 6, 8));
  EXPECT_TRUE(seen.lease.is_none());
  world.ExpectQuiet();
}

TEST(Groups, ASelectedReadIsTheDemandOrRefused) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 8);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 8), 8U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 2, 1), 1U);
  const auto ask = [&](const std::vector<wire::HashView>& views, std::uint32_t prefix = 2) {
    return world.TryAsk(chain, prefix, wire::QueryMode::kSelected, views);
  };
  const std::vector<wire::HashView> exact = {{.group = 1, .first = 3, .count = 2},
                                             {.group = 0, .first = 0, .count = 6}};
  ASSERT_TRUE(ask(exact));
  EXPECT_EQ(ask(exact)->found_blocks, 0U) << "not all of it is here";
  ASSERT_EQ(world.PublishGroup(chain, 1, 3, 1), 1U);
  EXPECT_THAT(ask(exact)->boundaries, ElementsAre(6));
  const std::vector<std::vector<wire::HashView>> wrong = {
      {{.group = 0, .first = 0, .count = 6}},
      {{.group = 1, .first = 3, .count = 2}},
      {{.group = 1, .first = 5, .count = 1}, {.group = 0, .first = 0, .count = 6}},
      {{.group = 1, .first = 1, .count = 3}, {.group = 0, .first = 0, .count = 6}},
      {{.group = 1, .first = 2, .count = 2}, {.group = 0, .first = 0, .count = 6}},
      {{.group = 1, .first = 3, .count = 2}, {.group = 0, .first = 1, .count = 5}},
  };
  for (const auto& views : wrong) EXPECT_EQ(CodeOf(ask(views)), Code::kRefused);
  EXPECT_EQ(CodeOf(ask({{.group = 2, .first = 0, .count = 1}})), Code::kInvalid);
  EXPECT_EQ(CodeOf(ask(exact, 3)), Code::kRefused);
  world.ExpectQuiet();
}

TEST(Groups, AnExpiredLeaseIsPinnedAgainByItsDemand) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world.PublishGroup(chain, 0, 0, 12), 12U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 0, 2), 2U);
  ASSERT_EQ(world.PublishGroup(chain, 1, 4, 2), 2U);
  const QueryOutcome outcome = world.Ask(chain);
  world.Advance(11 * kSecond);
  EXPECT_EQ(world.found_pins(), 0U);
  ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, 12, {0}, 1));
  ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
  EXPECT_EQ(world.plan().size(), 14U);
  EXPECT_EQ(world.service().counters().grants_late, 1U);
  world.ExpectQuiet();
}

TEST(Groups, OneDecisionAdmitsABlockForAllGroupsAndShards) {
  WorldOptions options;
  options.pool_bytes = 8 * kMiB;
  options.limits.reserved_percent_per_session = 1;  // about 41 blocks of the full group
  GroupWorld world(FullAndWindow(), 2, options);
  const auto chain = Chain(1, 60);
  ASSERT_TRUE(world.ReserveGroup(chain, 0, 0, 60));
  const auto admitted = static_cast<std::uint32_t>(std::ranges::count(
      world.reserved(), static_cast<std::uint32_t>(wire::ReserveStatus::kSlot), &wire::ReserveEntry::status));
  ASSERT_GT(admitted, 10U);
  ASSERT_LT(admitted, 58U);
  // The other shard and the other group have room, and follow.
  EXPECT_EQ(world.PublishGroup(chain, 1, 0, 30, 1), admitted / 2);
  EXPECT_EQ(world.PublishGroup(chain, 0, 0, 60, 1), admitted);
  world.ExpectQuiet();
}

// Random parts of prompts under random rules, against the contract's own list of boundaries.
class RandomGroups {
 public:
  explicit RandomGroups(std::uint64_t seed) : prng_(seed) {
    shapes_ = RandomShapes(prng_);
    options_.limits.step_hashes = 1 + static_cast<std::uint32_t>(prng_.Below(40));
  }

  void Run() {
    const state::RecoveryContract contract = ContractOf(shapes_, 1).value();
    GroupWorld world(shapes_, 1, options_);
    const auto chain = Chain(7, 48);
    const std::vector<std::uint32_t> present = Publish(world, contract, chain);
    const auto prefix = static_cast<std::uint32_t>(prng_.Below(20));
    std::vector<std::uint32_t> boundaries;
    std::set<std::uint32_t> needed;
    for (const std::uint32_t boundary : contract.Boundaries(prefix, std::span(present).subspan(prefix))) {
      boundaries.push_back(boundary - prefix);
      const std::vector<state::GroupDemand> demands = contract.Demand(prefix, boundary).value();
      for (const state::GroupDemand& demand : demands) {
        for (std::uint32_t i = 0; i < demand.block_count; ++i) {
          needed.insert(contract.KeyPosition(demand.group, demand.first_block + i));
        }
      }
    }
    const QueryOutcome outcome = world.Ask(chain, prefix);
    EXPECT_EQ(outcome.found_blocks, boundaries.empty() ? 0 : boundaries.back());
    // Full attention of the hashes' own block size offers every block, without a list.
    const bool single = contract.group_count() == 1 && contract.ratio(0) == 1 && contract.IsDense(0);
    EXPECT_EQ(outcome.boundaries, single ? std::vector<std::uint32_t>() : boundaries);
    EXPECT_EQ(world.found_pins(), needed.size());
    if (!boundaries.empty())
      Restore(world, contract, chain, prefix, boundaries[prng_.Below(boundaries.size())], outcome);
    world.ExpectQuiet();
  }

 private:
  std::vector<std::uint32_t> Publish(GroupWorld& world, const state::RecoveryContract& contract,
                                     std::span<const state::BlockHash> chain) {
    std::vector<std::uint32_t> present(chain.size());
    for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
      const std::uint64_t holes = prng_.Below(4);
      for (std::uint32_t block = 0; (block + 1) * contract.ratio(group) <= chain.size(); ++block) {
        if (prng_.Below(12) < holes) continue;
        EXPECT_EQ(world.PublishGroup(chain, group, block, 1), 1U);
        present[contract.KeyPosition(group, block)] |= 1U << group;
      }
    }
    return present;
  }

  static void Restore(GroupWorld& world, const state::RecoveryContract& contract,
                      std::span<const state::BlockHash> chain, std::uint32_t prefix, std::uint32_t boundary,
                      const QueryOutcome& outcome) {
    ASSERT_TRUE(world.Begin(world.worker(), outcome.lease, boundary, {0}, 1));
    ASSERT_EQ(world.Plan(world.worker(), 1), PlanStatus::kArmed);
    std::size_t demanded = 0;
    const std::vector<state::GroupDemand> demands = contract.Demand(prefix, prefix + boundary).value();
    for (const state::GroupDemand& one : demands) demanded += one.block_count;
    EXPECT_EQ(world.plan().size(), demanded);
    for (const wire::PlanEntry& entry : world.plan()) {
      EXPECT_EQ(entry.slot_checksum, GroupWorld::Checksum(chain[prefix + entry.block], entry.group, 0));
    }
  }

  Prng prng_;
  std::vector<state::GroupShape> shapes_;
  WorldOptions options_;
};

TEST(Groups, OffersAreTheContractsBoundariesAndPinsTheirUnion) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    RandomGroups(seed).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(Groups, WhatDoesNotFitTheGroupsIsRefused) {
  GroupWorld world(FullAndWindow());
  const auto chain = Chain(1, 8);
  wire::ReserveView view{};
  std::vector<wire::ReserveEntry> entries;
  view.hashes = std::span(chain).first(1);
  view.header.block_count = 1;
  view.header.group = 2;
  view.header.slot_bytes = 512;
  EXPECT_EQ(CodeOf(world.service().StartReserve(world.worker(), view, world.now(), entries)), Code::kInvalid);
  view.header.group = 0;
  EXPECT_EQ(CodeOf(world.service().StartReserve(world.worker(), view, world.now(), entries)), Code::kInvalid);
  view.header.group = 1;
  view.header.first_depth = state::kMaxPosition / 2;
  EXPECT_EQ(CodeOf(world.service().StartReserve(world.worker(), view, world.now(), entries)), Code::kInvalid);
  wire::QueryView query;
  query.hashes = chain;
  query.header.group = 0;
  EXPECT_EQ(CodeOf(world.service().StartQuery(world.worker(), query, world.now())), Code::kInvalid)
      << "one group alone is no boundary";
  query.header.group = wire::kAllGroups;
  query.header.prefix_blocks = state::kMaxPosition;
  EXPECT_EQ(CodeOf(world.service().StartQuery(world.worker(), query, world.now())), Code::kInvalid);
  world.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
