// Reservations: who may write which slot, what a commit makes visible, what is left of writers that die.
#include <set>

#include "orbitkv/service/admissions.h"
#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {
namespace {

using wire::ReserveStatus;

constexpr std::uint32_t kStored = static_cast<std::uint32_t>(wire::CommitOutcome::kStored);
constexpr std::uint32_t kAlreadyThere = static_cast<std::uint32_t>(wire::CommitOutcome::kAlreadyThere);
constexpr std::uint32_t kLost = static_cast<std::uint32_t>(wire::CommitOutcome::kLost);

TEST(PublishTest, BlocksAreVisibleAfterTheirCommit) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 5);
  const ReservationId reservation = world.Reserve(session, chain);
  ASSERT_EQ(world.CountEntries(ReserveStatus::kSlot), 5U);
  std::set<std::uint64_t> offsets;
  for (const wire::ReserveEntry& entry : world.entries()) {
    EXPECT_EQ(entry.slot_bytes, world.slot_bytes());
    offsets.insert(entry.offset);
  }
  EXPECT_EQ(offsets.size(), 5U);
  EXPECT_EQ(world.Found(session, 1, chain), 0U);
  EXPECT_EQ(world.service().gauges().reserved_slots, 5U);
  EXPECT_EQ(world.Commit(session, reservation, chain), 5U);
  EXPECT_EQ(world.service().gauges().reserved_slots, 0U);
  EXPECT_EQ(world.service().gauges().reservations, 0U);
  EXPECT_EQ(world.Found(session, 1, chain), 5U);
  EXPECT_TRUE(world.Reserve(session, chain).is_none());
  EXPECT_EQ(world.CountEntries(ReserveStatus::kHaveIt), 5U);
  EXPECT_EQ(world.service().counters().bytes_stored, 5U * world.slot_bytes());
  world.ExpectQuiet();
}

TEST(PublishTest, AChainGoesOnBehindWhatIsStored) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 6);
  world.Publish(session, std::span(chain).first(2));
  const auto rest = std::span(chain).subspan(2);
  const ReserveOutcome outcome = World::Take(world.TryReserve(session, rest, 0, 2, chain[1]));
  EXPECT_EQ(world.Commit(session, outcome.reservation, rest), 4U);
  EXPECT_EQ(world.Found(session, 1, chain), 6U);
  world.ExpectQuiet();
}

TEST(PublishTest, EachBlockKnowsItsPlaceInThePrefix) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 5);
  world.Publish(session, std::span(chain).first(2));
  const auto rest = std::span(chain).subspan(2);
  const ReserveOutcome outcome = World::Take(world.TryReserve(session, rest, 0, 2, chain[1]));
  world.Commit(session, outcome.reservation, rest);
  for (std::uint32_t depth = 0; depth < 5; ++depth) {
    const auto ref = world.cache().Find(NamespaceRow(1), chain[depth]);
    ASSERT_TRUE(ref.has_value());
    const cache::PlanSlot slot = World::Take(world.cache().Plan(*ref, 0));
    const wire::SlotRecord record = World::Take(world.cache().pool().Read(slot.slot, slot.generation));
    EXPECT_EQ(record.depth, depth);
    EXPECT_EQ(record.parent, depth == 0 ? state::BlockHash{} : chain[depth - 1]);
    EXPECT_EQ(record.checksum, ChecksumOf(chain[depth], 0));
  }
  world.ExpectQuiet();
}

TEST(PublishTest, CommitsMayComeInParts) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 4);
  const ReservationId reservation = world.Reserve(session, chain);
  const std::vector<wire::ReserveEntry> all = world.entries();
  const auto part = [&all](std::size_t from, std::size_t count) {
    std::vector<wire::ReserveEntry> entries = all;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i < from || i >= from + count) entries[i].status = static_cast<std::uint32_t>(ReserveStatus::kNotNow);
    }
    return entries;
  };
  EXPECT_EQ(world.Commit(session, reservation, chain, 0, part(0, 2)), 2U);
  EXPECT_EQ(world.Found(session, 1, chain), 2U);
  EXPECT_EQ(world.service().gauges().reserved_slots, 2U);
  EXPECT_EQ(world.Commit(session, reservation, chain, 0, part(1, 2)), 1U);
  EXPECT_EQ(world.outcomes(), (std::vector<std::uint32_t>{kLost, kStored})) << "a slot is committed once";
  EXPECT_TRUE(world.service().PublishAbort(session, reservation, world.now()).has_value());
  EXPECT_TRUE(world.service().PublishAbort(session, reservation, world.now()).has_value());
  EXPECT_EQ(world.service().counters().blocks_aborted, 1U);
  EXPECT_EQ(world.cache().gauges().reserved_slots, 0U);
  EXPECT_EQ(world.Commit(session, reservation, chain, 0, part(3, 1)), 0U);
  EXPECT_EQ(world.outcomes(), (std::vector<std::uint32_t>{kLost}));
  EXPECT_EQ(world.Found(session, 1, chain), 3U);
  world.ExpectQuiet();
}

