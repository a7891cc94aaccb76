// Look-ups that wait for a backing source: tickets, their line, their ends, and what each of them holds.
#include <gtest/gtest.h>

#include "orbitkv/service/tickets_fixture.h"

namespace orbitkv::service {
namespace {

TEST_F(TicketTest, LoadsWhatIsMissingAndLeasesIt) {
  const auto chain = Chain(1, 50);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(10)), 10U);
  Save(std::span(chain).first(40));
  ASSERT_TRUE(Loads(1, chain));
  Settle();
  EXPECT_EQ(State(1), TicketState::kLoading);
  EXPECT_TRUE(world_.service().TakeCompleted().empty());
  EXPECT_EQ(gauges().loads, 30U);
  After(kMs);
  EXPECT_EQ(world_.service().TakeCompleted(), std::vector{session_});
  EXPECT_TRUE(world_.service().TakeCompleted().empty()) << "told once";
  const wire::PollEntry entry = Poll(1);
  EXPECT_EQ(entry.state, static_cast<std::uint32_t>(TicketState::kReady));
  EXPECT_EQ(entry.found, 40U);
  EXPECT_EQ(entry.loaded, 30U) << "the first ten were in the pool";
  EXPECT_EQ(pins(), 40U);
  EXPECT_EQ(State(1), TicketState::kUnknown) << "a result is told once";
  ASSERT_TRUE(world_.Begin(session_, LeaseId(entry.lease), 40, {0}, 1).has_value());
  ASSERT_EQ(world_.Plan(session_, 1), PlanStatus::kArmed);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(world_.plan()[i].slot_checksum, ChecksumOf(chain[i], 0)) << i;
  EXPECT_EQ(counters().loads_ok, 30U);
  ExpectQuiet();
}

TEST_F(TicketTest, WhatIsSettledIsAnsweredWithTheSubmit) {
  const auto chain = Chain(1, 20);
  ASSERT_EQ(world_.Publish(session_, chain), 20U);
  EXPECT_EQ(Submit(session_, 1, 1, chain)->found_blocks, 20U);
  EXPECT_EQ(State(1), TicketState::kUnknown);
  // Nowhere: a miss at once. Without a wait, or without an operation, what is resident.
  EXPECT_EQ(Submit(session_, 2, 1, Chain(2, 5))->miss_reason, static_cast<std::uint32_t>(wire::MissReason::kAbsent));
  const auto saved = Chain(3, 5);
  Save(saved);
  EXPECT_FALSE(Submit(session_, 3, 1, saved, {.wait_ns = 0})->loading);
  EXPECT_FALSE(Submit(session_, 0, 0, saved)->loading);
  EXPECT_EQ(gauges().loads, 0U);
  EXPECT_EQ(gauges().tickets, 0U);
  ExpectQuiet();
}

TEST_F(TicketTest, FailedShortAndWrongReadsAreMissesAndNotForEver) {
  const auto chain = Chain(1, 30);
  Save(chain);
  std::uint64_t operation = 0;
  // What was read beyond the bad block stays, so each round reads the one that the round before left out.
  const auto found_with = [&](Fault fault, std::size_t at) {
    const ComponentKey bad = KeyOf(chain[at]);
    source_.set_fault([bad, fault](const ComponentKey& key) { return key == bad ? fault : Fault::kNone; });
    ++operation;
    EXPECT_TRUE(Loads(operation, chain, {.request = operation}));
    Settle();
    After(kMs);
    return Poll(operation).found;
  };
  EXPECT_EQ(found_with(Fault::kFailed, 20), 20U);
  EXPECT_EQ(counters().loads_failed, 1U);
  EXPECT_EQ(found_with(Fault::kShort, 20), 20U);
  EXPECT_EQ(counters().loads_short, 1U);
  EXPECT_EQ(found_with(Fault::kWrongBytes, 20), 20U);
  EXPECT_EQ(counters().loads_mismatch, 1U);
  EXPECT_EQ(found_with(Fault::kNone, 20), 30U);
  EXPECT_EQ(counters().loads_ok, 30U);
  ExpectQuiet();
}

