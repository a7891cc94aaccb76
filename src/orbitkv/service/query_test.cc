// Queries and leases: what is offered, for how long, and within which bounds.
#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

constexpr std::uint32_t kAbsent = static_cast<std::uint32_t>(wire::MissReason::kAbsent);
constexpr std::uint32_t kOverBudget = static_cast<std::uint32_t>(wire::MissReason::kOverBudget);
constexpr std::uint32_t kNoNamespace = static_cast<std::uint32_t>(wire::MissReason::kNoNamespace);

TEST(QueryTest, FindsTheLongestPrefix) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 10);
  ASSERT_EQ(world.Publish(session, std::span(chain).first(7)), 7U);
  const QueryOutcome outcome = world.Query(session, 1, chain);
  EXPECT_EQ(outcome.found_blocks, 7U);
  EXPECT_FALSE(outcome.lease.is_none());
  EXPECT_EQ(outcome.miss_reason, 0U);
  EXPECT_EQ(world.cache().gauges().found_pins, 7U);
  EXPECT_EQ(world.service().gauges().leased_bytes, 7U * world.slot_bytes());

  const QueryOutcome miss = world.Query(session, 2, Chain(2, 3));
  EXPECT_EQ(miss.found_blocks, 0U);
  EXPECT_TRUE(miss.lease.is_none());
  EXPECT_EQ(miss.miss_reason, kAbsent);
  EXPECT_EQ(world.service().gauges().leases, 1U);
  world.ExpectQuiet();
}

TEST(QueryTest, AMissSaysWhetherTheBlockWasHere) {
  WorldOptions options;
  options.max_blocks = 10;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto first = Chain(1, 8);
  ASSERT_EQ(world.Publish(session, first), 8U);
  world.Advance(kSecond);
  ASSERT_EQ(world.Publish(session, Chain(2, 10)), 10U);
  EXPECT_EQ(world.Query(session, 1, first).miss_reason, static_cast<std::uint32_t>(wire::MissReason::kEvicted));
  EXPECT_EQ(world.Query(session, 2, Chain(3, 3)).miss_reason, kAbsent);
  world.ExpectQuiet();
}

TEST(QueryTest, AMissSaysThatAPartIsLacking) {
  World world;
  const SessionId one = world.Join(world.Worker("engine", 0, 2, 0, 2));
  const SessionId other = world.Join(world.Worker("engine", 1, 2, 1, 2));
  const auto chain = Chain(1, 4);
  world.Publish(one, chain);
  EXPECT_EQ(world.Query(one, 1, chain).miss_reason, static_cast<std::uint32_t>(wire::MissReason::kIncomplete));
  world.Publish(other, chain, 1);
  EXPECT_EQ(world.Found(one, 1, chain), 4U);
  world.ExpectQuiet();
}

TEST(QueryTest, ARestIsFoundBehindTheEnginesPrefix) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 10);
  world.Publish(session, chain);
  EXPECT_EQ(world.Found(session, 1, std::span(chain).subspan(4)), 6U);
  world.ExpectQuiet();
}

TEST(QueryTest, MissesBeforeTheNamespaceIsFormed) {
  World world;
  const SessionId session = world.Join(world.Worker("engine", 0, 2));
  const QueryOutcome outcome = world.Query(session, 1, Chain(1, 2));
  EXPECT_EQ(outcome.found_blocks, 0U);
  EXPECT_EQ(outcome.miss_reason, kNoNamespace);
  world.Reserve(session, Chain(1, 2));
  EXPECT_EQ(world.CountEntries(wire::ReserveStatus::kNotNow), 2U);
  world.ExpectQuiet();
}

TEST(QueryTest, OtherModelsSeeNothing) {
  World world;
  const auto chain = Chain(1, 4);
  world.Publish(world.Join(world.Worker("engine")), chain);
  Registration other = world.Worker("other");
  other.computation = DigestOfByte(9);
  EXPECT_EQ(world.Found(world.Join(other), 1, chain), 0U);
  EXPECT_EQ(world.Found(world.Join(world.Worker("replica")), 1, chain), 4U);
  world.ExpectQuiet();
}