TEST(PublishTest, OnlyTheOwnerAndOnlyItsSlots) {
  World world;
  const SessionId one = world.Join(world.Worker("engine"));
  const SessionId two = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 2);
  const ReservationId reservation = world.Reserve(one, chain);
  EXPECT_EQ(world.Commit(two, reservation, chain), 0U);
  EXPECT_EQ(world.outcomes(), (std::vector<std::uint32_t>{kLost, kLost}));
  EXPECT_TRUE(world.service().PublishAbort(two, reservation, world.now()).has_value());
  EXPECT_EQ(world.service().gauges().reserved_slots, 2U);
  std::vector<wire::ReserveEntry> forged = world.entries();
  forged[1].generation += 1;
  EXPECT_EQ(world.Commit(one, reservation, chain, 0, forged), 1U);
  EXPECT_EQ(world.outcomes(), (std::vector<std::uint32_t>{kStored, kLost}));
  std::vector<std::uint32_t> outcomes;
  const wire::CommitEntry far{.slot_checksum = 0, .generation = forged[1].generation - 1, .index = 2, .reserved = 0};
  const wire::CommitView view{.entries = std::span(&far, 1)};
  EXPECT_EQ(World::Take(world.service().PublishCommit(one, reservation, view, world.now(), outcomes)), 0U);
  EXPECT_EQ(world.service().gauges().reserved_slots, 1U) << "a bad commit leaves the slot alone";
  world.ExpectQuiet();
}

TEST(PublishTest, ReservesThatAreRefused) {
  World world;
  const SessionId worker = world.Join(world.Worker("engine", 0, 2, 0, 2));
  world.Join(world.Worker("engine", 1, 2, 1, 2));
  const SessionId scheduler = world.Join(world.Scheduler("engine", 2, 2));
  const auto chain = Chain(1, 2);
  EXPECT_EQ(CodeOf(world.TryReserve(scheduler, chain)), Code::kRefused);
  EXPECT_EQ(CodeOf(world.TryReserve(worker, chain, 1)), Code::kRefused) << "another rank's shard";
  EXPECT_EQ(CodeOf(world.TryReserve(worker, {})), Code::kInvalid);
  EXPECT_EQ(CodeOf(world.TryReserve(worker, Chain(1, wire::kMaxBlocksPerReserve + 1))), Code::kInvalid);
  EXPECT_EQ(CodeOf(world.TryReserve(worker, chain, 0, 0xffffffffU, chain[0])), Code::kInvalid);
  std::vector<wire::ReserveEntry> out;
  wire::ReserveView view{};
  view.hashes = chain;
  view.header.slot_bytes = world.slot_bytes() - 8;
  EXPECT_EQ(CodeOf(world.service().StartReserve(worker, view, world.now(), out)), Code::kInvalid);
  view.header.slot_bytes = world.slot_bytes();
  view.header.group = 1;
  EXPECT_EQ(CodeOf(world.service().StartReserve(worker, view, world.now(), out)), Code::kInvalid);
  EXPECT_EQ(CodeOf(world.service().ContinueReserve(worker, world.now(), out)), Code::kInvalid);
  world.ExpectQuiet();
}

