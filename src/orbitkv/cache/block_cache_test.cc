#include "orbitkv/cache/block_cache.h"

#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/cache/test_cache.h"

namespace orbitkv::cache {
namespace {

using pool::SlotIndex;

// Slots of one unit: a pool of n units has n of them.
const std::vector<ComponentSpec> kWholeUnit{{.group = 0, .shard = 0, .slot_bytes = kTestUnit}};
const std::vector<ComponentSpec> kTwoShards{{.group = 0, .shard = 0, .slot_bytes = kTestUnit},
                                            {.group = 0, .shard = 1, .slot_bytes = kTestUnit}};

std::vector<state::BlockHash> Hashes(std::uint64_t first, std::uint64_t count) {
  std::vector<state::BlockHash> hashes;
  for (std::uint64_t i = 0; i < count; ++i) hashes.push_back(TestCache::Hash(first + i));
  return hashes;
}

TEST(BlockCache, LimitsAreChecked) {
  TestCache t(4);
  EXPECT_FALSE(BlockCache::Create({.max_blocks = 0}, *t.pool));
  EXPECT_FALSE(BlockCache::Create({.max_blocks = 1, .max_namespaces = 0}, *t.pool));
  EXPECT_EQ(t.cache->AddNamespace(NamespaceRow(0), kWholeUnit).error().code, Code::kInvalid);
  EXPECT_EQ(t.cache->AddNamespace(NamespaceRow(1025), kWholeUnit).error().code, Code::kInvalid);
  EXPECT_EQ(t.cache->AddNamespace(kRow, {}).error().code, Code::kInvalid);
  const ComponentSpec zero{};
  EXPECT_EQ(t.cache->AddNamespace(kRow, std::span(&zero, 1)).error().code, Code::kInvalid);
  const ComponentSpec large{.slot_bytes = 4 * kTestUnit + 1};
  EXPECT_EQ(t.cache->AddNamespace(kRow, std::span(&large, 1)).error().code, Code::kInvalid);
  EXPECT_TRUE(t.cache->AddNamespace(kRow, kWholeUnit));
  EXPECT_TRUE(t.cache->AddNamespace(kRow, kWholeUnit));
  EXPECT_EQ(t.cache->AddNamespace(kRow, kTwoShards).error().code, Code::kRefused);
  EXPECT_EQ(t.cache->ComponentCount(kRow), 1U);
  EXPECT_EQ(t.cache->ComponentCount(NamespaceRow(2)), 0U);
  EXPECT_EQ(t.cache->Reserve({NamespaceRow(2), TestCache::Hash(1), 0}, 1).status, ReserveStatus::kNotNow);
  EXPECT_EQ(t.cache->Reserve({kRow, TestCache::Hash(1), 1}, 1).status, ReserveStatus::kNotNow);
}

TEST(BlockCache, PublishedBlockIsFoundAndPlanned) {
  TestCache t(4);
  t.Add(kRow, {{.group = 7, .shard = 2, .slot_bytes = 3000}});
  const ReserveOutcome reserved = t.cache->Reserve({kRow, TestCache::Hash(5), 0}, 1);
  ASSERT_EQ(reserved.status, ReserveStatus::kSlot);
  EXPECT_EQ(reserved.slot.slot_bytes, 3072U);
  EXPECT_FALSE(t.Has(5));  // a slot being written is not in the index
  EXPECT_EQ(t.cache->gauges().reserved_slots, 1U);
  ASSERT_EQ(t.cache->Commit(t.Request(5, 0, reserved.slot), 1), CommitOutcome::kStored);
  ASSERT_TRUE(t.Has(5));
  EXPECT_FALSE(t.Has(5, NamespaceRow(2)));
  const BlockRef ref = t.Ref(5);
  EXPECT_EQ(t.cache->BytesOf(ref), 3072U);
  const auto plan = t.cache->Plan(ref, 0);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->offset, reserved.slot.offset);
  EXPECT_EQ(plan->generation, reserved.slot.generation);
  EXPECT_EQ(plan->checksum, 15U);
  EXPECT_EQ(plan->payload_bytes, 3000U);
  EXPECT_EQ(plan->slot, reserved.slot.index);
  EXPECT_EQ(t.cache->Plan(ref, 1).error().code, Code::kNotFound);
  EXPECT_EQ(t.cache->Reserve({kRow, TestCache::Hash(5), 0}, 2).status, ReserveStatus::kHaveIt);
  EXPECT_EQ(t.cache->gauges().complete, 1U);
  EXPECT_EQ(t.cache->gauges().reserved_slots, 0U);
}

TEST(BlockCache, ANamespaceIsForgottenWhenNothingBelongsToIt) {
  TestCache t(4);
  const NamespaceRow row(2);
  EXPECT_TRUE(t.cache->ForgetNamespace(row)) << "unknown";
  t.Add(row, {{.group = 0, .shard = 0, .slot_bytes = 3000}});
  const ReserveOutcome aborted = t.cache->Reserve({row, TestCache::Hash(5), 0}, 1);
  EXPECT_EQ(t.cache->ForgetNamespace(row).error().code, Code::kBusy) << "a slot is being written";
  ASSERT_TRUE(t.cache->AbortReserved(aborted.slot.index, aborted.slot.generation));
  ASSERT_TRUE(t.Publish(5, 0, 0, row));
  const ReserveOutcome second = t.cache->Reserve({row, TestCache::Hash(5), 0}, 1);
  EXPECT_EQ(second.status, ReserveStatus::kHaveIt);
  const BlockRef ref = t.Ref(5, row);
  EXPECT_EQ(t.cache->ForgetNamespace(row).error().code, Code::kBusy);
  ASSERT_TRUE(t.cache->PinGranted(ref));
  ASSERT_TRUE(t.cache->Drop(ref, 0, DropReason::kWithdrawn));
  EXPECT_EQ(t.cache->ForgetNamespace(row).error().code, Code::kBusy) << "a reader still has it";
  t.cache->UnpinGranted(ref);
  ASSERT_TRUE(t.cache->ForgetNamespace(row));
  EXPECT_EQ(t.cache->Reserve({row, TestCache::Hash(5), 0}, 1).status, ReserveStatus::kNotNow);
  t.Add(row, {{.group = 1, .shard = 0, .slot_bytes = 500}, {.group = 1, .shard = 1, .slot_bytes = 500}});
  EXPECT_EQ(t.cache->ComponentCount(row), 2U);
}

TEST(BlockCache, MatchEndsAtTheFirstGap) {
  TestCache t(100);
  t.Add(kRow, kWholeUnit);
  for (std::uint32_t i = 0; i < 90; ++i) {
    if (i == 70) continue;
    ASSERT_TRUE(t.Publish(1000 + i, i));
  }
  std::vector<BlockRef> refs;
  EXPECT_EQ(t.cache->MatchPrefix(kRow, Hashes(1000, 90), refs), 70U);
  ASSERT_EQ(refs.size(), 70U);
  for (std::uint32_t i = 0; i < 70; ++i) EXPECT_EQ(refs[i], t.Ref(1000 + i));
  EXPECT_EQ(t.cache->MatchPrefix(kRow, Hashes(1071, 19), refs), 19U);
  EXPECT_EQ(refs.size(), 89U);
  EXPECT_EQ(t.cache->MatchPrefix(kRow, Hashes(5, 3), refs), 0U);
  EXPECT_EQ(t.cache->MatchPrefix(kRow, {}, refs), 0U);
  EXPECT_EQ(t.cache->MatchPrefix(NamespaceRow(9), Hashes(1000, 3), refs), 0U);
}

TEST(BlockCache, BlockIsServedWithItsLastComponent) {
  TestCache t(8);
  t.Add(kRow, kTwoShards);
  ASSERT_TRUE(t.Publish(1, 0, 0));
  EXPECT_FALSE(t.Has(1));
  EXPECT_EQ(t.cache->Reserve({kRow, TestCache::Hash(1), 0}, 5).status, ReserveStatus::kHaveIt);
  ASSERT_TRUE(t.Publish(1, 0, 1));
  EXPECT_TRUE(t.Has(1));
  EXPECT_EQ(t.cache->counters().inserts, 1U);
  EXPECT_EQ(t.cache->counters().commits, 2U);
  const auto first = t.cache->Plan(t.Ref(1), 0);
  const auto second = t.cache->Plan(t.Ref(1), 1);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->offset, second->offset);
  EXPECT_EQ(second->checksum, 4U);
}