TEST_F(TicketTest, RecordsThatContradictThePromptAreNotLoaded) {
  const auto chain = Chain(1, 3);
  source_.Put(KeyOf(chain[0]), {.parent = chain[1], .depth = 0, .checksum = 1});
  EXPECT_FALSE(Loads(1, chain));
  source_.Put(KeyOf(chain[0]), {.depth = 4, .checksum = 1});
  EXPECT_FALSE(Loads(2, chain));
  Save(chain);
  EXPECT_FALSE(Loads(3, chain, {.prefix = 1})) << "the first hash is not the second block";
  EXPECT_TRUE(Loads(4, std::span(chain).subspan(1), {.prefix = 1}));
  Settle();
  After(kMs);
  EXPECT_EQ(Poll(4).found, 2U);
  ExpectQuiet();
}

TEST_F(TicketTest, TheWaitEndsBeforeTheLoads) {
  const auto chain = Chain(1, 20);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(5)), 5U);
  Save(chain);
  delay_ns_ = 3 * kSecond;
  ASSERT_TRUE(Loads(1, chain, {.wait_ns = kSecond}));
  Settle();
  After(kSecond - 1);
  EXPECT_EQ(State(1), TicketState::kLoading);
  EXPECT_EQ(world_.service().NextDeadline(), world_.now() + 1);
  After(1);
  EXPECT_EQ(world_.service().TakeCompleted(), std::vector{session_});
  const wire::PollEntry entry = Poll(1);
  EXPECT_EQ(entry.found, 5U);
  EXPECT_EQ(entry.reason, static_cast<std::uint32_t>(wire::MissReason::kTooLate));
  // The reads go on and are in the pool afterwards.
  EXPECT_EQ(gauges().loads, 15U);
  After(3 * kSecond);
  EXPECT_EQ(Submit(session_, 2, 1, chain)->found_blocks, 20U);
  ExpectQuiet();
}

TEST_F(TicketTest, AllOrNothingWaitsForAll) {
  const auto chain = Chain(1, 20);
  Save(std::span(chain).first(19));
  ASSERT_TRUE(Loads(1, chain, {.request = 1, .mode = QueryMode::kFullPrefix}));
  ASSERT_TRUE(Loads(2, std::span(chain).first(19), {.request = 2, .mode = QueryMode::kFullPrefix}));
  ASSERT_TRUE(Loads(3, chain, {.request = 3, .mode = QueryMode::kSelected, .views = {{.first = 17, .count = 2}}}));
  Settle();
  After(kMs);
  const wire::PollEntry nothing = Poll(1);
  EXPECT_EQ(nothing.found, 0U);
  EXPECT_EQ(nothing.lease, 0U);
  EXPECT_EQ(nothing.reason, static_cast<std::uint32_t>(wire::MissReason::kIncomplete));
  EXPECT_EQ(Poll(2).found, 19U);
  EXPECT_EQ(Poll(3).found, 2U);
  EXPECT_EQ(boundaries_, std::vector<std::uint32_t>{2});
  EXPECT_EQ(counters().load_blocks, 19U) << "three look-ups share the reads";
  ExpectQuiet();
}

TEST_F(TicketTest, DiscoveryTellsCandidatesAndLoadsNothing) {
  const auto chain = Chain(1, 2000);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(5)), 5U);
  Save(std::span(chain).first(1500));
  const auto seen = Submit(session_, 1, 1, chain, {.mode = QueryMode::kDiscovery});
  EXPECT_EQ(seen->found_blocks, 1500U);
  EXPECT_TRUE(seen->lease.is_none());
  Settle();
  EXPECT_EQ(gauges().loads, 0U);
  EXPECT_EQ(pins(), 0U);
  EXPECT_EQ(gauges().hashes, 0U);
  ExpectQuiet();
}

