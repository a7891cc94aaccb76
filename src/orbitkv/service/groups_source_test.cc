// Look-ups of engines with several cache groups, of which a part is in the pool, a part behind it, and a part nowhere.
#include <gmock/gmock.h>
#include <optional>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/service/test_groups.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::service {
namespace {

using ::testing::ElementsAre;
using wire::QueryMode;
using wire::TicketState;

enum class Where : std::uint8_t { kNowhere, kPool, kBehind };

// One prompt of one engine, with a source.
class Split {
 public:
  Split(std::vector<state::GroupShape> shapes, std::uint32_t shards, std::uint32_t hashes, WorldOptions options = {})
      : contract_(ContractOf(shapes, shards).value()),
        world_(shapes, shards, options),
        shapes_(std::move(shapes)),
        chain_(Chain(7, hashes)),
        here_(hashes, ~std::uint32_t{0}),
        had_(hashes, ~std::uint32_t{0}) {
    world_.service().SetSource(&source_);
    Registration again = world_.Worker("engine", 0, shards, 0, shards);
    again.groups = shapes_;
    digest_ = world_.service().Register(world_.worker(), again, world_.now()).namespace_digest;
  }

  GroupWorld& world() { return world_; }
  ::orbitkv::testing::RamSource& source() { return source_; }
  const state::RecoveryContract& contract() const { return contract_; }
  const std::vector<state::BlockHash>& chain() const { return chain_; }

  // Every component of a block of the group is put where it is said to be.
  void Put(std::uint32_t group, std::uint32_t block, const std::vector<Where>& shards) {
    const std::uint32_t position = contract_.KeyPosition(group, block);
    for (std::uint32_t shard = 0; shard < shards.size(); ++shard) {
      if (shards[shard] != Where::kPool) here_[position] &= ~(1U << group);
      if (shards[shard] == Where::kNowhere) had_[position] &= ~(1U << group);
      if (shards[shard] == Where::kPool) {
        EXPECT_EQ(world_.PublishGroup(chain_, group, block, 1, shard), 1U);
      } else if (shards[shard] == Where::kBehind) {
        Keep(group, block, shard);
      }
    }
  }
  void Put(std::uint32_t group, std::uint32_t first, std::uint32_t count, Where where) {
    for (std::uint32_t block = first; block < first + count; ++block) {
      Put(group, block, std::vector(contract_.shard_count(), where));
    }
  }
  // What is not put anywhere is nowhere.
  std::vector<std::uint32_t> Boundaries(std::uint32_t prefix, bool with_source) const {
    const auto& present = with_source ? had_ : here_;
    std::vector<std::uint32_t> boundaries;
    for (const std::uint32_t one : contract_.Boundaries(prefix, std::span(present).subspan(prefix))) {
      boundaries.push_back(one - prefix);
    }
    return boundaries;
  }