TEST(BlockCache, FirstCommitWinsAndTheLoserIsFreed) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  const auto one = t.cache->Reserve({kRow, TestCache::Hash(1), 0}, 1);
  const auto two = t.cache->Reserve({kRow, TestCache::Hash(1), 0}, 1);
  ASSERT_EQ(two.status, ReserveStatus::kSlot);
  EXPECT_NE(one.slot.offset, two.slot.offset);
  EXPECT_EQ(t.cache->Commit(t.Request(1, 0, two.slot), 2), CommitOutcome::kStored);
  EXPECT_EQ(t.cache->Commit(t.Request(1, 0, one.slot), 2), CommitOutcome::kAlreadyThere);
  EXPECT_EQ(t.cache->Plan(t.Ref(1), 0)->offset, two.slot.offset);
  EXPECT_EQ(t.pool->gauges().slots_writing, 0U);
  EXPECT_EQ(t.pool->gauges().slots_sealed, 1U);
  EXPECT_EQ(t.cache->Commit(t.Request(1, 0, one.slot), 2), CommitOutcome::kLost);
}

TEST(BlockCache, ForeignOrWrongCommitsAreLost) {
  TestCache t(4);
  t.Add(kRow, kTwoShards);
  t.Add(NamespaceRow(2), kTwoShards);
  const auto reserved = t.cache->Reserve({kRow, TestCache::Hash(1), 0}, 1);
  CommitRequest request = t.Request(1, 0, reserved.slot);
  const auto lost = [&](auto change) {
    CommitRequest changed = request;
    change(changed);
    EXPECT_EQ(t.cache->Commit(changed, 1), CommitOutcome::kLost);
  };
  lost([](CommitRequest& r) { ++r.generation; });
  lost([](CommitRequest& r) { r.component = 1; });
  lost([](CommitRequest& r) { r.row = NamespaceRow(2); });
  lost([](CommitRequest& r) { r.row = NamespaceRow(77); });
  lost([](CommitRequest& r) { r.slot = SlotIndex(0); });
  lost([](CommitRequest& r) { r.slot = SlotIndex(4'000'000); });
  EXPECT_EQ(t.cache->gauges().reserved_slots, 1U);
  EXPECT_EQ(t.cache->Commit(request, 1), CommitOutcome::kStored);  // none of that took the slot away
  EXPECT_EQ(t.cache->AbortReserved(reserved.slot.index, reserved.slot.generation).error().code, Code::kStale);
}

