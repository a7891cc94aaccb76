// Begins, plans and commits of many blocks go on in steps, with other sessions' calls in between.
#include <gtest/gtest.h>

#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

constexpr std::uint32_t kBlocks = 16'384;

class LargeTest : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.max_blocks = 20'000;
    options.limits.lease_percent_per_instance = 90;
    options.limits.reserved_percent_per_session = 90;
    return options;
  }
  LargeTest() {
    for (std::uint32_t first = 0; first < kBlocks; first += wire::kMaxBlocksPerReserve) {
      const auto part = std::span(chain_).subspan(first, wire::kMaxBlocksPerReserve);
      const auto parent = first == 0 ? std::nullopt : std::optional(chain_[first - 1]);
      const auto reserved = World::Take(world_.TryReserve(session_, part, 0, first, parent));
      EXPECT_EQ(world_.Commit(session_, reserved.reservation, part), wire::kMaxBlocksPerReserve);
    }
    lease_ = world_.Query(session_, 1, chain_).lease;
  }
  wire::BeginView View(std::uint32_t blocks) const { return {.header = {blocks, 1}, .ranks = std::span(&rank_, 1)}; }
  Result<BeginProgress> Start(std::uint64_t grant, std::uint32_t blocks = kBlocks) {
    return world_.service().StartBegin(session_, lease_, View(blocks), GrantId(grant), world_.now());
  }
  std::uint64_t granted() { return world_.cache().gauges().granted_pins; }
  // The other session is served while the large call is not finished.
  void ExpectOthersServed() { EXPECT_EQ(world_.Found(other_, 7, std::span(chain_).first(256)), 256U); }

  World world_{Options()};
  const std::vector<state::BlockHash> chain_ = Chain(1, kBlocks);
  const std::uint32_t rank_ = 0;
  SessionId session_ = world_.Join(world_.Worker("one"));
  SessionId other_ = world_.Join(world_.Worker("two"));
  LeaseId lease_;
};

TEST_F(LargeTest, BeginAndPlanGoOnInBoundedSteps) {
  auto begun = Start(1);
  std::uint64_t pinned = 0;
  int steps = 1;
  for (; begun && begun->more; ++steps) {
    EXPECT_LE(granted() - pinned, 512U);
    pinned = granted();
    ExpectOthersServed();
    EXPECT_EQ(CodeOf(Start(9)), Code::kBusy) << "one call of a session at a time";
    begun = world_.service().ContinueBegin(session_, world_.now());
  }
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(steps, 32);
  EXPECT_EQ(granted(), kBlocks);
  std::vector<wire::PlanEntry> plan;
  auto planned = world_.service().StartPlan(session_, GrantId(1), Rank(0), world_.now(), plan);
  EXPECT_EQ(world_.service().gauges().armed_ranks, 0U) << "nobody has the plan yet";
  for (steps = 1; planned && planned->more; ++steps) {
    EXPECT_LE(plan.size(), 512U * static_cast<unsigned>(steps));
    ExpectOthersServed();
    planned = world_.service().ContinuePlan(session_, world_.now(), plan);
  }
  ASSERT_TRUE(planned.has_value());
  EXPECT_EQ(steps, 32);
  ASSERT_EQ(plan.size(), kBlocks);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(plan[i].slot_checksum, ChecksumOf(chain_[i], 0));
    ASSERT_EQ(plan[i].block, i);
  }
  ASSERT_TRUE(world_.End(session_, 1).has_value());
  world_.ExpectQuiet();
}

TEST_F(LargeTest, ABeginThatIsGivenUpPinsNothing) {
  ASSERT_TRUE(Start(1)->more);
  world_.service().CancelStep(session_, world_.now());
  EXPECT_EQ(granted(), 0U);
  EXPECT_EQ(world_.Plan(session_, 1), PlanStatus::kGone);
  // The lease is as it was.
  EXPECT_TRUE(world_.Begin(session_, lease_, kBlocks, {0}, 2).has_value());
  world_.ExpectQuiet();
}

TEST_F(LargeTest, ALeaseMayExpireOrEndBetweenSteps) {
  ASSERT_TRUE(Start(1)->more);
  world_.Advance(11 * kSecond);
  EXPECT_EQ(world_.service().gauges().leases_remembered, 1U);
  auto begun = world_.service().ContinueBegin(session_, world_.now());
  while (begun && begun->more) begun = world_.service().ContinueBegin(session_, world_.now());
  ASSERT_TRUE(begun.has_value());
  EXPECT_EQ(world_.service().counters().grants_late, 1U);
  EXPECT_EQ(granted(), kBlocks);
  ASSERT_TRUE(world_.ReleaseGrant(session_, 1).has_value());

  lease_ = world_.Query(session_, 1, chain_).lease;
  ASSERT_TRUE(Start(2)->more);
  // Another session of the instance asks the same request again.
  const SessionId twin = world_.Join(world_.Worker("one"));
  ASSERT_EQ(world_.Found(twin, 1, std::span(chain_).first(3)), 3U);
  EXPECT_EQ(CodeOf(world_.service().ContinueBegin(session_, world_.now())), Code::kNotFound);
  EXPECT_EQ(granted(), 0U);
  EXPECT_EQ(world_.Plan(session_, 2), PlanStatus::kGone);
  world_.ExpectQuiet();
}

