// Grants: what begins, who arms, what ends a pin, and what a report of wrong bytes does.
#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

// An engine with a scheduler and two ranks of one shard each, which have stored a chain.
class RestoreTest : public testing::Test {
 protected:
  RestoreTest() {
    world_.Publish(ranks_[0], chain_, 0);
    world_.Publish(ranks_[1], chain_, 1);
    EXPECT_EQ(world_.cache().gauges().complete, chain_.size());
  }
  LeaseId Lease(std::uint64_t request = 1) { return world_.Query(scheduler_, request, chain_).lease; }
  void BeginBoth(std::uint64_t grant, std::uint32_t blocks = 8) {
    ASSERT_TRUE(world_.Begin(scheduler_, Lease(), blocks, {0, 1}, grant).has_value());
  }
  std::uint64_t Granted() { return world_.cache().gauges().granted_pins; }
  std::uint64_t Grants() { return world_.service().gauges().grants; }
  std::uint64_t Armed() { return world_.service().gauges().armed_ranks; }

  World world_;
  SessionId scheduler_ = world_.Join(world_.Scheduler("engine", 2, 2));
  SessionId ranks_[2] = {world_.Join(world_.Worker("engine", 0, 2, 0, 2)),
                         world_.Join(world_.Worker("engine", 1, 2, 1, 2))};
  std::vector<state::BlockHash> chain_ = Chain(1, 8);
};