TEST(BlockCache, DepthMustFollowTheTree) {
  TestCache t(8);
  t.Add(kRow, kWholeUnit);
  const auto reserve = [&](std::uint64_t n) { return t.cache->Reserve({kRow, TestCache::Hash(n), 0}, 1).slot; };
  CommitRequest orphan = t.Request(2, 1, reserve(2));
  orphan.parent.reset();
  EXPECT_EQ(t.cache->Commit(orphan, 1), CommitOutcome::kLost);
  // A block that names itself, and two that name each other: stored, but never a cycle; everything can be evicted.
  CommitRequest own = t.Request(3, 4, reserve(3));
  own.parent = TestCache::Hash(3);
  EXPECT_EQ(t.cache->Commit(own, 1), CommitOutcome::kStored);
  CommitRequest left = t.Request(5, 1, reserve(5));
  left.parent = TestCache::Hash(6);
  EXPECT_EQ(t.cache->Commit(left, 1), CommitOutcome::kStored);
  CommitRequest right = t.Request(6, 1, reserve(6));
  right.parent = TestCache::Hash(5);
  EXPECT_EQ(t.cache->Commit(right, 1), CommitOutcome::kLost);  // it was depth 0 for the other
  EXPECT_EQ(t.pool->gauges().slots_writing, 0U);
  for (std::uint64_t n = 100; n < 120; ++n) EXPECT_TRUE(t.Publish(n, 0));
  EXPECT_FALSE(t.Has(3));
  EXPECT_FALSE(t.Has(5));
}