  Result<QueryOutcome> Submit(std::uint64_t operation, std::uint32_t prefix, QueryMode mode,
                              std::span<const wire::HashView> views = {}, std::uint32_t hashes = ~0U) {
    wire::QueryView view;
    view.header.request_key_lo = operation;
    view.header.mode = mode;
    view.header.group = wire::kAllGroups;
    view.header.prefix_blocks = prefix;
    if (mode == QueryMode::kPrepare) view.header.consumer_key_lo = 5;
    view.header.wait_ns = mode == QueryMode::kDiscovery || mode == QueryMode::kWarmUp ? 0 : kSecond;
    view.hashes = std::span(chain_).subspan(prefix);
    view.hashes = view.hashes.first(std::min<std::size_t>(view.hashes.size(), hashes));
    view.views = views;
    const bool told_at_once = mode == QueryMode::kDiscovery || mode == QueryMode::kWarmUp;
    auto outcome = world_.service().StartQuery(world_.worker(), view, world_.now(),
                                               {told_at_once ? 0 : operation, told_at_once ? 0U : 1U});
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(world_.worker(), world_.now());
    return outcome;
  }
  // Works until nothing is left to do; how many components were read.
  std::size_t Settle() {
    std::size_t read = 0;
    for (bool again = true; again;) {
      again = world_.service().Work(world_.now());
      for (const LoadRequest& request : world_.service().TakeLoads()) {
        source_.Submit(request, world_.now());
        ++read;
      }
      for (const auto& done : source_.Step(world_.now())) {
        world_.service().LoadDone(done.id, done.result, done.checksum, world_.now());
        again = true;
      }
    }
    return read;
  }
  QueryOutcome Poll(std::uint64_t operation) {
    const wire::PollRequest request{.operation = operation, .revision = 1};
    std::vector<wire::PollEntry> entries;
    std::vector<std::uint32_t> boundaries;
    EXPECT_TRUE(
        world_.service().PollQueries(world_.worker(), std::span(&request, 1), world_.now(), entries, boundaries));
    EXPECT_EQ(entries[0].state, static_cast<std::uint32_t>(TicketState::kReady));
    return {.lease = LeaseId(entries[0].lease), .found_blocks = entries[0].found, .boundaries = boundaries};
  }
  // The look-up's answer, whenever it comes.
  QueryOutcome Ask(std::uint64_t operation, std::uint32_t prefix, QueryMode mode = QueryMode::kLeasedRead,
                   std::span<const wire::HashView> views = {}, std::uint32_t hashes = ~0U) {
    QueryOutcome outcome = World::Take(Submit(operation, prefix, mode, views, hashes));
    if (!outcome.loading) return outcome;
    Settle();
    return Poll(operation);
  }
  // Takes the boundary for all shards and looks at every component of it.
  void ExpectRestored(const QueryOutcome& outcome, std::uint32_t prefix, std::uint32_t boundary, std::uint64_t grant) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t shard = 0; shard < contract_.shard_count(); ++shard) ranks.push_back(shard);
    ASSERT_TRUE(world_.Begin(world_.worker(), outcome.lease, boundary, ranks, grant).has_value());
    std::size_t demanded = 0;
    const auto demands = contract_.Demand(prefix, prefix + boundary).value();
    for (const state::GroupDemand& one : demands) demanded += one.block_count;
    for (const std::uint32_t shard : ranks) {
      ASSERT_EQ(world_.Plan(world_.worker(shard), grant, shard), PlanStatus::kArmed);
      EXPECT_EQ(world_.plan().size(), demanded);
      for (const wire::PlanEntry& entry : world_.plan()) {
        EXPECT_EQ(entry.slot_checksum, GroupWorld::Checksum(chain_[prefix + entry.block], entry.group, shard));
      }
      EXPECT_TRUE(world_.End(world_.worker(shard), grant, shard).has_value());
    }
  }
  void ExpectQuiet() {
    world_.EndAllSessions();
    Settle();
    world_.ExpectQuiet();
  }

 private:
  void Keep(std::uint32_t group, std::uint32_t block, std::uint32_t shard) {
    const std::uint32_t position = contract_.KeyPosition(group, block);
    SourceRecord record{.depth = position, .checksum = GroupWorld::Checksum(chain_[position], group, shard)};
    if (block > 0) record.parent = chain_[contract_.KeyPosition(group, block - 1)];
    source_.Put({{digest_, chain_[position], group, shard}, SlotBytes(shapes_[group])}, record);
  }

  const state::RecoveryContract contract_;
  ::orbitkv::testing::RamSource source_;
  GroupWorld world_;
  std::vector<state::GroupShape> shapes_;
  std::vector<state::BlockHash> chain_;
  state::Digest digest_{};
  std::vector<std::uint32_t> here_;  // by position: groups whose components are all in the pool
  std::vector<std::uint32_t> had_;   // in the pool or behind it
};

TEST(GroupsBehind, AWindowIsReadWhereItsPromptIsInThePool) {
  Split split(FullAndWindow(), 1, 12);
  split.Put(0, 0, 12, Where::kPool);
  split.Put(1, 0, 4, Where::kNowhere);
  split.Put(1, 4, 2, Where::kBehind);
  EXPECT_EQ(split.world().Ask(split.chain()).found_blocks, 0U) << "nothing without waiting";
  const QueryOutcome found = World::Take(split.Submit(2, 0, QueryMode::kDiscovery));
  EXPECT_THAT(found.boundaries, ElementsAre(12));
  EXPECT_EQ(found.found_blocks, 12U);
  const QueryOutcome submitted = World::Take(split.Submit(1, 0, QueryMode::kLeasedRead));
  ASSERT_TRUE(submitted.loading);
  // While the window is read, the prompt may not be taken away.
  static_cast<void>(split.world().service().Work(split.world().now()));
  EXPECT_EQ(split.world().found_pins(), 12U);
  EXPECT_EQ(split.Settle(), 2U);
  const QueryOutcome outcome = split.Poll(1);
  EXPECT_THAT(outcome.boundaries, ElementsAre(12));
  split.ExpectRestored(outcome, 0, 12, 1);
  EXPECT_EQ(split.world().service().counters().query_blocks_behind, 12U);
  split.ExpectQuiet();
}