TEST_F(RestoreTest, EachRankGetsThePlanOfItsShard) {
  BeginBoth(5, 6);
  EXPECT_EQ(world_.service().gauges().leases, 0U) << "the lease ended with the begin";
  EXPECT_EQ(world_.cache().gauges().found_pins, 0U);
  EXPECT_EQ(Granted(), 6U);
  for (const std::uint32_t rank : {0U, 1U}) {
    ASSERT_EQ(world_.Plan(ranks_[rank], 5, rank), PlanStatus::kArmed);
    ASSERT_EQ(world_.plan().size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(world_.plan()[i].slot_checksum, ChecksumOf(chain_[i], rank));
      EXPECT_EQ(world_.plan()[i].slot_bytes, world_.slot_bytes());
      EXPECT_NE(world_.plan()[i].generation, 0U);
    }
  }
  EXPECT_EQ(Armed(), 2U);
  EXPECT_TRUE(world_.End(ranks_[0], 5, 0).has_value());
  EXPECT_EQ(Granted(), 6U);
  EXPECT_TRUE(world_.End(ranks_[1], 5, 1).has_value());
  EXPECT_EQ(Granted(), 0U);
  EXPECT_EQ(Grants(), 0U);
  EXPECT_EQ(world_.service().counters().restores_ok, 2U);
  EXPECT_EQ(world_.service().counters().restored_blocks, 12U);
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kGone);
  EXPECT_TRUE(world_.End(ranks_[1], 5, 1).has_value()) << "idempotent";
  EXPECT_EQ(world_.service().counters().restores_ok, 2U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, APlanBeforeItsBeginIsNotYet) {
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kNotYet);
  BeginBoth(5);
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed) << "the same session may ask again";
  EXPECT_EQ(Armed(), 1U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, OnlyTheNamedRanksAndOnlyForThemselves) {
  ASSERT_TRUE(world_.Begin(scheduler_, Lease(), 8, {1}, 5).has_value());
  std::vector<wire::PlanEntry> out;
  Service& service = world_.service();
  EXPECT_EQ(CodeOf(service.RestorePlan(ranks_[0], GrantId(5), Rank(1), world_.now(), out)), Code::kRefused);
  EXPECT_EQ(CodeOf(service.RestorePlan(scheduler_, GrantId(5), Rank(0), world_.now(), out)), Code::kRefused);
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kGone) << "rank 0 is not named";
  EXPECT_EQ(CodeOf(world_.End(ranks_[0], 5, 1)), Code::kRefused);
  EXPECT_EQ(CodeOf(world_.End(scheduler_, 5, 0)), Code::kRefused);
  EXPECT_TRUE(world_.End(ranks_[0], 5, 0).has_value());
  EXPECT_EQ(Granted(), 8U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, OtherInstancesHaveTheirOwnGrantIds) {
  BeginBoth(5);
  const SessionId other[2] = {world_.Join(world_.Worker("other", 0, 2, 0, 2)),
                              world_.Join(world_.Worker("other", 1, 2, 1, 2))};
  EXPECT_EQ(world_.Plan(other[0], 5, 0), PlanStatus::kNotYet);
  EXPECT_TRUE(world_.End(other[0], 5, 0).has_value());
  EXPECT_TRUE(world_.ReleaseGrant(other[0], 5).has_value());
  EXPECT_EQ(Granted(), 8U) << "a foreign word changes nothing";
  const LeaseId lease = world_.Query(other[1], 1, chain_).lease;
  EXPECT_TRUE(world_.Begin(other[1], lease, 4, {1}, 6).has_value());
  EXPECT_TRUE(world_.Begin(scheduler_, Lease(), 4, {1}, 6).has_value());
  EXPECT_EQ(Granted(), 16U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, BeginsThatAreRefused) {
  const LeaseId lease = Lease();
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 0, {0}, 1)), Code::kInvalid);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 1, {}, 1)), Code::kInvalid);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 1, {0, 0}, 1)), Code::kInvalid);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 1, {2}, 1)), Code::kInvalid);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 1, {0}, 0)), Code::kInvalid);
  EXPECT_EQ(world_.Plan(ranks_[0], 1, 0), PlanStatus::kNotYet) << "a malformed begin says nothing about its id";
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 9, {0}, 2)), Code::kRefused);
  EXPECT_EQ(world_.Plan(ranks_[0], 2, 0), PlanStatus::kGone) << "no rank waits for a begin that was refused";
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, LeaseId(77), 1, {0}, 3)), Code::kNotFound);
  EXPECT_EQ(world_.service().gauges().leases, 1U) << "the lease survived all that";
  EXPECT_TRUE(world_.Begin(scheduler_, lease, 8, {0}, 4).has_value());
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, Lease(2), 1, {0}, 4)), Code::kRefused) << "the id is in use";
  EXPECT_TRUE(world_.ReleaseGrant(scheduler_, 4).has_value());
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, Lease(2), 1, {0}, 4)), Code::kRefused) << "the id was used";
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, TheBoundaryIsWhatWasFoundNotWhatWasAsked) {
  auto longer = chain_;
  longer.push_back(Chain(9, 1)[0]);
  const QueryOutcome outcome = world_.Query(scheduler_, 1, longer);
  ASSERT_EQ(outcome.found_blocks, 8U);
  EXPECT_EQ(world_.service().gauges().hashes, 9U) << "all of them are counted when the look-up is over";
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, outcome.lease, 9, {0}, 1)), Code::kRefused);
  EXPECT_EQ(Granted(), 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, EveryNamedRankNeedsALiveSession) {
  world_.service().DetachSession(ranks_[1], world_.now());
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, Lease(), 8, {0, 1}, 1)), Code::kRefused);
  EXPECT_EQ(world_.Plan(ranks_[0], 1, 0), PlanStatus::kGone);
  EXPECT_EQ(Granted(), 0U);
  EXPECT_TRUE(world_.Begin(scheduler_, Lease(), 8, {0}, 2).has_value());
  const SessionId back = world_.Join(world_.Worker("engine", 1, 2, 1, 2));
  EXPECT_TRUE(world_.Begin(scheduler_, Lease(), 8, {0, 1}, 3).has_value());
  EXPECT_EQ(world_.Plan(back, 3, 1), PlanStatus::kArmed);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, ReleaseEndsOnlyRanksThatAreNotArmed) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  EXPECT_TRUE(world_.ReleaseGrant(scheduler_, 5).has_value());
  EXPECT_EQ(Granted(), 8U) << "rank 0 may be copying";
  EXPECT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kGone);
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  EXPECT_TRUE(world_.ReleaseGrant(scheduler_, 5).has_value());
  world_.Advance(3600 * kSecond);
  EXPECT_EQ(Granted(), 8U) << "never on a timer";
  EXPECT_TRUE(world_.End(ranks_[0], 5, 0).has_value());
  EXPECT_EQ(Granted(), 0U);
  EXPECT_TRUE(world_.ReleaseGrant(scheduler_, 5).has_value());
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AReleaseBeforeItsBeginWins) {
  EXPECT_TRUE(world_.ReleaseGrant(scheduler_, 5).has_value());
  EXPECT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kGone);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, Lease(), 8, {0}, 5)), Code::kRefused);
  EXPECT_EQ(Granted(), 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, TheBeginnersDeathEndsOnlyRanksThatAreNotArmed) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  world_.service().DetachSession(scheduler_, world_.now());
  EXPECT_EQ(Granted(), 8U);
  EXPECT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kArmed) << "a lost connection is not death";
  ASSERT_TRUE(world_.End(ranks_[1], 5, 1).has_value());
  world_.End(scheduler_);
  EXPECT_EQ(Granted(), 8U);
  EXPECT_TRUE(world_.End(ranks_[0], 5, 0).has_value());
  EXPECT_EQ(Granted(), 0U);

  const SessionId scheduler = world_.Join(world_.Scheduler("engine", 2, 2));
  ASSERT_TRUE(world_.Begin(scheduler, world_.Query(scheduler, 1, chain_).lease, 8, {0, 1}, 6).has_value());
  world_.End(scheduler);
  EXPECT_EQ(Granted(), 0U);
  EXPECT_EQ(world_.Plan(ranks_[0], 6, 0), PlanStatus::kGone);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AnArmedRanksDeathOrDrainEndsItsPin) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  ASSERT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kArmed);
  world_.End(ranks_[0]);
  EXPECT_EQ(Armed(), 1U);
  world_.service().DetachSession(ranks_[1], world_.now());
  EXPECT_EQ(Armed(), 1U) << "its threads may still copy";
  EXPECT_EQ(Granted(), 8U);
  EXPECT_EQ(world_.service().DrainSession(World::TokenOf(ranks_[1]), world_.now()), ranks_[1]);
  EXPECT_EQ(Armed(), 0U);
  EXPECT_EQ(Granted(), 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, TheReplacedSessionsPinCanBeEndedByItsSuccessor) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  world_.service().DetachSession(ranks_[0], world_.now());
  const SessionId back = world_.Join(world_.Worker("engine", 0, 2, 0, 2));
  std::vector<wire::PlanEntry> out;
  EXPECT_EQ(CodeOf(world_.service().RestorePlan(back, GrantId(5), Rank(0), world_.now(), out)), Code::kRefused);
  EXPECT_TRUE(world_.End(back, 5, 0).has_value());
  EXPECT_EQ(Armed(), 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, ABeginOnAnExpiredLeasePinsAgain) {
  const LeaseId lease = Lease();
  world_.Advance(59 * kSecond);
  EXPECT_EQ(world_.cache().gauges().found_pins, 0U);
  ASSERT_TRUE(world_.Begin(scheduler_, lease, 6, {0}, 5).has_value());
  EXPECT_EQ(Granted(), 6U);
  EXPECT_EQ(world_.service().counters().grants_late, 1U);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  EXPECT_EQ(world_.plan().size(), 6U);

  const LeaseId late = Lease();
  world_.Advance(60 * kSecond);
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, late, 6, {0}, 6)), Code::kNotFound);
  EXPECT_EQ(world_.Plan(ranks_[0], 6, 0), PlanStatus::kGone);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, ABeginOnAnExpiredLeaseWhoseBlocksWent) {
  const LeaseId lease = Lease();
  world_.Advance(20 * kSecond);
  const auto ref = world_.cache().Find(NamespaceRow(1), chain_[5]);
  ASSERT_TRUE(ref.has_value());
  ASSERT_TRUE(world_.cache().Drop(*ref, 0, cache::DropReason::kWithdrawn).has_value());
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 6, {0}, 5)), Code::kNotFound);
  EXPECT_EQ(Granted(), 0U);
  EXPECT_TRUE(world_.Begin(scheduler_, lease, 5, {0}, 6).has_value()) << "a shorter boundary is still there";
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, ABeginOnALeaseWithABlockThatIsNoLongerServed) {
  const LeaseId lease = Lease();
  const auto ref = world_.cache().Find(NamespaceRow(1), chain_[3]);
  ASSERT_TRUE(ref.has_value());
  ASSERT_TRUE(world_.cache().Drop(*ref, 1, cache::DropReason::kWithdrawn).has_value());
  EXPECT_EQ(CodeOf(world_.Begin(scheduler_, lease, 8, {0}, 5)), Code::kNotFound);
  EXPECT_EQ(Granted(), 0U);
  EXPECT_TRUE(world_.Begin(scheduler_, lease, 3, {0}, 6).has_value());
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AGrantedBlockThatIsDroppedIsNotPlanned) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  const auto ref = world_.cache().Find(NamespaceRow(1), chain_[3]);
  ASSERT_TRUE(world_.cache().Drop(*ref, 1, cache::DropReason::kWithdrawn).has_value());
  EXPECT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kCorrupt);
  EXPECT_TRUE(world_.plan().empty());
  EXPECT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kGone);
  EXPECT_EQ(Armed(), 1U);
  EXPECT_EQ(Granted(), 8U);
  EXPECT_TRUE(world_.End(ranks_[0], 5, 0).has_value());
  EXPECT_EQ(Granted(), 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AFalseAlarmCountsAgainstTheSession) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  ASSERT_TRUE(world_.End(ranks_[0], 5, 0, wire::EndResult::kMismatch, {2, 2}).has_value());
  EXPECT_EQ(world_.Found(scheduler_, 2, chain_), 2U) << "not offered while in doubt";
  const std::vector<VerifyRequest> requests = world_.service().TakeVerifyRequests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].key.hash, chain_[2]);
  EXPECT_EQ(requests[0].key.shard, 0U);
  EXPECT_EQ(requests[0].slot_checksum, ChecksumOf(chain_[2], 0));
  EXPECT_EQ(requests[0].slot_bytes, world_.slot_bytes());
  EXPECT_EQ(requests[0].page_count, 2U);
  EXPECT_EQ(requests[0].key.namespace_digest,
            world_.service().Register(scheduler_, world_.Scheduler("engine", 2, 2), world_.now()).namespace_digest);
  EXPECT_TRUE(world_.service().TakeVerifyRequests().empty());
  world_.service().VerifyDone(requests[0].id, true, world_.now());
  world_.service().VerifyDone(requests[0].id, false, world_.now());
  EXPECT_EQ(world_.Found(scheduler_, 2, chain_), 8U);
  EXPECT_EQ(world_.service().counters().verified_equal, 1U);
  EXPECT_EQ(world_.service().counters().verified_different, 0U);
  for (const SessionStatus& status : world_.service().sessions()) {
    EXPECT_EQ(status.false_alarms, status.id == ranks_[0] ? 1U : 0U);
  }
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AReportOfASlotThatWasFilledAnewAccusesNobody) {
  BeginBoth(5);
  BeginBoth(6);
  for (const std::uint64_t grant : {5U, 6U}) ASSERT_EQ(world_.Plan(ranks_[0], grant, 0), PlanStatus::kArmed);
  const wire::EndEntry seen{.generation = world_.plan()[2].generation, .index = 2};
  ASSERT_TRUE(world_.EndNaming(ranks_[0], 5, 0, std::span(&seen, 1)).has_value());
  const std::vector<VerifyRequest> requests = world_.service().TakeVerifyRequests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].generation, seen.generation);
  world_.service().VerifyDone(requests[0].id, false, world_.now());
  EXPECT_EQ(world_.service().counters().mismatches_stale, 0U);
  ASSERT_EQ(world_.Publish(ranks_[0], chain_, 0), 1U) << "stored anew while the other grant keeps the old slot";
  EXPECT_EQ(world_.Found(scheduler_, 3, chain_), 8U);

  ASSERT_TRUE(world_.EndNaming(ranks_[0], 6, 0, std::span(&seen, 1)).has_value());
  EXPECT_TRUE(world_.service().TakeVerifyRequests().empty());
  EXPECT_EQ(world_.Found(scheduler_, 3, chain_), 8U);
  EXPECT_EQ(world_.service().counters().mismatches_stale, 1U);
  EXPECT_EQ(world_.service().counters().verified_equal, 0U);
  for (const SessionStatus& status : world_.service().sessions()) EXPECT_EQ(status.false_alarms, 0U);
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, WrongBytesCostTheBlock) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  ASSERT_EQ(world_.Plan(ranks_[1], 5, 1), PlanStatus::kArmed);
  ASSERT_TRUE(world_.End(ranks_[0], 5, 0, wire::EndResult::kMismatch, {4}).has_value());
  ASSERT_TRUE(world_.End(ranks_[1], 5, 1, wire::EndResult::kMismatch, {4, 6}).has_value());
  EXPECT_EQ(Grants(), 0U);
  EXPECT_EQ(Granted(), 2U) << "the slots stay while they are checked";
  const std::vector<VerifyRequest> requests = world_.service().TakeVerifyRequests();
  ASSERT_EQ(requests.size(), 3U);
  world_.service().VerifyDone(requests[0].id, true, world_.now());
  EXPECT_EQ(world_.Found(scheduler_, 2, chain_), 4U) << "the other shard of the block is still in doubt";
  world_.service().VerifyDone(requests[1].id, false, world_.now());
  world_.service().VerifyDone(requests[2].id, true, world_.now());
  EXPECT_EQ(world_.Found(scheduler_, 2, chain_), 4U);
  EXPECT_EQ(Granted(), 0U);
  EXPECT_EQ(world_.cache().counters().dropped_corrupt, 1U);
  EXPECT_EQ(world_.service().counters().restores_mismatch, 2U);
  world_.Publish(ranks_[1], chain_, 1);
  EXPECT_EQ(world_.Found(scheduler_, 2, chain_), 8U) << "stored anew";
  world_.ExpectQuiet();
}