TEST(BlockCache, LeavesGoBeforeTheirParents) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(t.Publish(10 + i, i));
  ASSERT_TRUE(t.Publish(50, 0));
  EXPECT_FALSE(t.Has(13));  // the end of the chain, though the head was used longest ago
  EXPECT_TRUE(t.Has(10));
  ASSERT_TRUE(t.Publish(51, 0));
  EXPECT_FALSE(t.Has(12));
  t.cache->Touch(std::vector{t.Ref(11), t.Ref(10)}, ++t.now);
  ASSERT_TRUE(t.Publish(52, 0));
  EXPECT_FALSE(t.Has(50));
  EXPECT_TRUE(t.Has(11));
  EXPECT_EQ(t.cache->counters().evictions, 3U);
}

TEST(BlockCache, ParentMayComeAfterItsChild) {
  TestCache t(3);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(11, 1));
  EXPECT_FALSE(t.Has(10));
  EXPECT_EQ(t.cache->gauges().entries, 2U);
  ASSERT_TRUE(t.Publish(10, 0));
  EXPECT_TRUE(t.Has(10));
  ASSERT_TRUE(t.Publish(20, 0));
  ASSERT_TRUE(t.Publish(21, 0));
  EXPECT_FALSE(t.Has(11));
  EXPECT_TRUE(t.Has(10));
}

TEST(BlockCache, GrantedBlocksAreNeverVictims) {
  TestCache t(3);
  t.Add(kRow, kWholeUnit);
  for (std::uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(t.Publish(n, 0));
  const BlockRef ref = t.Ref(0);
  ASSERT_TRUE(t.cache->PinGranted(ref));
  ASSERT_TRUE(t.cache->PinGranted(ref));
  const auto before = t.cache->Plan(ref, 0);
  for (std::uint32_t n = 10; n < 30; ++n) ASSERT_TRUE(t.Publish(n, 0));
  EXPECT_TRUE(t.Has(0));
  EXPECT_EQ(t.cache->Plan(ref, 0)->generation, before->generation);
  t.cache->UnpinGranted(ref);
  ASSERT_TRUE(t.Publish(30, 0));
  EXPECT_TRUE(t.Has(0));
  t.cache->UnpinGranted(ref);
  for (std::uint32_t n = 31; n < 33; ++n) ASSERT_TRUE(t.Publish(n, 0));
  EXPECT_FALSE(t.Has(0));
  EXPECT_FALSE(t.cache->PinGranted(ref));
  EXPECT_FALSE(t.cache->IsServed(ref));
  EXPECT_EQ(t.cache->BytesOf(ref), 0U);
  EXPECT_EQ(t.cache->Plan(ref, 0).error().code, Code::kStale);
}

TEST(BlockCache, PoolOfOneSlot) {
  TestCache t(1);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  EXPECT_FALSE(t.Publish(2, 1));  // room for what continues the block is not made from the block
  EXPECT_TRUE(t.Has(1));
  ASSERT_TRUE(t.Publish(2, 0));
  EXPECT_FALSE(t.Has(1));
  EXPECT_TRUE(t.Has(2));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(2)));
  EXPECT_FALSE(t.Publish(3, 0));
  t.cache->UnpinGranted(t.Ref(2));
  const auto writing = t.cache->Reserve({kRow, TestCache::Hash(3), 0}, ++t.now);
  ASSERT_EQ(writing.status, ReserveStatus::kSlot);
  EXPECT_FALSE(t.Publish(4, 0));  // a slot being written is nobody's victim
  EXPECT_TRUE(t.cache->AbortReserved(writing.slot.index, writing.slot.generation));
  EXPECT_TRUE(t.Publish(4, 0));
  EXPECT_EQ(t.cache->gauges().entries, 1U);
}

TEST(BlockCache, LeasesAreRevokedLastAndOnlyAsNeeded) {
  TestCache t(4);
  TestLeases leases(t);
  t.Add(kRow, kWholeUnit);
  for (std::uint32_t n = 0; n < 4; ++n) ASSERT_TRUE(t.Publish(n, 0));
  for (std::uint32_t n = 0; n < 3; ++n) leases.Lease(t.Ref(n));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(1)));
  ASSERT_TRUE(t.Publish(10, 0));
  EXPECT_FALSE(t.Has(3));
  EXPECT_EQ(leases.count(), 3U);
  leases.Lease(t.Ref(10));
  ASSERT_TRUE(t.Publish(11, 0));
  EXPECT_FALSE(t.Has(0));
  EXPECT_EQ(leases.count(), 3U);
  leases.Lease(t.Ref(11));
  ASSERT_TRUE(t.Publish(12, 0));  // the lease on 1 goes in vain: 1 is granted too
  EXPECT_TRUE(t.Has(1));
  EXPECT_FALSE(t.Has(2));
  EXPECT_EQ(t.cache->counters().revoked, 3U);
}