TEST(PublishTest, TwoInstancesWriteTheSameKey) {
  World world;
  const SessionId one = world.Join(world.Worker("one"));
  const SessionId two = world.Join(world.Worker("two"));
  const auto chain = Chain(1, 3);
  const ReservationId first = world.Reserve(one, chain);
  const std::vector<wire::ReserveEntry> first_slots = world.entries();
  const ReservationId second = world.Reserve(two, chain);
  const std::vector<wire::ReserveEntry> second_slots = world.entries();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NE(first_slots[i].offset, second_slots[i].offset);
  EXPECT_EQ(world.Commit(two, second, chain, 0, second_slots), 3U);
  EXPECT_EQ(world.Commit(one, first, chain, 0, first_slots), 0U);
  EXPECT_EQ(world.outcomes(), std::vector<std::uint32_t>(3, kAlreadyThere));
  EXPECT_EQ(world.Found(one, 1, chain), 3U);
  EXPECT_EQ(world.Found(two, 1, chain), 3U);
  world.ExpectQuiet();
}

TEST(PublishTest, AWriterThatDiesHalfWayBlocksNobody) {
  World world;
  const SessionId dying = world.Join(world.Worker("one"));
  const SessionId other = world.Join(world.Worker("two"));
  const auto chain = Chain(1, 4);
  const ReservationId reservation = world.Reserve(dying, chain);
  std::vector<wire::ReserveEntry> half = world.entries();
  half[2].status = half[3].status = static_cast<std::uint32_t>(ReserveStatus::kNotNow);
  EXPECT_EQ(world.Commit(dying, reservation, chain, 0, half), 2U);
  const ReservationId second = world.Reserve(other, chain);
  EXPECT_EQ(world.CountEntries(ReserveStatus::kHaveIt), 2U);
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 2U);
  world.service().DetachSession(dying, world.now());
  EXPECT_EQ(world.service().gauges().reserved_slots, 4U) << "it may still be writing";
  world.End(dying);
  EXPECT_EQ(world.service().gauges().reserved_slots, 2U);
  EXPECT_EQ(world.Commit(other, second, chain), 2U);
  EXPECT_EQ(world.Found(other, 1, chain), 4U);
  world.ExpectQuiet();
}

TEST(PublishTest, ReservedSlotsNeverExpire) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 2);
  const ReservationId reservation = world.Reserve(session, chain);
  world.Advance(3600 * kSecond);
  EXPECT_EQ(world.service().gauges().reserved_slots, 2U);
  EXPECT_EQ(world.Commit(session, reservation, chain), 2U);
  world.ExpectQuiet();
}

TEST(PublishTest, TheSessionBudgetIsSharedByItsReservations) {
  WorldOptions options;
  options.page_bytes = 32 * 1024;
  options.limits.reserved_percent_per_session = 2;  // 1.28 MiB: 20 slots of 65,552 bytes rounded to 66,048
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const SessionId other = world.Join(world.Worker("engine"));
  const ReservationId first = world.Reserve(session, Chain(1, 12));
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 12U);
  const std::vector<wire::ReserveEntry> slots = world.entries();
  world.Reserve(session, Chain(2, 12));
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 8U);
  EXPECT_EQ(world.CountEntries(ReserveStatus::kNotNow), 4U);
  EXPECT_EQ(world.service().counters().blocks_over_budget, 1U) << "the others only follow";
  EXPECT_LE(world.service().gauges().reserved_bytes, world.service().limits().reserved_bytes_per_session());
  world.Reserve(other, Chain(3, 12));
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 12U) << "another session has its own";
  EXPECT_EQ(world.Commit(session, first, Chain(1, 12), 0, slots), 12U);
  world.Reserve(session, Chain(4, 12));
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 12U) << "committed slots count no more";
  world.ExpectQuiet();
}

TEST(PublishTest, ABudgetBelowOneSlotAllowsOne) {
  WorldOptions options;
  options.page_bytes = 400 * 1024;
  options.pool_bytes = 2 * kMiB;  // a pool of one slab
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 3);
  const ReservationId reservation = world.Reserve(session, chain);
  EXPECT_EQ(world.CountEntries(ReserveStatus::kSlot), 1U);
  EXPECT_EQ(world.Commit(session, reservation, chain), 1U);
  EXPECT_EQ(world.Found(session, 1, chain), 1U);
  world.ExpectQuiet();
}

TEST(PublishTest, AfterTheFirstNotNowAllGetNotNow) {
  WorldOptions options;
  options.page_bytes = 256 * 1024;
  options.pool_bytes = 4 * kMiB;
  options.limits.reserved_percent_per_session = 100;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const auto last = Chain(2, 1);
  world.Publish(session, last);
  const LeaseId lease = world.Query(session, 1, last).lease;
  ASSERT_TRUE(world.Begin(session, lease, 1, {0}, 1).has_value());
  auto chain = Chain(1, 12);
  chain.push_back(last[0]);
  world.Reserve(session, chain);
  EXPECT_GT(world.CountEntries(ReserveStatus::kSlot), 3U);
  EXPECT_EQ(world.CountEntries(ReserveStatus::kHaveIt), 0U) << "the last block comes after a not-now";
  EXPECT_EQ(world.entries().back().status, static_cast<std::uint32_t>(ReserveStatus::kNotNow));
  world.ExpectQuiet();
}

