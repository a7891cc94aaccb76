#include "orbitkv/service/lookups.h"

#include <cmath>
#include <gtest/gtest.h>

#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

TEST(DistinctBlocksTest, AMillionHashesWithinOnePercent) {
  double sum = 0;
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    DistinctBlocks distinct;
    const auto chain = Chain(static_cast<std::uint64_t>(round) + 1, 1'000'000);
    for (const state::BlockHash& hash : chain) distinct.Add(hash);
    const double error = distinct.estimate() / 1e6 - 1;
    sum += error;
    EXPECT_LT(std::abs(error), round == 0 ? 0.01 : 0.03) << round;
    // What was counted before changes nothing.
    const double before = distinct.estimate();
    for (const state::BlockHash& hash : std::span(chain).first(1000)) distinct.Add(hash);
    EXPECT_EQ(distinct.estimate(), before);
  }
  EXPECT_LT(std::abs(sum / kRounds), 0.006) << "no bias";
}

TEST(DistinctBlocksTest, SmallNumbersAreNearlyExact) {
  DistinctBlocks distinct;
  EXPECT_EQ(distinct.estimate(), 0);
  for (const state::BlockHash& hash : Chain(1, 100)) distinct.Add(hash);
  EXPECT_NEAR(distinct.estimate(), 100, 2);
}

class LookupsTest : public ::testing::Test {
 protected:
  QueryOutcome Ask(std::uint64_t request, std::uint32_t attempt, std::span<const state::BlockHash> hashes,
                   wire::QueryMode mode = wire::QueryMode::kLeasedRead, std::vector<wire::HashView> views = {}) {
    wire::QueryView view;
    view.header.request_key_lo = request;
    view.header.attempt = attempt;
    view.header.mode = mode;
    view.views = views;
    view.hashes = hashes;
    auto outcome = world_.service().StartQuery(session_, view, world_.now());
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(session_, world_.now());
    return World::Take(std::move(outcome));
  }
  InstanceStatus Figures() {
    while (world_.service().Work(world_.now())) {
    }
    return world_.service().instances().at(0);
  }

  World world_;
  SessionId session_ = world_.Join(world_.Worker("one"));
};

TEST_F(LookupsTest, ALookUpCountsOnceWhenItsRestoreBegins) {
  const auto chain = Chain(1, 20);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(10)), 10U);
  // The engine asks again and again until it schedules the request.
  for (int i = 0; i < 5; ++i) Ask(1, 1, chain);
  EXPECT_EQ(Figures().lookups, 0U) << "it is not over";
  const QueryOutcome last = Ask(1, 1, chain);
  ASSERT_TRUE(world_.Begin(session_, last.lease, 8, {0}, 1).has_value());
  EXPECT_EQ(Figures().lookups, 1U);
  EXPECT_EQ(Figures().lookup_blocks, 20U);
  EXPECT_EQ(Figures().hit_blocks, 8U);
}

TEST_F(LookupsTest, ReleaseExpiryAndTheNextAttemptEndOne) {
  const auto chain = Chain(1, 10);
  ASSERT_EQ(world_.Publish(session_, chain), 10U);
  Ask(1, 1, chain);
  ASSERT_TRUE(world_.ReleaseLease(session_, Ask(1, 2, chain).lease).has_value());
  EXPECT_EQ(Figures().lookups, 2U) << "the first attempt ended with the second";
  EXPECT_EQ(Figures().hit_blocks, 0U);
  Ask(2, 1, chain);
  world_.Advance(70 * kSecond);
  EXPECT_EQ(Figures().lookups, 3U);
  EXPECT_NEAR(Figures().unbounded_hit_rate, 2.0 / 3, 0.02);
}

TEST_F(LookupsTest, OneThatFindsNothingCountsWithItsAnswerAndOnce) {
  const auto chain = Chain(1, 5);
  for (int i = 0; i < 3; ++i) Ask(1, 7, chain);
  EXPECT_EQ(Figures().lookups, 1U);
  Ask(1, 8, chain);
  EXPECT_EQ(Figures().lookups, 2U);
  EXPECT_NEAR(Figures().unbounded_hit_rate, 0.5, 0.02);
}

TEST_F(LookupsTest, OneThatFindsSomethingLaterCountsOnceWithItsHits) {
  const auto chain = Chain(1, 6);
  EXPECT_EQ(Ask(1, 1, chain).found_blocks, 0U);
  ASSERT_EQ(world_.Publish(session_, chain), 6U);
  ASSERT_TRUE(world_.Begin(session_, Ask(1, 1, chain).lease, 6, {0}, 1).has_value());
  EXPECT_EQ(Figures().lookups, 1U);
  EXPECT_EQ(Figures().lookup_blocks, 6U);
  EXPECT_EQ(Figures().hit_blocks, 6U);
}

TEST_F(LookupsTest, ASelectedReadIsPartOfItsDiscovery) {
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world_.Publish(session_, chain), 12U);
  EXPECT_EQ(Ask(1, 1, chain, wire::QueryMode::kDiscovery).found_blocks, 12U);
  const QueryOutcome read = Ask(1, 1, chain, wire::QueryMode::kSelected, {{.first = 4, .count = 3}});
  ASSERT_TRUE(world_.Begin(session_, read.lease, 3, {0}, 1).has_value());
  EXPECT_EQ(Figures().lookups, 1U);
  EXPECT_EQ(Figures().lookup_blocks, 12U);
  EXPECT_EQ(Figures().hit_blocks, 3U);
}

TEST_F(LookupsTest, CountingTakesBoundedSteps) {
  Ask(1, 1, Chain(1, 2000));
  int calls = 1;
  while (world_.service().Work(world_.now())) ++calls;
  EXPECT_EQ(calls, 4);
}

}  // namespace
}  // namespace orbitkv::service