TEST(BlockCache, IncompleteBlocksGoFirst) {
  TestCache t(4, {.max_blocks = 100, .incomplete_after_ns = 1000});
  t.Add(kRow, kTwoShards);
  ASSERT_TRUE(t.Publish(1, 0, 0));
  ASSERT_TRUE(t.Publish(1, 0, 1));
  ASSERT_TRUE(t.Publish(2, 0, 0));
  ASSERT_TRUE(t.cache->next_deadline_ns());
  EXPECT_EQ(*t.cache->next_deadline_ns(), t.now + 1000);
  t.cache->Tick(t.now + 999);
  EXPECT_EQ(t.cache->counters().incomplete, 0U);
  t.now += 1000;
  t.cache->Tick(t.now);
  EXPECT_EQ(t.cache->counters().incomplete, 1U);
  EXPECT_FALSE(t.cache->next_deadline_ns());
  // One slot is free, the second one comes from the late block, although block 1 was used longer ago.
  ASSERT_TRUE(t.Publish(7, 0, 0));
  ASSERT_TRUE(t.Publish(7, 0, 1));
  EXPECT_TRUE(t.Has(1));
  EXPECT_TRUE(t.Has(7));
  EXPECT_EQ(t.cache->Reserve({kRow, TestCache::Hash(2), 0}, t.now).status, ReserveStatus::kSlot);
}

TEST(BlockCache, RoomForAParentIsNotTakenFromItsChild) {
  TestCache t(8, {.max_blocks = 2});
  t.Add(kRow, kTwoShards);
  ASSERT_TRUE(t.Publish(9, 0, 0));
  ASSERT_TRUE(t.Publish(9, 0, 1));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(9)));
  ASSERT_TRUE(t.Publish(2, 1, 0));  // no entry is left for its parent
  ASSERT_TRUE(t.Publish(2, 1, 1));
  EXPECT_TRUE(t.Has(2));
}

TEST(BlockCache, LateComponentStillCompletesAndLostWriterIsKnownAtOnce) {
  TestCache t(8);
  t.Add(kRow, kTwoShards);
  ASSERT_TRUE(t.Publish(1, 0, 0));
  t.cache->WriterLost(kRow, TestCache::Hash(1));
  t.cache->WriterLost(kRow, TestCache::Hash(1));
  t.cache->WriterLost(kRow, TestCache::Hash(99));
  EXPECT_EQ(t.cache->counters().incomplete, 1U);
  EXPECT_FALSE(t.cache->next_deadline_ns());
  ASSERT_TRUE(t.Publish(1, 0, 1));
  EXPECT_TRUE(t.Has(1));
  for (std::uint64_t n = 10; n < 13; ++n) {
    ASSERT_TRUE(t.Publish(n, 0, 0));
    ASSERT_TRUE(t.Publish(n, 0, 1));
  }
  EXPECT_TRUE(t.Has(1));  // the pool is exactly full: nothing had to go
}

TEST(BlockCache, SuspectIsNeitherServedNorEvicted) {
  TestCache t(2);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  ASSERT_TRUE(t.Publish(2, 0));
  const BlockRef ref = t.Ref(1);
  const auto plan = t.cache->Plan(ref, 0);
  const auto racing_writer = [&] { return t.cache->Reserve({kRow, TestCache::Hash(1), 0}, ++t.now).status; };
  ASSERT_TRUE(t.cache->MarkSuspect(ref, 0));
  ASSERT_TRUE(t.cache->MarkSuspect(ref, 0));
  EXPECT_FALSE(t.Has(1));
  EXPECT_FALSE(t.cache->PinFound(ref));
  EXPECT_EQ(t.cache->gauges().suspect, 1U);
  EXPECT_EQ(t.cache->Plan(ref, 0).error().code, Code::kNotFound);
  EXPECT_EQ(t.cache->PlanSuspect(ref, 0)->offset, plan->offset);
  EXPECT_EQ(racing_writer(), ReserveStatus::kNotNow);
  ASSERT_TRUE(t.Publish(3, 0));
  ASSERT_TRUE(t.Publish(4, 0));
  ASSERT_TRUE(t.cache->ClearSuspect(ref, 0));
  EXPECT_EQ(t.cache->ClearSuspect(ref, 0).error().code, Code::kNotFound);
  EXPECT_TRUE(t.Has(1));
  EXPECT_EQ(t.cache->Plan(ref, 0)->generation, plan->generation);
  EXPECT_EQ(t.cache->gauges().suspect, 0U);
  EXPECT_EQ(t.cache->counters().inserts, 4U);
  ASSERT_TRUE(t.Publish(5, 0));
  EXPECT_FALSE(t.Has(1));  // the oldest again
}