TEST_F(TicketTest, ARevisionReplacesInPlaceAndTheOldOneTouchesNothing) {
  const auto chain = Chain(1, 20);
  const auto other = Chain(2, 8);
  Save(chain);
  Save(other);
  delay_ns_ = kSecond;
  ASSERT_TRUE(Loads(5, chain));
  Settle();
  EXPECT_EQ(CodeOf(Submit(session_, 5, 1, other)), Code::kStale) << "the same revision";
  EXPECT_EQ(CodeOf(Submit(session_, 4, 1, other)), Code::kStale) << "ids rise";
  EXPECT_EQ(CodeOf(Submit(session_, 5, 2, other, {.request = 9})), Code::kRefused);
  EXPECT_EQ(CodeOf(Submit(session_, 5, 2, other, {.mode = QueryMode::kFullPrefix})), Code::kRefused);
  EXPECT_EQ(State(5), TicketState::kLoading) << "refusals change nothing";
  ASSERT_TRUE(Submit(session_, 5, 3, other)->loading);
  EXPECT_EQ(gauges().tickets, 1U);
  EXPECT_EQ(State(5, 1), TicketState::kStaleRevision);
  EXPECT_EQ(CodeOf(world_.service().CancelQuery(session_, {5, 1}, world_.now())), Code::kStale);
  EXPECT_EQ(State(5, 3), TicketState::kLoading);
  Settle();
  After(kSecond);
  EXPECT_EQ(State(5, 2), TicketState::kStaleRevision);
  EXPECT_EQ(Poll(5, 3).found, 8U);
  // Over: a later revision of it would start new work.
  EXPECT_EQ(CodeOf(Submit(session_, 5, 4, other)), Code::kStale);
  ExpectQuiet();
}

TEST_F(TicketTest, CancelAndDisconnectRevokeWhileReadsDrain) {
  const auto chain = Chain(1, 20);
  Save(chain);
  delay_ns_ = kSecond;
  ASSERT_TRUE(Loads(1, chain));
  Settle();
  ASSERT_TRUE(world_.service().CancelQuery(session_, {1, 1}, world_.now()).has_value());
  EXPECT_EQ(State(1), TicketState::kCancelled);
  EXPECT_EQ(CodeOf(world_.service().CancelQuery(session_, {1, 1}, world_.now())), Code::kNotFound);
  EXPECT_EQ(gauges().tickets, 0U);
  EXPECT_EQ(gauges().loads, 20U);
  const SessionId gone = world_.Join(world_.Worker("two"));
  const auto second = Chain(2, 10);
  Save(second);
  ASSERT_TRUE(Submit(gone, 1, 1, second)->loading);
  Settle();
  world_.End(gone);
  EXPECT_EQ(gauges().loads, 30U);
  EXPECT_GT(gauges().load_bytes, 0U);
  After(kSecond);
  EXPECT_EQ(gauges().load_bytes, 0U);
  EXPECT_EQ(pins(), 0U);
  EXPECT_EQ(world_.cache().gauges().complete, 30U) << "what was read is kept";
  ExpectQuiet();
}

TEST_F(TicketTest, ATicketLivesForAMinuteAndIsRemembered) {
  const auto chain = Chain(1, 5);
  const auto slow = Chain(2, 5);
  Save(chain);
  Save(slow);
  ASSERT_TRUE(Loads(1, chain));
  Settle();
  After(kMs);
  EXPECT_EQ(pins(), 5U);
  delay_ns_ = 100 * kSecond;
  ASSERT_TRUE(Loads(2, slow, {.request = 2, .wait_ns = 1000 * kSecond}));
  Settle();
  EXPECT_EQ(world_.service().TakeCompleted().size(), 1U);
  After(60 * kSecond);
  EXPECT_EQ(world_.service().TakeCompleted().size(), 1U);
  EXPECT_EQ(pins(), 0U);
  EXPECT_EQ(State(1), TicketState::kTimedOut);
  EXPECT_EQ(State(1, 2), TicketState::kStaleRevision);
  EXPECT_EQ(State(2), TicketState::kTimedOut);
  EXPECT_EQ(gauges().tombstones, 2U);
  EXPECT_EQ(gauges().hashes, 0U);
  ExpectQuiet();
}