TEST(PublishTest, ReservationsPerSessionAreBounded) {
  WorldOptions options;
  options.limits.reservations_per_session = 2;
  World world(options);
  const SessionId session = world.Join(world.Worker("engine"));
  const ReservationId first = world.Reserve(session, Chain(1, 1));
  world.Reserve(session, Chain(2, 1));
  EXPECT_EQ(CodeOf(world.TryReserve(session, Chain(3, 1))), Code::kBusy);
  EXPECT_TRUE(world.service().PublishAbort(session, first, world.now()).has_value());
  EXPECT_TRUE(world.TryReserve(session, Chain(3, 1)).has_value());
  world.ExpectQuiet();
}

TEST(PublishTest, LongReservesTakeSteps) {
  World world;
  const SessionId session = world.Join(world.Worker("engine"));
  const auto chain = Chain(1, 1100);
  wire::ReserveView view{};
  view.hashes = chain;
  view.header.slot_bytes = world.slot_bytes();
  std::vector<wire::ReserveEntry> out;
  EXPECT_TRUE(World::Take(world.service().StartReserve(session, view, world.now(), out)).more);
  EXPECT_EQ(out.size(), 512U);
  EXPECT_EQ(CodeOf(world.TryQuery(session, 1, chain)), Code::kBusy);
  EXPECT_TRUE(World::Take(world.service().ContinueReserve(session, world.now(), out)).more);
  const ReserveOutcome outcome = World::Take(world.service().ContinueReserve(session, world.now(), out));
  EXPECT_FALSE(outcome.more);
  ASSERT_EQ(out.size(), 1100U);
  EXPECT_EQ(world.Commit(session, outcome.reservation, chain, 0, out), 1100U);

  const auto other = Chain(2, 1100);
  view.hashes = other;
  EXPECT_TRUE(World::Take(world.service().StartReserve(session, view, world.now(), out)).more);
  world.service().CancelStep(session, world.now());
  EXPECT_EQ(world.service().gauges().reserved_slots, 0U);
  EXPECT_EQ(world.cache().gauges().reserved_slots, 0U);
  // Half way at a lost connection: the answer with the slots never arrived, so nobody writes them.
  EXPECT_TRUE(World::Take(world.service().StartReserve(session, view, world.now(), out)).more);
  world.service().DetachSession(session, world.now());
  EXPECT_EQ(world.service().gauges().reserved_slots, 0U);
  world.ExpectQuiet();
}

TEST(PublishTest, ANamespaceThatIsFormedHalfWayComesTooLateForAReserve) {
  World world;
  const SessionId first = world.Join(world.Worker("engine", 0, 2));
  const auto chain = Chain(1, 600);
  wire::ReserveView view{};
  view.hashes = chain;
  view.header.slot_bytes = world.slot_bytes();
  std::vector<wire::ReserveEntry> out;
  EXPECT_TRUE(World::Take(world.service().StartReserve(first, view, world.now(), out)).more);
  world.Join(world.Worker("engine", 1, 2));
  const ReserveOutcome outcome = World::Take(world.service().ContinueReserve(first, world.now(), out));
  EXPECT_TRUE(outcome.reservation.is_none());
  ASSERT_EQ(out.size(), 600U);
  for (const wire::ReserveEntry& entry : out) {
    ASSERT_EQ(entry.status, static_cast<std::uint32_t>(ReserveStatus::kNotNow));
  }
  EXPECT_EQ(world.Reserve(first, chain), ReservationId(1));
  world.ExpectQuiet();
}

// Two ranks with a shard each.
class ShardsTest : public testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.page_bytes = 32 * 1024;
    options.limits.reserved_percent_per_session = 2;  // 20 slots
    return options;
  }
  World world_{Options()};
  SessionId ranks_[2] = {world_.Join(world_.Worker("engine", 0, 2, 0, 2)),
                         world_.Join(world_.Worker("engine", 1, 2, 1, 2))};
};