TEST(BlockCache, CommitOverSuspectIsLost) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  const auto late = t.cache->Reserve({kRow, TestCache::Hash(1), 0}, ++t.now);
  ASSERT_TRUE(t.Publish(1, 0));
  ASSERT_TRUE(t.cache->MarkSuspect(t.Ref(1), 0));
  EXPECT_EQ(t.cache->Commit(t.Request(1, 0, late.slot), ++t.now), CommitOutcome::kLost);
  EXPECT_EQ(t.pool->gauges().slots_writing, 0U);
}

TEST(BlockCache, DroppedBytesStayUntilTheGrantEnds) {
  TestCache t(3);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  const BlockRef ref = t.Ref(1);
  ASSERT_TRUE(t.cache->PinGranted(ref));
  const auto old_plan = t.cache->Plan(ref, 0);
  ASSERT_TRUE(t.cache->MarkSuspect(ref, 0));
  ASSERT_TRUE(t.cache->Drop(ref, 0, DropReason::kChecksum));
  EXPECT_FALSE(t.Has(1));
  EXPECT_EQ(t.cache->gauges().draining, 1U);
  EXPECT_EQ(t.cache->gauges().suspect, 0U);
  EXPECT_EQ(t.cache->Drop(ref, 0, DropReason::kChecksum).error().code, Code::kNotFound);
  // The key can be published again meanwhile, into another slot.
  ASSERT_TRUE(t.Publish(1, 0));
  EXPECT_EQ(t.Ref(1), ref);
  EXPECT_NE(t.cache->Plan(ref, 0)->offset, old_plan->offset);
  for (std::uint32_t n = 10; n < 20; ++n) {
    ASSERT_TRUE(t.Publish(n, 0));
    EXPECT_NE(t.cache->Plan(t.Ref(n), 0)->offset, old_plan->offset);
  }
  t.cache->UnpinGranted(ref);
  EXPECT_EQ(t.cache->gauges().draining, 0U);
  EXPECT_EQ(t.pool->gauges().slots_sealed, 2U);
  EXPECT_TRUE(t.Has(1));
  EXPECT_EQ(t.cache->counters().dropped_corrupt, 1U);
}

TEST(BlockCache, SlotThatFailsTwiceIsRetired) {
  TestCache t(1);
  t.Add(kRow, kWholeUnit);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(t.Publish(1, 0));
    ASSERT_TRUE(t.cache->Drop(t.Ref(1), 0, DropReason::kChecksum));
  }
  EXPECT_EQ(t.pool->gauges().slots_retired, 1U);
  EXPECT_FALSE(t.Publish(1, 0));
  EXPECT_EQ(t.cache->gauges().entries, 0U);
}

TEST(BlockCache, WithdrawnIsNotHeldAgainstTheSlot) {
  TestCache t(1);
  t.Add(kRow, kWholeUnit);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(t.Publish(1, 0));
    ASSERT_TRUE(t.cache->Drop(t.Ref(1), 0, DropReason::kWithdrawn));
  }
  EXPECT_EQ(t.pool->gauges().slots_retired, 0U);
  EXPECT_EQ(t.cache->counters().dropped, 5U);
  EXPECT_EQ(t.cache->counters().dropped_corrupt, 0U);
}