TEST(QueryTest, ARepeatedQueryReplacesItsLease) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 8);
  world.Publish(session, chain);
  const LeaseId first = world.Query(session, 1, std::span(chain).first(8)).lease;
  const LeaseId second = world.Query(session, 1, std::span(chain).first(5)).lease;
  EXPECT_EQ(world.cache().gauges().found_pins, 5U);
  EXPECT_EQ(world.service().gauges().leases, 1U);
  EXPECT_EQ(CodeOf(world.Begin(session, first, 1, {0}, 1)), Code::kNotFound);
  EXPECT_TRUE(world.Begin(session, second, 5, {0}, 2).has_value());
  // A query that finds nothing any more ends the lease too; another request's lease stays.
  const auto other = Chain(2, 3);
  world.Publish(session, other);
  world.Query(session, 1, other);
  world.Query(session, 2, other);
  world.Query(session, 1, Chain(3, 1));
  EXPECT_EQ(world.service().gauges().leases, 1U);
  world.ExpectQuiet();
}

TEST(QueryTest, RequestsOfTwoInstancesAreDifferent) {
  World world;
  const SessionId one = world.Join(world.Worker("one"));
  const SessionId two = world.Join(world.Worker("two"));
  const auto chain = Chain(1, 4);
  world.Publish(one, chain);
  const LeaseId mine = world.Query(one, 1, chain).lease;
  const LeaseId theirs = world.Query(two, 1, chain).lease;
  EXPECT_EQ(world.service().gauges().leases, 2U);
  EXPECT_EQ(CodeOf(world.Begin(one, theirs, 1, {0}, 1)), Code::kNotFound) << "a foreign lease";
  EXPECT_TRUE(world.ReleaseLease(one, theirs).has_value());
  EXPECT_EQ(world.service().gauges().leases, 2U) << "a foreign release changes nothing";
  EXPECT_TRUE(world.ReleaseLease(one, mine).has_value());
  EXPECT_TRUE(world.ReleaseLease(one, mine).has_value()) << "idempotent";
  EXPECT_EQ(world.service().gauges().leases, 1U);
  EXPECT_EQ(CodeOf(world.service().Release(one, static_cast<wire::ReleaseKind>(3), 1, world.now())), Code::kInvalid);
  world.ExpectQuiet();
}

TEST(QueryTest, ALeaseExpiresAfterItsLastRenewal) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 4);
  world.Publish(session, chain);
  EXPECT_EQ(world.service().NextDeadline(), std::nullopt);
  world.Query(session, 1, chain);
  EXPECT_EQ(world.service().NextDeadline(), world.now() + 10 * kSecond);
  world.Advance(6 * kSecond);
  world.Query(session, 1, chain);
  world.Advance(10 * kSecond - 1);
  EXPECT_EQ(world.cache().gauges().found_pins, 4U);
  world.Advance(1);
  EXPECT_EQ(world.cache().gauges().found_pins, 0U);
  EXPECT_EQ(world.service().gauges().leases, 0U);
  EXPECT_EQ(world.service().gauges().leases_remembered, 1U);
  EXPECT_EQ(world.service().counters().leases_expired, 1U);
  EXPECT_EQ(world.service().NextDeadline(), world.now() + 50 * kSecond);
  world.Advance(50 * kSecond);
  EXPECT_EQ(world.service().gauges().leases_remembered, 0U);
  EXPECT_EQ(world.service().gauges().hashes, 0U);
  EXPECT_EQ(world.service().NextDeadline(), std::nullopt);
  world.ExpectQuiet();
}

TEST(QueryTest, TimeThatRunsBackwardsStandsStill) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 1);
  world.Publish(session, chain);
  world.Query(session, 1, chain);
  world.service().Tick(0);
  EXPECT_EQ(world.service().gauges().leases, 1U);
  world.ExpectQuiet();
}

TEST(QueryTest, LongQueriesTakeShortSteps) {
  World world;
  const std::uint32_t step = world.service().limits().long_step_hashes;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 1200);
  ASSERT_EQ(world.Publish(session, chain), 1200U);
  wire::QueryView view{};
  view.hashes = chain;
  QueryOutcome outcome = World::Take(world.service().StartQuery(session, view, world.now()));
  EXPECT_TRUE(outcome.more);
  EXPECT_EQ(CodeOf(world.service().StartQuery(session, view, world.now())), Code::kBusy);
  EXPECT_EQ(CodeOf(world.TryReserve(session, chain)), Code::kBusy);
  for (std::uint32_t looked_at = step; outcome.more; looked_at += step) {
    ASSERT_EQ(world.cache().gauges().found_pins, looked_at);
    EXPECT_EQ(world.service().gauges().running_queries, 1U);
    outcome = World::Take(world.service().ContinueQuery(session, world.now()));
  }
  EXPECT_EQ(outcome.found_blocks, 1200U);
  EXPECT_EQ(CodeOf(world.service().ContinueQuery(session, world.now())), Code::kInvalid);
  // A step that ends short ends the query.
  auto broken = chain;
  broken[600] = Chain(9, 1)[0];
  view.hashes = broken;
  view.header.request_key_lo = 2;
  outcome = World::Take(world.service().StartQuery(session, view, world.now()));
  std::uint32_t steps = 1;
  for (; outcome.more; ++steps) outcome = World::Take(world.service().ContinueQuery(session, world.now()));
  EXPECT_EQ(steps, 600 / step + 1);
  EXPECT_EQ(outcome.found_blocks, 600U);
  world.ExpectQuiet();
}