TEST_F(RestoreTest, AReportBeyondThePlanEndsThePinAllTheSame) {
  BeginBoth(5);
  ASSERT_EQ(world_.Plan(ranks_[0], 5, 0), PlanStatus::kArmed);
  EXPECT_EQ(CodeOf(world_.End(ranks_[0], 5, 0, wire::EndResult::kMismatch, {8, 1})), Code::kInvalid);
  EXPECT_EQ(Armed(), 0U);
  const std::vector<VerifyRequest> requests = world_.service().TakeVerifyRequests();
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].key.hash, chain_[1]);
  world_.service().VerifyDone(requests[0].id, true, world_.now());
  EXPECT_TRUE(world_.End(ranks_[1], 5, 1, wire::EndResult::kMismatch, {3}).has_value());
  EXPECT_TRUE(world_.service().TakeVerifyRequests().empty()) << "a rank without a plan has seen no bytes";
  EXPECT_EQ(Grants(), 0U);
  world_.ExpectQuiet();
}

TEST(GrantUseTest, ABeginIsAUse) {
  WorldOptions options;
  options.page_bytes = 256 * 1024;  // three slots in a unit of 2 MiB
  options.pool_bytes = 2 * kMiB;
  options.limits.lease_percent_per_instance = 100;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    world.Advance(1);
    ASSERT_EQ(world.Publish(session, Chain(seed, 1)), 1U);
  }
  world.Advance(1);
  const LeaseId lease = world.Query(session, 1, Chain(1, 1)).lease;
  ASSERT_TRUE(world.Begin(session, lease, 1, {0}, 1).has_value());
  ASSERT_TRUE(world.ReleaseGrant(session, 1).has_value());
  world.Advance(1);
  ASSERT_EQ(world.Publish(session, Chain(4, 1)), 1U);
  EXPECT_EQ(world.Found(session, 1, Chain(1, 1)), 1U) << "used after the second one was stored";
  EXPECT_EQ(world.Found(session, 2, Chain(2, 1)), 0U);
  world.ExpectQuiet();
}