TEST(GroupsBehind, OnlyWhatTheBoundaryNeedsIsRead) {
  Split split(FullAndWindow(), 1, 12);
  split.Put(0, 0, 12, Where::kBehind);
  split.Put(1, 0, 6, Where::kBehind);
  ASSERT_TRUE(World::Take(split.Submit(1, 0, QueryMode::kLeasedRead)).loading);
  EXPECT_EQ(split.Settle(), 14U) << "the prompt and the last two blocks of the window";
  EXPECT_EQ(split.Poll(1).found_blocks, 12U);
  split.ExpectQuiet();
}

TEST(GroupsBehind, AReadThatFailsLeavesASmallerBoundary) {
  Split split(FullAndWindow(), 1, 12);
  split.Put(0, 0, 12, Where::kPool);
  split.Put(1, 0, 2, Where::kPool);
  split.Put(1, 2, 2, Where::kNowhere);
  split.Put(1, 4, 2, Where::kBehind);
  split.source().set_fault([](const ComponentKey&) { return ::orbitkv::testing::RamSource::Fault::kShort; });
  const QueryOutcome outcome = split.Ask(1, 0);
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4));
  split.ExpectRestored(outcome, 0, 4, 1);
  EXPECT_EQ(split.world().found_pins(), 0U);
  split.ExpectQuiet();
}

TEST(GroupsBehind, ABoundaryThatMayNotBeLeasedIsNotReadFor) {
  WorldOptions options;
  options.pool_bytes = 8 * kMiB;
  options.limits.lease_percent_per_instance = 1;  // about forty blocks
  Split split(FullAndWindow(), 1, 60, options);
  split.Put(0, 0, 60, Where::kBehind);
  split.Put(1, 0, 30, Where::kBehind);
  const QueryOutcome outcome = split.Ask(1, 0);
  EXPECT_GT(outcome.found_blocks, 30U);
  EXPECT_LT(outcome.found_blocks, 42U);
  split.ExpectQuiet();
}

TEST(GroupsBehind, ABoundaryCloseBehindThePrefixIsReadFor) {
  Split split(FullAndWindow(), 1, 4);
  split.Put(0, 0, 4, Where::kBehind);
  split.Put(1, 0, 2, Where::kBehind);
  const QueryOutcome outcome = split.Ask(1, 3);
  EXPECT_THAT(outcome.boundaries, ElementsAre(1));
  split.ExpectRestored(outcome, 3, 1, 1);
  split.ExpectQuiet();
}

TEST(GroupsBehind, EachBlocksTierIsTold) {
  Split split(FullAndWindow(), 1, 6);
  split.Put(0, 0, 2, Where::kPool);
  split.Put(0, 2, 2, Where::kBehind);
  split.Put(0, 4, 2, Where::kNowhere);
  split.Put(1, 0, 1, Where::kPool);
  split.Put(1, 1, 1, Where::kBehind);
  split.Put(1, 2, 1, Where::kNowhere);
  wire::QueryView view;
  view.header.mode = QueryMode::kDiscovery;
  view.header.group = wire::kAllGroups;
  view.header.flags = wire::kTellTiers;
  view.hashes = split.chain();
  const QueryOutcome outcome =
      World::Take(split.world().service().StartQuery(split.world().worker(), view, split.world().now()));
  using enum wire::Tier;
  EXPECT_EQ(outcome.tiers, (std::vector{kPool, kPool, kBehind, kBehind, kAbsent, kAbsent}));
  EXPECT_THAT(outcome.boundaries, ElementsAre(2, 4));
  split.ExpectQuiet();
}

// Random rules, and each component in the pool, behind it or nowhere, against the contract's own list of boundaries.
class RandomSplit {
 public:
  explicit RandomSplit(std::uint64_t seed) : prng_(seed) {
    shapes = RandomShapes(prng_);
    options.limits.step_hashes = 1 + static_cast<std::uint32_t>(prng_.Below(40));
    options.limits.load_percent = prng_.Below(2) == 0 ? 1 : 25;
    options.limits.warm_up_percent = 1;
    options.pool_bytes = prng_.Below(2) == 0 ? 4 * kMiB : 64 * kMiB;
    shards = 1 + static_cast<std::uint32_t>(prng_.Below(2));
  }