TEST(QueryTest, WhatFitsOneStepTakesOne) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, world.service().limits().step_hashes);
  ASSERT_EQ(world.Publish(session, chain), chain.size());
  wire::QueryView view{};
  view.hashes = chain;
  EXPECT_FALSE(World::Take(world.service().StartQuery(session, view, world.now())).more);
}

TEST(QueryTest, ACancelledQueryLeavesTheEarlierLease) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 600);
  world.Publish(session, chain);
  const LeaseId lease = world.Query(session, 0, std::span(chain).first(10)).lease;
  wire::QueryView view{};
  view.hashes = chain;
  EXPECT_TRUE(World::Take(world.service().StartQuery(session, view, world.now())).more);
  world.service().CancelStep(session, world.now());
  world.service().CancelStep(session, world.now());
  EXPECT_EQ(world.cache().gauges().found_pins, 10U);
  EXPECT_EQ(world.service().gauges().hashes, 10U);
  EXPECT_TRUE(world.Begin(session, lease, 10, {0}, 1).has_value());
  // A session that dies with a query half way leaves nothing either.
  EXPECT_TRUE(World::Take(world.service().StartQuery(session, view, world.now())).more);
  world.ExpectQuiet();
}

WorldOptions WithBudgetOf(std::uint32_t blocks) {
  WorldOptions options;  // slots of about 64 KiB in a pool of 100 of them
  options.page_bytes = 32 * 1024;
  options.pool_bytes = 32 * kMiB;
  const std::uint64_t slot_bytes = 2 * options.page_bytes + 16;
  options.limits.lease_percent_per_instance =
      static_cast<std::uint32_t>((blocks * slot_bytes * 100 + options.pool_bytes - 1) / options.pool_bytes);
  return options;
}

TEST(QueryTest, TheInstanceBudgetTrimsTheOffer) {
  World world(WithBudgetOf(20));
  const std::uint64_t budget = world.service().limits().lease_bytes_per_instance() / world.slot_bytes();
  ASSERT_LT(budget, 30U);
  const SessionId session = world.Join(world.Worker("engine"));
  const SessionId second = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 60);
  ASSERT_EQ(world.Publish(session, chain), 60U);
  const QueryOutcome trimmed = world.Query(session, 1, chain);
  EXPECT_EQ(trimmed.found_blocks, budget);
  EXPECT_EQ(world.service().counters().query_blocks_over_budget, 60U - budget);
  EXPECT_EQ(world.Found(session, 1, chain), budget) << "a repetition costs nothing";
  EXPECT_EQ(world.Found(second, 2, chain), budget) << "a shared prefix counts once";
  const auto other = Chain(2, 3);
  world.Publish(session, other);
  const QueryOutcome full = world.Query(session, 3, other);
  EXPECT_EQ(full.found_blocks, 0U);
  EXPECT_EQ(full.miss_reason, kOverBudget);
  EXPECT_EQ(world.Found(world.Join(world.Worker("other")), 1, other), 3U) << "another instance has its own";
  // What a grant holds counts as well, and frees the budget when it ends.
  ASSERT_TRUE(world.Begin(session, trimmed.lease, 5, {0}, 1).has_value() == false) << "that lease was replaced";
  ASSERT_TRUE(world.Begin(second, world.Query(second, 2, chain).lease, 5, {0}, 2).has_value());
  world.Query(session, 1, Chain(7, 1));
  EXPECT_EQ(world.service().gauges().leased_bytes, (5U + 3U) * world.slot_bytes());
  EXPECT_TRUE(world.ReleaseGrant(session, 2).has_value());
  EXPECT_EQ(world.service().gauges().leased_bytes, 3U * world.slot_bytes());
  world.ExpectQuiet();
}