TEST_F(TicketTest, PreparationWaitsForItsConsumer) {
  const auto chain = Chain(1, 12);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(4)), 4U);
  Save(chain);
  const Ask ask{.mode = QueryMode::kPrepare, .consumer = 77};
  EXPECT_EQ(CodeOf(Submit(session_, 0, 0, chain, ask)), Code::kInvalid);
  ASSERT_TRUE(Loads(1, chain, ask));
  const SessionId consumer = world_.Join(world_.Worker("one"));
  EXPECT_TRUE(Claim(consumer, 77, 1)->loading);
  Settle();
  After(kMs);
  EXPECT_EQ(Poll(1).found, 12U);
  EXPECT_EQ(Poll(1).lease, 0U) << "a poll does not take it";
  EXPECT_EQ(CodeOf(Claim(consumer, 77, 2)), Code::kStale);
  EXPECT_EQ(CodeOf(Claim(consumer, 78, 1)), Code::kBusy);
  EXPECT_EQ(CodeOf(Claim(consumer, 77, 1, 9)), Code::kBusy);
  const auto stranger = world_.Join(world_.Worker("two"));
  EXPECT_EQ(CodeOf(Claim(stranger, 77, 1)), Code::kBusy) << "another instance";
  const auto claimed = Claim(consumer, 77, 1, 1);
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(claimed->found_blocks, 12U);
  EXPECT_EQ(CodeOf(Claim(consumer, 77, 1)), Code::kBusy) << "claimed once";
  // It is the consumer's now: the end of who prepared it takes nothing away.
  world_.End(session_);
  EXPECT_TRUE(world_.Begin(consumer, claimed->lease, 12, {0}, 1).has_value());
  ExpectQuiet();
}

TEST_F(TicketTest, ANewerPreparationReplacesTheConsumersAndOneThatIsOverSaysSo) {
  const auto chain = Chain(1, 6);
  ASSERT_EQ(world_.Publish(session_, chain), 6U);
  const Ask ask{.mode = QueryMode::kPrepare, .consumer = 7};
  ASSERT_TRUE(Loads(1, chain, ask));
  ASSERT_TRUE(Loads(2, std::span(chain).first(3), ask));
  EXPECT_EQ(State(1), TicketState::kCancelled);
  EXPECT_EQ(Claim(session_, 7, 1)->found_blocks, 3U);
  ASSERT_TRUE(Loads(3, chain, ask));
  After(60 * kSecond);
  EXPECT_EQ(CodeOf(Claim(session_, 7, 1)), Code::kBusy);
  EXPECT_EQ(State(3), TicketState::kTimedOut);
  ExpectQuiet();
}

TEST_F(TicketTest, AnAnswerWithoutANamespaceIsTheOperationsOnlyOne) {
  const SessionId early = world_.Join(world_.Worker("early", 0, 2));
  const auto chain = Chain(1, 2);
  const auto outcome = Submit(early, 1, 1, chain);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->miss_reason, static_cast<std::uint32_t>(wire::MissReason::kNoNamespace));
  EXPECT_EQ(CodeOf(Submit(early, 1, 1, chain)), Code::kStale);
}

TEST_F(TicketTest, PollingWhatIsUnknownStartsNothing) {
  EXPECT_EQ(State(1), TicketState::kUnknown);
  EXPECT_EQ(State(~0ULL, 7), TicketState::kUnknown);
  EXPECT_EQ(gauges().tickets, 0U);
  EXPECT_EQ(counters().queries, 0U);
  // The number was not used up by asking for it.
  EXPECT_TRUE(Submit(session_, 1, 1, Chain(1, 1)).has_value());
  EXPECT_EQ(CodeOf(Submit(session_, 2, 0, Chain(1, 1))), Code::kInvalid) << "revisions start at 1";
}

TEST_F(TicketTest, LongLookUpsLoadInBoundedSteps) {
  const auto chain = Chain(1, 1500);
  Save(chain);
  const std::uint64_t before = source_.located();
  ASSERT_TRUE(Loads(1, chain));
  std::size_t taken = 0;
  int calls = 0;
  while (world_.service().Work(world_.now())) {
    const auto loads = world_.service().TakeLoads();
    EXPECT_LE(loads.size(), 512U);
    taken += loads.size();
    for (const LoadRequest& request : loads) source_.Submit(request, world_.now());
    ++calls;
  }
  for (const LoadRequest& request : world_.service().TakeLoads()) {
    source_.Submit(request, world_.now());
    ++taken;
  }
  EXPECT_EQ(taken, 1500U);
  EXPECT_GE(calls, 2);
  EXPECT_LE(source_.located() - before, 1502U);
  After(kMs);
  EXPECT_EQ(Poll(1).found, 1500U);
  ExpectQuiet();
}

class TightTest : public TicketTest {
 protected:
  TightTest() : TicketTest(TightOptions()) {}
};