TEST(BlockCache, DamagedRecordIsNeverServed) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  const BlockRef ref = t.Ref(1);
  ASSERT_TRUE(t.cache->PinGranted(ref));
  t.Damage(t.cache->Plan(ref, 0)->slot);
  EXPECT_EQ(t.cache->Plan(ref, 0).error().code, Code::kCorrupt);
  EXPECT_EQ(t.cache->Plan(ref, 0).error().code, Code::kNotFound);
  EXPECT_FALSE(t.Has(1));
  EXPECT_EQ(t.cache->counters().dropped_corrupt, 1U);
  t.cache->UnpinGranted(ref);
  EXPECT_EQ(t.cache->gauges().entries, 0U);
  EXPECT_TRUE(t.Publish(1, 0));
  EXPECT_TRUE(t.cache->Plan(t.Ref(1), 0));
}

TEST(BlockCache, RecordOfAnotherKeyIsNeverServed) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  const SlotIndex slot = t.cache->Plan(t.Ref(1), 0)->slot;
  auto record = *wire::LoadSlotRecord(t.table.bytes(), slot.value() - 1);
  record.hash = TestCache::Hash(2);
  ASSERT_TRUE(wire::StoreSlotRecord(t.table, slot.value() - 1, record));
  EXPECT_EQ(t.cache->Plan(t.Ref(1), 0).error().code, Code::kCorrupt);
  EXPECT_FALSE(t.Has(1));
}

TEST(BlockCache, DroppingTheMiddleKeepsTheTree) {
  TestCache t(4);
  t.Add(kRow, kWholeUnit);
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(t.Publish(10 + i, i));
  ASSERT_TRUE(t.cache->Drop(t.Ref(11), 0, DropReason::kWithdrawn));
  std::vector<BlockRef> refs;
  EXPECT_EQ(t.cache->MatchPrefix(kRow, Hashes(10, 3), refs), 1U);
  EXPECT_EQ(t.cache->gauges().entries, 3U);
  ASSERT_TRUE(t.Publish(11, 1));
  EXPECT_EQ(t.cache->MatchPrefix(kRow, Hashes(10, 3), refs), 3U);
  ASSERT_TRUE(t.cache->Drop(t.Ref(11), 0, DropReason::kWithdrawn));
  ASSERT_TRUE(t.cache->Drop(t.Ref(10), 0, DropReason::kWithdrawn));
  EXPECT_EQ(t.cache->gauges().entries, 3U);
  ASSERT_TRUE(t.cache->Drop(t.Ref(12), 0, DropReason::kWithdrawn));
  EXPECT_EQ(t.cache->gauges().entries, 0U);  // entries without slots went with their last child
}

TEST(BlockCache, IndexLimitEvictsAcrossSizes) {
  TestCache t(50, {.max_blocks = 4});
  t.Add(kRow, kWholeUnit);
  t.Add(NamespaceRow(2), {{.slot_bytes = 512}});
  for (std::uint32_t n = 0; n < 4; ++n) ASSERT_TRUE(t.Publish(n, 0));
  ASSERT_TRUE(t.Publish(100, 0, 0, NamespaceRow(2)));
  EXPECT_FALSE(t.Has(0));
  EXPECT_EQ(t.cache->gauges().entries, 4U);
  ASSERT_TRUE(t.Publish(200, 3));  // itself and an entry for its parent
  EXPECT_EQ(t.cache->gauges().entries, 4U);
  EXPECT_TRUE(t.Has(200));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(200)));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(100, NamespaceRow(2))));
  ASSERT_TRUE(t.Publish(300, 0));
  ASSERT_TRUE(t.cache->PinGranted(t.Ref(300)));
  const auto reserved = t.cache->Reserve({kRow, TestCache::Hash(301), 0}, ++t.now);
  EXPECT_EQ(t.cache->Commit(t.Request(301, 0, reserved.slot), t.now), CommitOutcome::kLost);
  EXPECT_EQ(t.pool->gauges().slots_writing, 0U);
}