TEST(QueryTest, ABudgetBelowOneBlockAllowsOne) {
  WorldOptions options;
  options.page_bytes = 900 * 1024;
  options.pool_bytes = 16 * kMiB;
  options.limits.lease_percent_per_instance = 5;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 2);
  world.Publish(session, chain);
  EXPECT_EQ(world.Found(session, 1, chain), 1U);
  world.ExpectQuiet();
}

TEST(QueryTest, OperationsAreBounded) {
  WorldOptions options;
  options.limits.operations_per_session = 4;
  options.limits.operations_total = 6;
  World world(options);
  const SessionId one = world.Join(world.Worker("engine"));
  const SessionId two = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 2);
  world.Publish(one, chain);
  for (std::uint64_t request = 0; request < 4; ++request) ASSERT_EQ(world.Found(one, request, chain), 2U);
  EXPECT_EQ(CodeOf(world.TryQuery(one, 4, chain)), Code::kBusy);
  EXPECT_EQ(world.Found(one, 3, chain), 2U) << "a repetition takes its own place";
  EXPECT_EQ(world.Found(two, 10, chain), 2U);
  EXPECT_EQ(world.Found(two, 11, chain), 2U);
  EXPECT_EQ(CodeOf(world.TryQuery(two, 12, chain)), Code::kBusy) << "six in all";
  EXPECT_EQ(world.service().counters().queries_not_admitted, 2U);
  EXPECT_EQ(world.service().gauges().leases, 6U);
  // Expired answers are remembered only while there is room.
  world.Advance(10 * kSecond);
  EXPECT_EQ(world.Found(one, 4, chain), 2U);
  EXPECT_EQ(world.service().gauges().leases_remembered, 5U);
  world.ExpectQuiet();
}

TEST(QueryTest, ASessionForgetsItsOwnAnswersFirst) {
  WorldOptions options;
  options.limits.operations_per_session = 2;
  World world(options);
  const SessionId one = world.Join(world.Worker("engine"));
  const SessionId two = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 2);
  world.Publish(one, chain);
  const LeaseId others = world.Query(two, 1, chain).lease;
  const LeaseId own = world.Query(one, 2, chain).lease;
  world.Query(one, 3, chain);
  world.Advance(10 * kSecond);
  EXPECT_EQ(world.Found(one, 4, chain), 2U);
  EXPECT_TRUE(world.Begin(two, others, 2, {0}, 1).has_value());
  EXPECT_EQ(CodeOf(world.Begin(one, own, 2, {0}, 2)), Code::kNotFound);
  world.ExpectQuiet();
}

TEST(QueryTest, HashesAreBounded) {
  WorldOptions options;
  options.limits.hashes_total = 20;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 25);
  world.Publish(session, chain);
  EXPECT_EQ(CodeOf(world.TryQuery(session, 1, chain)), Code::kBusy);
  EXPECT_EQ(world.Found(session, 1, std::span(chain).first(15)), 15U);
  EXPECT_EQ(CodeOf(world.TryQuery(session, 2, std::span(chain).first(6))), Code::kBusy);
  world.Advance(10 * kSecond);
  EXPECT_EQ(world.Found(session, 2, std::span(chain).first(6)), 6U);
  EXPECT_EQ(world.service().gauges().leases_remembered, 0U);
  world.ExpectQuiet();
}

TEST(QueryTest, LeasesGiveWayToNewBlocksOldestFirst) {
  WorldOptions options;
  options.page_bytes = 256 * 1024;  // three slots in a unit of 2 MiB
  options.pool_bytes = 4 * kMiB;
  options.limits.lease_percent_per_instance = 100;
  options.limits.reserved_percent_per_session = 100;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  std::vector<std::vector<state::BlockHash>> stored;
  for (std::uint64_t seed = 1;; ++seed) {
    auto chain = Chain(seed, 1);
    world.Reserve(session, chain);
    if (world.service().gauges().reserved_slots == 0 || world.cache().counters().evictions > 0) break;
    world.Commit(session, ReservationId(seed), chain);
    stored.push_back(chain);
    world.Query(session, seed, chain);
    if (world.service().counters().leases_revoked > 0) break;
    ASSERT_LT(seed, 100U);
  }
  ASSERT_GE(stored.size(), 3U);
  EXPECT_EQ(world.service().counters().leases_revoked, 1U);
  EXPECT_EQ(world.service().gauges().leases_remembered, 1U);
  EXPECT_EQ(world.Found(session, 100, stored[0]), 0U) << "the oldest lease went, and its block";
  EXPECT_EQ(world.Found(session, 101, stored[1]), 1U);
  world.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