TEST_F(TightTest, TheLineIsServedInOrderWithinThePermits) {
  const auto first = Chain(1, 20);
  const auto second = Chain(2, 4);
  const auto third = Chain(3, 4);
  ASSERT_EQ(world_.Publish(session_, std::span(second).first(1)), 1U);
  for (const auto& chain : {first, second, third}) Save(chain);
  ASSERT_TRUE(Loads(1, first, {.request = 1}));
  ASSERT_TRUE(Loads(2, second, {.request = 2}));
  ASSERT_TRUE(Loads(3, third, {.request = 3}));
  Settle();
  const std::uint64_t most = 64 * kMiB / 4;
  EXPECT_LE(gauges().load_bytes, most);
  EXPECT_EQ(gauges().tickets_in_line, 3U);
  EXPECT_EQ(pins(), 0U) << "who waits in line holds nothing";
  EXPECT_FALSE(world_.service().HasWork()) << "nobody polls for permits";
  const std::uint64_t in_flight = gauges().loads;
  EXPECT_GE(in_flight, 15U);
  EXPECT_LT(in_flight, 20U);
  After(kMs);
  EXPECT_EQ(State(1), TicketState::kLoading);
  EXPECT_LE(gauges().load_bytes, most);
  EXPECT_EQ(gauges().tickets_in_line, 0U) << "the rest of the first and both others are being read";
  After(kMs);
  EXPECT_EQ(Poll(1).found, 20U);
  EXPECT_EQ(Poll(2).found, 4U);
  EXPECT_EQ(Poll(3).found, 4U);
  ExpectQuiet();
}

TEST_F(TightTest, WhoeverWaitsInLineMayGiveUp) {
  const auto first = Chain(1, 20);
  Save(first);
  const auto second = Chain(2, 4);
  ASSERT_EQ(world_.Publish(session_, std::span(second).first(2)), 2U);
  Save(second);
  delay_ns_ = 5 * kSecond;
  ASSERT_TRUE(Loads(1, first, {.request = 1}));
  ASSERT_TRUE(Loads(2, second, {.request = 2, .wait_ns = kSecond}));
  ASSERT_TRUE(Loads(3, second, {.request = 3}));
  Settle();
  ASSERT_TRUE(world_.service().CancelQuery(session_, {3, 1}, world_.now()).has_value());
  After(kSecond);
  const wire::PollEntry late = Poll(2);
  EXPECT_EQ(late.found, 2U) << "what is resident";
  EXPECT_EQ(late.reason, static_cast<std::uint32_t>(wire::MissReason::kTooLate));
  // The head gives up: the next one goes on.
  const auto third = Chain(3, 4);
  Save(third);
  ASSERT_TRUE(Loads(4, third, {.request = 4, .wait_ns = 50 * kSecond}));
  ASSERT_TRUE(world_.service().CancelQuery(session_, {1, 1}, world_.now()).has_value());
  After(5 * kSecond);
  After(5 * kSecond);
  EXPECT_EQ(Poll(4).found, 4U);
  ExpectQuiet();
}

TEST_F(TightTest, WarmUpsYieldAndAreSkippedWhenThereAreTooMany) {
  const auto chain = Chain(1, 12);
  Save(chain);
  const Ask warm{.request = 5, .mode = QueryMode::kWarmUp};
  const auto outcome = Submit(session_, 0, 0, chain, warm);
  EXPECT_FALSE(outcome->loading);
  EXPECT_TRUE(outcome->lease.is_none());
  Settle();
  EXPECT_EQ(gauges().loads, 6U) << "the smaller share";
  EXPECT_EQ(Submit(session_, 0, 0, Chain(9, 3), warm)->miss_reason, 0U) << "nothing to do";
  const auto more = Chain(2, 3);
  Save(more);
  EXPECT_EQ(Submit(session_, 0, 0, more, warm)->miss_reason, 0U);
  const auto surplus = Submit(session_, 0, 0, more, warm);
  EXPECT_EQ(surplus->miss_reason, static_cast<std::uint32_t>(wire::MissReason::kOverBudget));
  EXPECT_EQ(counters().warm_ups_skipped, 1U);
  // A foreground look-up goes before the rest of both.
  const auto urgent = Chain(3, 20);
  Save(urgent);
  ASSERT_TRUE(Loads(1, urgent));
  Settle();
  EXPECT_GE(gauges().loads, 15U);
  EXPECT_EQ(counters().warm_up_blocks, 6U);
  After(kMs);
  EXPECT_EQ(counters().load_blocks - counters().warm_up_blocks, 20U) << "the look-up has begun all of its own";
  After(kMs);
  EXPECT_EQ(Poll(1).found, 20U);
  After(kMs);
  After(kMs);
  After(kMs);
  EXPECT_EQ(counters().warm_up_blocks, 15U);
  EXPECT_EQ(gauges().warm_ups, 0U) << "retired without a poll";
  EXPECT_EQ(Submit(session_, 2, 1, chain)->found_blocks, 12U);
  ExpectQuiet();
}