  void Run() {
    Split split(shapes, shards, 48, options);
    Scatter(split);
    const auto prefix = static_cast<std::uint32_t>(prng_.Below(20));
    const std::vector<std::uint32_t> all = split.Boundaries(prefix, true);
    const std::uint32_t best = all.empty() ? 0 : all.back();
    const auto& contract = split.contract();
    const bool single = contract.group_count() == 1 && contract.ratio(0) == 1 && contract.IsDense(0);
    const QueryOutcome discovered = World::Take(split.Submit(1, prefix, QueryMode::kDiscovery));
    EXPECT_EQ(discovered.found_blocks, best);
    if (!single) {
      EXPECT_EQ(discovered.boundaries, all);
    }
    EXPECT_EQ(split.world().found_pins(), 0U);
    switch (prng_.Below(5)) {
      case 0: {
        const QueryOutcome outcome = split.Ask(2, prefix);
        ExpectBest(split, outcome, prefix, best, single);
        break;
      }
      case 1: {
        ASSERT_TRUE(split.Submit(2, prefix, QueryMode::kWarmUp).has_value());
        split.Settle();
        const QueryOutcome outcome = split.world().Ask(split.chain(), prefix);
        ExpectBest(split, outcome, prefix, best, single);
        break;
      }
      case 2: {
        ASSERT_TRUE(World::Take(split.Submit(2, prefix, QueryMode::kPrepare)).loading);
        split.Settle();
        const QueryOutcome outcome = World::Take(split.world().service().ClaimQuery(
            split.world().worker(), {.consumer_key_lo = 5, .revision = 1}, split.world().now()));
        ExpectBest(split, outcome, prefix, best, single);
        break;
      }
      case 3: {
        if (best == 0) break;
        const std::vector<wire::HashView> views = ViewsOf(contract, prefix, best);
        if (views.empty()) break;
        const QueryOutcome outcome = split.Ask(2, prefix, QueryMode::kSelected, views, best);
        ExpectBest(split, outcome, prefix, single ? views[0].count : best, single);
        break;
      }
      default: {
        const QueryOutcome outcome = split.Ask(2, prefix, QueryMode::kFullPrefix);
        const bool whole = best == 48 - prefix;
        EXPECT_EQ(outcome.found_blocks, whole ? best : 0U);
        if (whole) split.ExpectRestored(outcome, prefix, best, 1);
        break;
      }
    }
    split.ExpectQuiet();
  }

 private:
  void Scatter(Split& split) {
    const auto& contract = split.contract();
    for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
      const std::uint64_t holes = prng_.Below(3);
      const std::uint64_t behind = prng_.Below(13);
      for (std::uint32_t block = 0; (block + 1) * contract.ratio(group) <= 48; ++block) {
        std::vector<Where> places(shards);
        const bool hole = prng_.Below(14) < holes;
        for (Where& place : places) place = prng_.Below(12) < behind ? Where::kBehind : Where::kPool;
        if (hole) places[prng_.Below(shards)] = Where::kNowhere;
        split.Put(group, block, places);
      }
    }
  }
  static std::vector<wire::HashView> ViewsOf(const state::RecoveryContract& contract, std::uint32_t prefix,
                                             std::uint32_t boundary) {
    std::vector<wire::HashView> views;
    const auto demands = contract.Demand(prefix, prefix + boundary).value();
    for (const state::GroupDemand& one : demands) {
      if (one.block_count == 0) continue;
      views.push_back({.group = one.group,
                       .first = contract.KeyPosition(one.group, one.first_block) - prefix,
                       .count = one.block_count});
    }
    return views;
  }
  static void ExpectBest(Split& split, const QueryOutcome& outcome, std::uint32_t prefix, std::uint32_t best,
                         bool single) {
    ASSERT_EQ(outcome.found_blocks, best);
    if (best == 0) return;
    if (!single) {
      EXPECT_EQ(outcome.boundaries.back(), best);
    }
    split.ExpectRestored(outcome, prefix, best, 1);
  }

  Prng prng_;

 public:
  std::vector<state::GroupShape> shapes;
  std::uint32_t shards = 1;
  WorldOptions options;
};

TEST(GroupsBehind, WhatIsOfferedIsTheContractsBestBoundary) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomSplit(seed).Run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace orbitkv::service