TEST_F(LargeTest, AGrantGivenUpWhileItBeginsDoesNotBegin) {
  ASSERT_TRUE(Start(1)->more);
  const SessionId twin = world_.Join(world_.Worker("one"));
  ASSERT_TRUE(world_.ReleaseGrant(twin, 1).has_value());
  auto begun = world_.service().ContinueBegin(session_, world_.now());
  while (begun && begun->more) begun = world_.service().ContinueBegin(session_, world_.now());
  EXPECT_EQ(CodeOf(begun), Code::kRefused);
  EXPECT_EQ(granted(), 0U);
  world_.ExpectQuiet();
}

TEST_F(LargeTest, APlanThatIsGivenUpLeavesTheRankWaiting) {
  ASSERT_TRUE(world_.Begin(session_, lease_, kBlocks, {0}, 1).has_value());
  std::vector<wire::PlanEntry> plan;
  ASSERT_TRUE(world_.service().StartPlan(session_, GrantId(1), Rank(0), world_.now(), plan)->more);
  world_.service().CancelStep(session_, world_.now());
  EXPECT_EQ(world_.service().gauges().armed_ranks, 0U);
  ASSERT_EQ(world_.Plan(session_, 1), PlanStatus::kArmed);
  // Armed before: the rank may be copying by its first plan, whatever becomes of the second.
  ASSERT_TRUE(world_.service().StartPlan(session_, GrantId(1), Rank(0), world_.now(), plan)->more);
  world_.service().CancelStep(session_, world_.now());
  EXPECT_EQ(world_.service().gauges().armed_ranks, 1U);
  ASSERT_TRUE(world_.End(session_, 1).has_value());

  lease_ = world_.Query(session_, 1, chain_).lease;
  ASSERT_TRUE(world_.Begin(session_, lease_, kBlocks, {0}, 2).has_value());
  ASSERT_TRUE(world_.service().StartPlan(session_, GrantId(2), Rank(0), world_.now(), plan)->more);
  const SessionId twin = world_.Join(world_.Worker("one"));
  ASSERT_TRUE(world_.ReleaseGrant(twin, 2).has_value());
  EXPECT_EQ(granted(), 0U) << "it was not armed";
  const auto planned = world_.service().ContinuePlan(session_, world_.now(), plan);
  ASSERT_TRUE(planned.has_value());
  EXPECT_FALSE(planned->more);
  EXPECT_EQ(planned->status, PlanStatus::kGone);
  EXPECT_TRUE(plan.empty());
  world_.ExpectQuiet();
}

TEST_F(LargeTest, CommitsGoOnInBoundedSteps) {
  const auto chain = Chain(2, 2000);
  const ReservationId reservation = world_.Reserve(session_, chain);
  std::vector<wire::CommitEntry> commits;
  for (std::uint32_t i = 0; i < chain.size(); ++i) {
    commits.push_back({ChecksumOf(chain[i], 0), world_.entries()[i].generation, i, 0});
  }
  std::vector<std::uint32_t> outcomes;
  auto done = world_.service().StartCommit(session_, reservation, {.entries = commits}, world_.now(), outcomes);
  int steps = 1;
  for (; done && done->more; ++steps) {
    EXPECT_EQ(outcomes.size(), 512U * static_cast<unsigned>(steps));
    ExpectOthersServed();
    done = world_.service().ContinueCommit(session_, world_.now(), outcomes);
  }
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(done->stored, 2000U);
  EXPECT_EQ(outcomes.size(), 2000U);

  const auto more = Chain(3, 1000);
  const ReservationId second = world_.Reserve(session_, more);
  commits.clear();
  for (std::uint32_t i = 0; i < more.size(); ++i) {
    commits.push_back({ChecksumOf(more[i], 0), world_.entries()[i].generation, i, 0});
  }
  ASSERT_TRUE(world_.service().StartCommit(session_, second, {.entries = commits}, world_.now(), outcomes)->more);
  world_.service().CancelStep(session_, world_.now());
  EXPECT_EQ(world_.service().gauges().reserved_slots, 488U) << "the client, which knows of none, aborts the rest";
  ASSERT_TRUE(world_.service().PublishAbort(session_, second, world_.now()).has_value());
  EXPECT_EQ(world_.Found(session_, 5, more), 512U);
  world_.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