TEST_F(TightTest, TooManyOperationsAreNotAdmittedAndChangeNothing) {
  delay_ns_ = kSecond;
  std::vector<std::vector<state::BlockHash>> chains;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    chains.push_back(Chain(i, 2));
    Save(chains.back());
    ASSERT_TRUE(Loads(i, chains.back(), {.request = i}));
  }
  const auto chain = Chain(9, 2);
  Save(chain);
  EXPECT_EQ(CodeOf(Submit(session_, 9, 1, chain, {.request = 9})), Code::kBusy);
  EXPECT_EQ(counters().queries_not_admitted, 1U);
  // In place there is room, also for a session that is at its limit.
  EXPECT_TRUE(Submit(session_, 8, 2, chain, {.request = 8})->loading);
  const SessionId other = world_.Join(world_.Worker("two"));
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(Submit(other, i, 1, chains[i], {.request = i})->loading);
  EXPECT_EQ(CodeOf(Submit(other, 5, 1, chain, {.request = 5})), Code::kBusy) << "in all";
  for (std::uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(world_.service().CancelQuery(session_, {i, 1}, world_.now()).has_value());
  }
  EXPECT_EQ(gauges().tombstones, 3U);
  EXPECT_EQ(State(1), TicketState::kUnknown) << "the oldest memory goes";
  EXPECT_EQ(State(5), TicketState::kCancelled);
  EXPECT_TRUE(Submit(session_, 9, 1, chain, {.request = 9})->loading) << "with the same number as before";
  ExpectQuiet();
}

TEST_F(TightTest, UnderPressureTheOldestResultGoesAfterAllLeases) {
  std::vector<std::vector<state::BlockHash>> chains;
  for (std::uint64_t i = 1; i <= 3; ++i) chains.push_back(Chain(i, 14));
  Save(chains[0]);
  Save(chains[1]);
  ASSERT_TRUE(Loads(1, chains[0], {.request = 1}));
  ASSERT_TRUE(Loads(2, chains[1], {.request = 2}));
  for (int i = 0; i < 3; ++i) After(kMs);
  ASSERT_EQ(world_.Publish(session_, chains[2]), 14U);
  ASSERT_EQ(world_.Found(session_, 3, chains[2]), 14U);
  ASSERT_EQ(pins(), 42U);
  // Slots that are being written take the rest of the pool, then more.
  std::uint64_t next = 100;
  while (counters().leases_revoked == 0 && next < 200) world_.Reserve(session_, Chain(next++, 1));
  EXPECT_EQ(counters().tickets_revoked, 0U);
  EXPECT_EQ(pins(), 28U);
  while (counters().tickets_revoked == 0 && next < 200) world_.Reserve(session_, Chain(next++, 1));
  EXPECT_EQ(pins(), 14U);
  EXPECT_EQ(State(1), TicketState::kNotAdmitted);
  EXPECT_EQ(State(2), TicketState::kReady);
  ExpectQuiet();
}

TEST_F(TightTest, ARevokedResultIsNotAdmitted) {
  const auto chain = Chain(1, 14);
  Save(chain);
  ASSERT_TRUE(Loads(1, chain));
  ASSERT_TRUE(Loads(2, chain, {.mode = QueryMode::kPrepare, .consumer = 4}));
  Settle();
  After(kMs);
  // More than the pool has room for beside them.
  for (std::uint64_t i = 10; i < 14; ++i) static_cast<void>(world_.Reserve(session_, Chain(i, 20)));
  EXPECT_EQ(counters().tickets_revoked, 2U);
  EXPECT_EQ(pins(), 0U);
  EXPECT_EQ(State(1), TicketState::kNotAdmitted);
  EXPECT_EQ(State(1), TicketState::kUnknown);
  EXPECT_EQ(CodeOf(Claim(session_, 4, 1)), Code::kBusy);
  ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
