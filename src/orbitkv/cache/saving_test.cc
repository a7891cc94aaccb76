// Eviction beside saving: what waits to be saved is spared while others are as good.
#include <gtest/gtest.h>

#include "orbitkv/cache/test_cache.h"

namespace orbitkv::cache {
namespace {

// Room for eight blocks of one unit each.
struct EightBlocks : TestCache {
  EightBlocks() : TestCache(8) {
    Add(kRow, {{.group = 0, .shard = 0, .slot_bytes = kTestUnit}});
    for (std::uint64_t number = 1; number <= 8; ++number) EXPECT_TRUE(Publish(number * 100, 0));
  }
  void Await(std::uint64_t number) { EXPECT_TRUE(cache->AwaitSave(Ref(number * 100))); }
  bool Here(std::uint64_t number) const { return cache->Peek(kRow, Hash(number * 100)).groups != 0; }
};

TEST(CacheSaving, AnotherOfTheNextVictimsGoesFirst) {
  EightBlocks test;
  test.Await(1);
  test.Await(2);
  ASSERT_TRUE(test.Publish(900, 0));
  EXPECT_TRUE(test.Here(1));
  EXPECT_TRUE(test.Here(2));
  EXPECT_FALSE(test.Here(3));
  EXPECT_EQ(test.cache->counters().evicted_unsaved, 0U);
  test.cache->EndAwaitSave(test.Ref(100));
  ASSERT_TRUE(test.Publish(1000, 0));
  EXPECT_FALSE(test.Here(1)) << "the coldest again";
  EXPECT_TRUE(test.Here(2));
}

TEST(CacheSaving, NothingWaitsForASave) {
  EightBlocks test;
  for (std::uint64_t number = 1; number <= 8; ++number) test.Await(number);
  EXPECT_FALSE(test.cache->AwaitSave(test.Ref(100))) << "once";
  ASSERT_TRUE(test.Publish(900, 0));
  EXPECT_FALSE(test.Here(1)) << "the coldest of them";
  for (std::uint64_t number = 2; number <= 8; ++number) EXPECT_TRUE(test.Here(number));
  EXPECT_EQ(test.cache->counters().evicted_unsaved, 1U);
}

TEST(CacheSaving, AComponentIsUnsavedUntilItIsSaidToBeSaved) {
  TestCache test(8);
  test.Add(kRow, {{.group = 0, .shard = 0, .slot_bytes = 1000}, {.group = 0, .shard = 1, .slot_bytes = 1000}});
  ASSERT_TRUE(test.Publish(1, 0, 0));
  EXPECT_EQ(test.cache->Peek(kRow, TestCache::Hash(1)).groups, 0U) << "a shard is missing";
  EXPECT_TRUE(test.cache->Has(kRow, TestCache::Hash(1), 0));
  EXPECT_FALSE(test.cache->Has(kRow, TestCache::Hash(1), 1));
  ASSERT_TRUE(test.Publish(1, 0, 1));
  const BlockUse use = test.cache->Peek(kRow, TestCache::Hash(1));
  EXPECT_EQ(use.groups, 1U);
  std::vector<std::uint32_t> unsaved;
  test.cache->Unsaved(use, unsaved);
  EXPECT_EQ(unsaved.size(), 2U);
  const PlanSlot slot = test.cache->Plan(use.ref, 0).value();
  EXPECT_EQ(slot.parent, std::nullopt);
  test.cache->SetSaveState(use.ref, 0, slot.generation + 1, SaveState::kSaved);
  unsaved.clear();
  test.cache->Unsaved(use, unsaved);
  EXPECT_EQ(unsaved.size(), 2U) << "that was said of another slot";
  test.cache->SetSaveState(use.ref, 0, slot.generation, SaveState::kSaved);
  unsaved.clear();
  test.cache->Unsaved(use, unsaved);
  EXPECT_EQ(unsaved, std::vector<std::uint32_t>{1});
  ASSERT_TRUE(test.cache->MarkSuspect(use.ref, 1));
  EXPECT_FALSE(test.cache->Has(kRow, TestCache::Hash(1), 1));
}

}  // namespace
}  // namespace orbitkv::cache