TEST(BlockCache, SizesShareThePool) {
  TestCache t(8);
  const NamespaceRow large{2};
  t.Add(kRow, {{.slot_bytes = 1024}});
  t.Add(large, {{.slot_bytes = 2 * kTestUnit}});
  for (std::uint64_t n = 0; n < 32; ++n) ASSERT_TRUE(t.Publish(n, 0));
  // Another size finds the pool full of colder blocks and takes what it needs.
  const std::uint32_t fitting = 8 / t.pool->SlabUnits(2 * kTestUnit) * t.pool->SlabUnits(2 * kTestUnit) / 2;
  for (std::uint64_t n = 0; n < 400; ++n) ASSERT_TRUE(t.Publish(1000 + n, 0, 0, large)) << n;
  std::uint32_t held = 0;
  for (std::uint64_t n = 0; n < 400; ++n) held += t.Has(1000 + n, large) ? 1 : 0;
  EXPECT_EQ(held, fitting);
  // And back, although every slab belongs to the large size now.
  for (std::uint64_t n = 0; n < 400; ++n) ASSERT_TRUE(t.Publish(5000 + n, 0)) << n;
  held = 0;
  for (std::uint64_t n = 0; n < 400; ++n) held += t.Has(5000 + n) ? 1 : 0;
  EXPECT_GE(held, 16U);
  EXPECT_GT(t.cache->counters().reclaimed_slabs, 1U);
}

TEST(BlockCache, SlabOfHotBlocksIsNotTakenForOneColdOne) {
  TestCache t(2);
  const NamespaceRow large{2};
  t.Add(kRow, {{.slot_bytes = 1024}});
  t.Add(large, {{.slot_bytes = kTestUnit}});
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(t.Publish(n, 0));  // one slab
  ASSERT_TRUE(t.Publish(100, 0, 0, large));                            // the other
  for (std::uint64_t n = 101; n < 300; ++n) {
    std::vector<BlockRef> hot;
    for (std::uint64_t i = 1; i < 4; ++i) hot.push_back(t.Ref(i));
    t.cache->Touch(hot, ++t.now);
    ASSERT_TRUE(t.Publish(n, 0, 0, large));
    ASSERT_TRUE(t.Has(1) && t.Has(2) && t.Has(3));
  }
  // When they are cold too, the slab goes.
  for (std::uint64_t n = 300; n < 400; ++n) ASSERT_TRUE(t.Publish(n, 0, 0, large));
  EXPECT_FALSE(t.Has(1));
  EXPECT_EQ(t.cache->counters().reclaimed_slabs, 1U);
}

TEST(BlockCache, PinnedSlabIsNotReclaimed) {
  TestCache t(4);
  const NamespaceRow large{2};
  t.Add(kRow, {{.slot_bytes = 1024}});
  t.Add(large, {{.slot_bytes = 4 * kTestUnit}});
  for (std::uint64_t n = 0; n < 16; ++n) ASSERT_TRUE(t.Publish(n, 0));
  const BlockRef ref = t.Ref(7);
  ASSERT_TRUE(t.cache->PinGranted(ref));
  EXPECT_FALSE(t.Publish(100, 0, 0, large));
  for (std::uint64_t n = 0; n < 16; ++n) EXPECT_TRUE(t.Has(n));  // nothing was evicted in vain
  t.cache->UnpinGranted(ref);
  TestLeases leases(t);
  leases.Lease(ref);
  EXPECT_TRUE(t.Publish(100, 0, 0, large));
  EXPECT_EQ(leases.count(), 0U);
  EXPECT_EQ(t.cache->gauges().complete, 1U);
}

TEST(BlockCache, StaleRefsAreHarmless) {
  TestCache t(2);
  t.Add(kRow, kWholeUnit);
  ASSERT_TRUE(t.Publish(1, 0));
  const BlockRef ref = t.Ref(1);
  ASSERT_TRUE(t.cache->Drop(ref, 0, DropReason::kWithdrawn));
  ASSERT_TRUE(t.Publish(2, 0));  // reuses the entry
  EXPECT_EQ(t.Ref(2).index, ref.index);
  EXPECT_FALSE(t.cache->PinFound(ref));
  EXPECT_FALSE(t.cache->IsServed(BlockRef{}));
  EXPECT_EQ(t.cache->MarkSuspect(ref, 0).error().code, Code::kStale);
  EXPECT_EQ(t.cache->ClearSuspect(ref, 0).error().code, Code::kStale);
  EXPECT_EQ(t.cache->Drop(ref, 0, DropReason::kWithdrawn).error().code, Code::kStale);
  t.cache->Touch(std::vector{ref, BlockRef{}}, ++t.now);
  EXPECT_TRUE(t.Has(2));
}

}  // namespace
}  // namespace orbitkv::cache
