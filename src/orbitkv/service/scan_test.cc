// What each mode of a look-up offers of what is resident, and what it pins.
#include <gtest/gtest.h>

#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

class ScanTest : public ::testing::Test {
 protected:
  QueryOutcome Ask(wire::QueryMode mode, std::span<const state::BlockHash> hashes,
                   std::span<const wire::HashView> views = {}) {
    wire::QueryView view;
    view.header.request_key_lo = 1;
    view.header.mode = mode;
    view.hashes = hashes;
    view.views = views;
    Result<QueryOutcome> outcome = world_.service().StartQuery(session_, view, world_.now());
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(session_, world_.now());
    return World::Take(std::move(outcome));
  }
  std::uint64_t pins() { return world_.cache().gauges().found_pins; }

  World world_;
  SessionId session_ = world_.Join(world_.Worker("one"));
};

TEST_F(ScanTest, AFullPrefixIsAllOrNothing) {
  const auto chain = Chain(1, 1400);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(1300)), 1300U);
  const QueryOutcome part = Ask(wire::QueryMode::kFullPrefix, chain);
  EXPECT_EQ(part.found_blocks, 0U);
  EXPECT_EQ(part.miss_reason, static_cast<std::uint32_t>(wire::MissReason::kIncomplete));
  EXPECT_TRUE(part.lease.is_none());
  EXPECT_EQ(pins(), 0U);
  const QueryOutcome all = Ask(wire::QueryMode::kFullPrefix, std::span(chain).first(1300));
  EXPECT_EQ(all.found_blocks, 1300U);
  EXPECT_EQ(pins(), 1300U);
  world_.ExpectQuiet();
}

TEST_F(ScanTest, DiscoveryPinsNothingAndLeavesTheRequestsLease) {
  const auto chain = Chain(1, 1000);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(700)), 700U);
  const QueryOutcome lease = Ask(wire::QueryMode::kLeasedRead, std::span(chain).first(10));
  const QueryOutcome seen = Ask(wire::QueryMode::kDiscovery, chain);
  EXPECT_EQ(seen.found_blocks, 700U);
  EXPECT_TRUE(seen.lease.is_none());
  EXPECT_EQ(pins(), 10U);
  EXPECT_TRUE(world_.Begin(session_, lease.lease, 10, {0}, 1).has_value());
  world_.ExpectQuiet();
}

TEST_F(ScanTest, ASelectedReadLeasesExactlyItsBlocks) {
  const auto chain = Chain(1, 20);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(10)), 10U);
  const std::vector<wire::HashView> views = {{.first = 8, .count = 2}, {.first = 0, .count = 1}};
  const QueryOutcome read = Ask(wire::QueryMode::kSelected, chain, views);
  EXPECT_EQ(read.found_blocks, 3U);
  EXPECT_EQ(read.boundaries, std::vector<std::uint32_t>{3});
  EXPECT_EQ(pins(), 3U);
  EXPECT_EQ(CodeOf(world_.Begin(session_, read.lease, 2, {0}, 1)), Code::kRefused);
  ASSERT_TRUE(world_.Begin(session_, read.lease, 3, {0}, 2).has_value());
  ASSERT_EQ(world_.Plan(session_, 2), PlanStatus::kArmed);
  EXPECT_EQ(world_.plan()[0].slot_checksum, ChecksumOf(chain[8], 0));
  EXPECT_EQ(world_.plan()[2].slot_checksum, ChecksumOf(chain[0], 0));

  const std::vector<wire::HashView> beyond = {{.first = 0, .count = 11}};
  const QueryOutcome incomplete = Ask(wire::QueryMode::kSelected, chain, beyond);
  EXPECT_EQ(incomplete.found_blocks, 0U);
  EXPECT_TRUE(incomplete.lease.is_none());
  world_.ExpectQuiet();
}

TEST_F(ScanTest, UnknownGroupsAreRefused) {
  wire::QueryView view;
  const auto chain = Chain(1, 2);
  view.hashes = chain;
  view.header.group = 1;
  EXPECT_EQ(CodeOf(world_.service().StartQuery(session_, view, world_.now())), Code::kInvalid);
  view.header.group = wire::kAllGroups;
  EXPECT_TRUE(world_.service().StartQuery(session_, view, world_.now()).has_value());
  const std::vector<wire::HashView> views = {{.group = 3, .first = 0, .count = 1}};
  view.header.mode = wire::QueryMode::kSelected;
  view.views = views;
  EXPECT_EQ(CodeOf(world_.service().StartQuery(session_, view, world_.now())), Code::kInvalid);
}

TEST(ScanBudgetTest, ASessionMayHoldLessThanItsInstance) {
  WorldOptions options;
  options.pool_bytes = 100 * kMiB;
  options.page_bytes = 512 * 1024;  // 1 MiB and a little
  options.max_blocks = 256;
  options.limits.lease_percent_per_instance = 40;
  options.limits.lease_percent_per_session = 10;
  options.limits.reserved_percent_per_session = 100;
  World world(options);
  const SessionId one = world.Join(world.Worker("engine"));
  const SessionId two = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 30);
  ASSERT_EQ(world.Publish(one, chain), 30U);
  const QueryOutcome first = world.Query(one, 1, chain);
  EXPECT_EQ(first.found_blocks, 9U);
  // What it holds already costs nothing again; the other session has a share of its own.
  EXPECT_EQ(world.Found(one, 2, chain), 9U);
  EXPECT_EQ(world.Found(two, 3, chain), 9U);
  ASSERT_TRUE(world.Begin(one, first.lease, 9, {0}, 1).has_value());
  EXPECT_EQ(world.Found(one, 2, chain), 9U) << "granted blocks are the instance's";
  world.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
