// Why a block is not served: what the cache remembers of those that made room.
#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/cache/block_cache.h"
#include "orbitkv/cache/test_cache.h"

namespace orbitkv::cache {
namespace {

const std::vector<ComponentSpec> kWholeUnit{{.group = 0, .shard = 0, .slot_bytes = kTestUnit}};
const std::vector<ComponentSpec> kTwoShards{{.group = 0, .shard = 0, .slot_bytes = kTestUnit},
                                            {.group = 0, .shard = 1, .slot_bytes = kTestUnit}};

Absence Why(const TestCache& t, std::uint64_t number, NamespaceRow row = kRow) {
  return t.cache->WhyAbsent(row, TestCache::Hash(number));
}

TEST(Absence, EvictedIsNotNeverSeen) {
  TestCache t(2);
  t.Add(kRow, kWholeUnit);
  EXPECT_EQ(Why(t, 1), Absence::kNeverSeen);
  EXPECT_EQ(Why(t, 1, NamespaceRow(7)), Absence::kNeverSeen) << "nobody has that row";
  for (std::uint64_t number = 1; number <= 3; ++number) ASSERT_TRUE(t.Publish(number, 0));
  ASSERT_FALSE(t.Has(1));
  EXPECT_EQ(Why(t, 1), Absence::kEvicted);
  EXPECT_EQ(Why(t, 4), Absence::kNeverSeen);
  // What was dropped as wrong made no room.
  ASSERT_TRUE(t.cache->Drop(t.Ref(2), 0, DropReason::kWithdrawn));
  EXPECT_EQ(Why(t, 2), Absence::kNeverSeen);
}

TEST(Absence, TheOldestAreForgotten) {
  TestCache t(2, {.max_blocks = 3});
  t.Add(kRow, kWholeUnit);
  for (std::uint64_t number = 1; number <= 6; ++number) ASSERT_TRUE(t.Publish(number, 0));
  EXPECT_EQ(Why(t, 1), Absence::kNeverSeen) << "three others have left since";
  for (std::uint64_t number = 2; number <= 4; ++number) EXPECT_EQ(Why(t, number), Absence::kEvicted) << number;
}

TEST(Absence, APartIsIncompleteAndLeavesNoMemory) {
  TestCache t(4, {.max_blocks = 100, .incomplete_after_ns = 1000});
  t.Add(kRow, kTwoShards);
  ASSERT_TRUE(t.Publish(1, 0, 0));
  EXPECT_EQ(Why(t, 1), Absence::kIncomplete);
  t.now += 1000;
  t.cache->Tick(t.now);
  for (std::uint64_t number = 2; number <= 3; ++number) {
    ASSERT_TRUE(t.Publish(number, 0, 0));
    ASSERT_TRUE(t.Publish(number, 0, 1));
  }
  EXPECT_EQ(Why(t, 1), Absence::kNeverSeen) << "it was never served";
}

TEST(Absence, ARowsNextNamespaceHasAMemoryOfItsOwn) {
  TestCache t(1);
  const NamespaceRow row(2);
  t.Add(kRow, kWholeUnit);
  t.Add(row, kWholeUnit);
  ASSERT_TRUE(t.Publish(5, 0, 0, row));
  ASSERT_TRUE(t.Publish(6, 0));
  EXPECT_EQ(Why(t, 5, row), Absence::kEvicted);
  EXPECT_EQ(Why(t, 5), Absence::kNeverSeen) << "that was another namespace's";
  ASSERT_TRUE(t.cache->ForgetNamespace(row));
  t.Add(row, kWholeUnit);
  EXPECT_EQ(Why(t, 5, row), Absence::kNeverSeen);
}

}  // namespace
}  // namespace orbitkv::cache