TEST(GrantLimitsTest, GrantsAndVerificationsAreBounded) {
  WorldOptions options;
  options.limits.grants_per_instance = 2;
  options.limits.ended_grants_remembered = 2;
  options.limits.verifications = 1;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 4);
  world.Publish(session, chain);
  for (const std::uint64_t grant : {1U, 2U}) {
    ASSERT_TRUE(world.Begin(session, world.Query(session, grant, chain).lease, 4, {0}, grant).has_value());
  }
  EXPECT_EQ(CodeOf(world.Begin(session, world.Query(session, 3, chain).lease, 4, {0}, 3)), Code::kBusy);
  ASSERT_EQ(world.Plan(session, 1), PlanStatus::kArmed);
  ASSERT_TRUE(world.End(session, 1, 0, wire::EndResult::kMismatch, {1, 2}).has_value());
  EXPECT_EQ(world.service().TakeVerifyRequests().size(), 1U);
  EXPECT_EQ(world.cache().counters().dropped, 1U) << "what cannot be checked is dropped";
  EXPECT_EQ(world.Plan(session, 3), PlanStatus::kGone);
  ASSERT_TRUE(world.ReleaseGrant(session, 4).has_value());
  ASSERT_TRUE(world.ReleaseGrant(session, 5).has_value());
  EXPECT_EQ(world.Plan(session, 3), PlanStatus::kNotYet) << "only the newest ids are remembered";
  EXPECT_EQ(world.Plan(session, 5), PlanStatus::kGone);
  world.service().VerifyDone(1, true, world.now());
  world.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