TEST_F(ShardsTest, ABlockIsVisibleWithItsLastShard) {
  const auto chain = Chain(1, 3);
  world_.Publish(ranks_[0], chain, 0);
  EXPECT_EQ(world_.Found(ranks_[0], 1, chain), 0U);
  world_.Publish(ranks_[1], chain, 1);
  EXPECT_EQ(world_.Found(ranks_[0], 1, chain), 3U);
  EXPECT_EQ(world_.service().gauges().admissions, 0U);
  world_.ExpectQuiet();
}

TEST_F(ShardsTest, TheFirstShardsAnswerDecidesForAll) {
  const auto chain = Chain(1, 25);
  world_.Reserve(ranks_[0], chain, 0);
  ASSERT_EQ(world_.CountEntries(ReserveStatus::kSlot), 20U) << "its budget";
  world_.Reserve(ranks_[1], std::span(chain).subspan(18), 1);
  EXPECT_EQ(world_.CountEntries(ReserveStatus::kSlot), 2U) << "only what the first shard stores";
  EXPECT_EQ(world_.CountEntries(ReserveStatus::kNotNow), 5U);
  EXPECT_EQ(world_.service().gauges().admissions, 18U);
  // A shard that asks again begins a new round.
  world_.Reserve(ranks_[1], std::span(chain).subspan(20), 1);
  EXPECT_EQ(world_.CountEntries(ReserveStatus::kSlot), 5U);
  world_.ExpectQuiet();
}

TEST_F(ShardsTest, AWriterThatDiesLeavesAFirstVictim) {
  const auto chain = Chain(1, 2);
  world_.Publish(ranks_[0], chain, 0);
  world_.Reserve(ranks_[1], chain, 1);
  EXPECT_EQ(world_.cache().counters().incomplete, 0U);
  world_.End(ranks_[1]);
  EXPECT_EQ(world_.service().gauges().reserved_slots, 0U);
  EXPECT_EQ(world_.cache().counters().incomplete, 2U) << "at once, not after ten seconds";
  EXPECT_EQ(world_.Found(ranks_[0], 1, chain), 0U);
  world_.ExpectQuiet();
}

TEST_F(ShardsTest, BlocksThatStayIncompleteAreCounted) {
  world_.Publish(ranks_[0], Chain(1, 2), 0);
  ASSERT_TRUE(world_.service().NextDeadline().has_value());
  world_.Advance(*world_.service().NextDeadline() - world_.now() + kSecond);
  world_.Advance(10 * kSecond);
  EXPECT_EQ(world_.cache().counters().incomplete, 2U);
  world_.ExpectQuiet();
}

TEST(AdmissionsTest, OneRoundPerBlock) {
  Admissions admissions(3, 10);
  const auto hash = Chain(1, 1)[0];
  EXPECT_EQ(admissions.Ask(hash, 1), std::nullopt);
  admissions.Decide(hash, 1, false);
  EXPECT_EQ(admissions.Ask(hash, 0), false);
  EXPECT_EQ(admissions.Ask(hash, 2), false);
  EXPECT_EQ(admissions.size(), 0U);
  EXPECT_EQ(admissions.Ask(hash, 0), std::nullopt);
  admissions.Decide(hash, 0, true);
  EXPECT_EQ(admissions.Ask(hash, 0), std::nullopt) << "the same shard again: a new round";
  admissions.Decide(hash, 0, false);
  EXPECT_EQ(admissions.Ask(hash, 2), false);
}

TEST(AdmissionsTest, OnlyTheNewestDecisionsAreKept) {
  Admissions admissions(2, 3);
  const auto hashes = Chain(1, 4);
  for (const auto& hash : hashes) admissions.Decide(hash, 0, false);
  EXPECT_EQ(admissions.size(), 3U);
  EXPECT_EQ(admissions.Ask(hashes[0], 1), std::nullopt);
  EXPECT_EQ(admissions.Ask(hashes[3], 1), false);
  // A block that is decided anew is as new as its last decision.
  Admissions again(2, 3);
  again.Decide(hashes[0], 0, false);
  again.Decide(hashes[1], 0, false);
  again.Decide(hashes[0], 0, true);
  again.Decide(hashes[2], 0, false);
  EXPECT_EQ(again.Ask(hashes[0], 1), true);
}

}  // namespace
}  // namespace orbitkv::service
