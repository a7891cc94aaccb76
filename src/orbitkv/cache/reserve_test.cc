// What reservations hold of the tree of prompts until they end.
#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/cache/test_cache.h"

namespace orbitkv::cache {
namespace {

TEST(CacheReserve, WhatAReservationContinuesStaysUntilItEnds) {
  TestCache t(4);
  t.Add(kRow, {{.slot_bytes = kTestUnit}});
  ASSERT_TRUE(t.Publish(101, 0));
  ASSERT_TRUE(t.Publish(102, 1));
  ASSERT_TRUE(t.Publish(1, 0));
  const auto writing = t.cache->Reserve(TestCache::ReserveOf(103, 2), ++t.now);
  ASSERT_EQ(writing.status, ReserveStatus::kSlot);
  // The end of the prompt is the coldest leaf, but another block is on its way behind it.
  ASSERT_TRUE(t.Publish(2, 0));
  EXPECT_TRUE(t.Has(102));
  EXPECT_FALSE(t.Has(1));
  ASSERT_TRUE(t.cache->AbortReserved(writing.slot.index, writing.slot.generation));
  ASSERT_TRUE(t.Publish(3, 0));
  ASSERT_TRUE(t.Publish(4, 0));
  EXPECT_FALSE(t.Has(102));
}

// Bytes come in any order: what comes before its parent, and what comes while its child is written, stays.
TEST(CacheReserve, APromptOnItsWayInLosesNothingToItself) {
  TestCache t(8);
  t.Add(kRow, {{.slot_bytes = kTestUnit}});
  std::vector<pool::Slot> slots;
  for (std::uint32_t depth = 0; depth < 8; ++depth) {
    slots.push_back(t.cache->Reserve(TestCache::ReserveOf(100 + depth, depth), ++t.now).slot);
  }
  const auto commit = [&](std::uint32_t depth) {
    ASSERT_EQ(t.cache->Commit(t.Request(100 + depth, depth, slots[depth]), ++t.now), CommitOutcome::kStored);
  };
  const auto room = [&] {
    return t.cache->Reserve(TestCache::ReserveOf(1, 0), ++t.now).status == ReserveStatus::kSlot;
  };
  for (const std::uint32_t depth : {3U, 1U, 0U, 2U}) {
    commit(depth);
    EXPECT_FALSE(room()) << depth;
  }
  // The reservation of the fourth's child ends without a block.
  ASSERT_TRUE(t.cache->AbortReserved(slots[4].index, slots[4].generation));
  EXPECT_TRUE(room());  // its slot
  EXPECT_TRUE(room());  // the fourth's
  EXPECT_FALSE(t.Has(103));
  EXPECT_TRUE(t.Has(102));
  commit(5);
  EXPECT_TRUE(t.Has(105));
}

TEST(CacheReserve, ReservationsThatContradictTheTreeHoldNothing) {
  TestCache t(4);
  t.Add(kRow, {{.slot_bytes = kTestUnit}});
  ASSERT_TRUE(t.Publish(101, 0));
  ReserveRequest wrong = TestCache::ReserveOf(102, 5);
  const auto writing = t.cache->Reserve(wrong, ++t.now);
  ASSERT_EQ(writing.status, ReserveStatus::kSlot);
  for (std::uint64_t number = 1; number <= 3; ++number) ASSERT_TRUE(t.Publish(number, 0));
  EXPECT_FALSE(t.Has(101));
  ASSERT_TRUE(t.cache->AbortReserved(writing.slot.index, writing.slot.generation));
  EXPECT_EQ(t.cache->gauges().entries, 3U);
}

}  // namespace
}  // namespace orbitkv::cache
