// Several cache groups in one namespace: ratios, sparse groups, and what is evicted of them.
#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/cache/test_cache.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kSmall = kTestUnit / 4;  // four slots per unit

// Group 0 is dense; group 1 is sparse, with blocks twice as long.
const std::vector<ComponentSpec> kMixed{{.group = 0, .slot_bytes = kTestUnit}, {.group = 1, .slot_bytes = kSmall}};
const std::vector<GroupSpec> kMixedGroups{{.ratio = 1, .dense = true}, {.ratio = 2, .dense = false}};

TEST(CacheGroups, LimitsAreChecked) {
  TestCache t(4);
  const auto code = [&](const std::vector<ComponentSpec>& components, const std::vector<GroupSpec>& groups) {
    const Status status = t.cache->AddNamespace(kRow, components, groups);
    return status ? Code{} : status.error().code;
  };
  EXPECT_EQ(code(kMixed, {{.ratio = 1}, {.ratio = 0}}), Code::kInvalid);
  EXPECT_EQ(code(kMixed, {{.ratio = 1}}), Code::kInvalid);
  EXPECT_EQ(code(kMixed, std::vector<GroupSpec>(33)), Code::kInvalid);
  EXPECT_EQ(code({{.group = 32, .slot_bytes = 100}}, {}), Code::kInvalid);
  EXPECT_TRUE(t.cache->AddNamespace(kRow, kMixed, kMixedGroups));
  EXPECT_TRUE(t.cache->AddNamespace(kRow, kMixed, kMixedGroups));
  EXPECT_EQ(code(kMixed, {{.ratio = 1}, {.ratio = 2}}), Code::kRefused);
  EXPECT_EQ(code(kMixed, {}), Code::kRefused);
}

TEST(CacheGroups, LookUpSaysWhichGroupsAreComplete) {
  TestCache t(16);
  t.Add(kRow, kMixed, kMixedGroups);
  for (std::uint32_t depth = 0; depth < 4; ++depth) ASSERT_TRUE(t.Publish(100 + depth, depth));
  ASSERT_TRUE(t.Publish(103, 3, 1, kRow, 2));
  std::vector<BlockUse> uses;
  std::vector<state::BlockHash> hashes;
  for (std::uint64_t number = 100; number < 105; ++number) hashes.push_back(TestCache::Hash(number));
  t.cache->LookUp(kRow, hashes, uses);
  ASSERT_EQ(uses.size(), 5U);
  const std::uint32_t expected[] = {1, 1, 1, 3, 0};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(uses[i].groups, expected[i]) << i;
  EXPECT_EQ(uses[3].ref, t.Ref(103));
  EXPECT_TRUE(uses[4].ref.is_none());
  // A missing sparse part is no fault; a missing dense one is.
  EXPECT_TRUE(t.Has(101));
  EXPECT_EQ(t.cache->gauges().complete, 4U);
  EXPECT_FALSE(t.cache->next_deadline_ns());
  ASSERT_TRUE(t.Publish(105, 5, 1, kRow, 2));
  EXPECT_EQ(t.Groups(105), 2U);
  EXPECT_FALSE(t.Has(105));
  EXPECT_TRUE(t.cache->next_deadline_ns());
  EXPECT_EQ(t.cache->BytesOf(t.Ref(103)), kTestUnit + kSmall);
  EXPECT_EQ(t.cache->BytesOf(t.Ref(102)), kTestUnit);
}

TEST(CacheGroups, ACommitFollowsTheGroupsRatio) {
  TestCache t(8);
  t.Add(kRow, kMixed, kMixedGroups);
  const auto outcome = [&](std::uint32_t depth, std::uint32_t ratio) {
    const auto reserved = t.cache->Reserve({kRow, TestCache::Hash(500 + depth), 1}, ++t.now);
    return t.cache->Commit(t.Request(500 + depth, depth, reserved.slot, 1, kRow, ratio), t.now);
  };
  EXPECT_EQ(outcome(0, 2), CommitOutcome::kLost);
  EXPECT_EQ(outcome(2, 2), CommitOutcome::kLost);
  EXPECT_EQ(outcome(1, 1), CommitOutcome::kLost);  // the group's first block has no parent
  EXPECT_EQ(outcome(1, 2), CommitOutcome::kStored);
  EXPECT_EQ(outcome(3, 2), CommitOutcome::kStored);
  EXPECT_EQ(t.cache->gauges().reserved_slots, 0U);
}

TEST(CacheGroups, ASparseGroupNeedsAllItsShards) {
  TestCache t(16);
  t.Add(kRow,
        {{.group = 0, .slot_bytes = kTestUnit},
         {.group = 1, .shard = 0, .slot_bytes = kSmall},
         {.group = 1, .shard = 1, .slot_bytes = kSmall}},
        {{.ratio = 1, .dense = true}, {.ratio = 1, .dense = false}});
  ASSERT_TRUE(t.Publish(1, 0));
  ASSERT_TRUE(t.Publish(1, 0, 2));
  EXPECT_EQ(t.Groups(1), 1U);
  EXPECT_TRUE(t.Has(1));
  EXPECT_FALSE(t.cache->PinFound(BlockUse{t.Ref(1), 3}));
  ASSERT_TRUE(t.Publish(1, 0, 1));
  EXPECT_EQ(t.Groups(1), 3U);
  // A doubt takes the group away, not the block.
  ASSERT_TRUE(t.cache->MarkSuspect(t.Ref(1), 2));
  EXPECT_EQ(t.Groups(1), 1U);
  EXPECT_TRUE(t.Has(1));
  EXPECT_FALSE(t.cache->PinGranted(BlockUse{t.Ref(1), 2}));
  EXPECT_TRUE(t.cache->PinGranted(BlockUse{t.Ref(1), 1}));
  t.cache->UnpinGranted(t.Ref(1));
  ASSERT_TRUE(t.cache->ClearSuspect(t.Ref(1), 2));
  EXPECT_EQ(t.Groups(1), 3U);
}

// Four dense slots and four small ones fill the pool.
class SmallPool : public testing::Test {
 protected:
  void SetUp() override {
    cache_.Add(kRow, kMixed, kMixedGroups);
    for (std::uint32_t depth = 0; depth < 4; ++depth) ASSERT_TRUE(cache_.Publish(100 + depth, depth));
    for (const std::uint32_t depth : {1U, 3U}) ASSERT_TRUE(cache_.Publish(100 + depth, depth, 1, kRow, 2));
    for (const std::uint32_t depth : {5U, 7U}) ASSERT_TRUE(cache_.Publish(200 + depth, depth, 1, kRow, 2));
  }
  TestCache cache_{5};
};

TEST_F(SmallPool, SparsePartsAreEvictedAlone) {
  cache_.cache->Touch(std::vector<BlockUse>{{cache_.Ref(101), 2}}, ++cache_.now);
  ASSERT_TRUE(cache_.Publish(301, 1, 1, kRow, 2));
  // The coldest sparse part went, from the middle of nothing: its dense part and the blocks around it stay.
  for (std::uint32_t depth = 0; depth < 4; ++depth) EXPECT_TRUE(cache_.Has(100 + depth)) << depth;
  EXPECT_EQ(cache_.Groups(101), 3U);
  EXPECT_EQ(cache_.Groups(103), 1U);
  EXPECT_EQ(cache_.cache->counters().evictions, 1U);
}

TEST_F(SmallPool, UseOfTheDensePartDoesNotKeepTheSparseOne) {
  cache_.cache->Touch(std::vector<BlockUse>{{cache_.Ref(101), 1}}, ++cache_.now);
  ASSERT_TRUE(cache_.Publish(301, 1, 1, kRow, 2));
  EXPECT_EQ(cache_.Groups(101), 1U);
  EXPECT_EQ(cache_.Groups(103), 3U);
}

TEST_F(SmallPool, APinHoldsEveryPart) {
  ASSERT_TRUE(cache_.cache->PinFound(BlockUse{cache_.Ref(101), 1}));
  ASSERT_TRUE(cache_.Publish(301, 1, 1, kRow, 2));
  EXPECT_EQ(cache_.Groups(101), 3U);
  EXPECT_EQ(cache_.Groups(103), 1U);
  cache_.cache->UnpinFound(cache_.Ref(101));
}

TEST_F(SmallPool, AnEvictedLeafTakesItsSparsePartWithIt) {
  ASSERT_TRUE(cache_.Publish(400, 0));
  EXPECT_EQ(cache_.Groups(103), 0U);
  EXPECT_TRUE(cache_.Has(102));
  EXPECT_EQ(cache_.pool->gauges().slots_sealed, 7U);
}

TEST(CacheGroups, LateSparseGroupsAreTheFirstVictims) {
  TestCache t(4, {.max_blocks = 100, .incomplete_after_ns = 50});
  t.Add(kRow,
        {{.group = 0, .slot_bytes = kTestUnit},
         {.group = 1, .shard = 0, .slot_bytes = kTestUnit},
         {.group = 1, .shard = 1, .slot_bytes = kTestUnit}},
        {{.ratio = 1, .dense = true}, {.ratio = 1, .dense = false}});
  ASSERT_TRUE(t.Publish(7, 0));  // colder than all others, but complete
  ASSERT_TRUE(t.Publish(1, 0));
  ASSERT_TRUE(t.Publish(1, 0, 1));
  ASSERT_TRUE(t.Publish(8, 0));
  t.now += 100;
  t.cache->Tick(t.now);
  EXPECT_EQ(t.cache->counters().incomplete, 1U);
  ASSERT_TRUE(t.Publish(9, 0));
  EXPECT_TRUE(t.Has(1));
  EXPECT_TRUE(t.Has(7));
  EXPECT_EQ(t.cache->Plan(t.Ref(1), 1).error().code, Code::kNotFound);
  EXPECT_FALSE(t.cache->next_deadline_ns());
}

// Two dense groups, one with blocks twice as long: a block's place in the tree is the nearest that anybody named.
TEST(CacheGroups, TheTreeFollowsTheFinestGroup) {
  TestCache t(8);
  t.Add(kRow, {{.group = 0, .slot_bytes = kTestUnit}, {.group = 1, .slot_bytes = kTestUnit}},
        {{.ratio = 1, .dense = true}, {.ratio = 2, .dense = true}});
  for (const std::uint32_t depth : {1U, 3U}) ASSERT_TRUE(t.Publish(100 + depth, depth, 1, kRow, 2));
  EXPECT_FALSE(t.Has(101));
  for (std::uint32_t depth = 0; depth < 4; ++depth) ASSERT_TRUE(t.Publish(100 + depth, depth));
  EXPECT_TRUE(t.Has(101));
  t.cache->Touch(std::vector<BlockRef>{t.Ref(103)}, ++t.now);
  for (const std::uint64_t other : {300U, 301U}) ASSERT_TRUE(t.Publish(other, 0));
  // 102 is colder than 103, which continues it.
  ASSERT_TRUE(t.Publish(200, 0));
  EXPECT_FALSE(t.Has(103));
  EXPECT_TRUE(t.Has(102));
}

TEST(CacheGroups, ASparsePartIsNoReasonToKeepWhatLiesBeforeIt) {
  TestCache t(5);
  t.Add(kRow, {{.group = 0, .slot_bytes = kTestUnit}, {.group = 1, .slot_bytes = kSmall}},
        {{.ratio = 2, .dense = true}, {.ratio = 1, .dense = false}});
  ASSERT_TRUE(t.Publish(101, 1, 0, kRow, 2));
  ASSERT_TRUE(t.Publish(102, 2, 1));  // a window's block behind it, where the dense group has none
  for (const std::uint64_t other : {200U, 300U, 400U}) ASSERT_TRUE(t.Publish(other, 1, 0, kRow, 2));
  ASSERT_TRUE(t.Publish(500, 1, 0, kRow, 2));
  EXPECT_FALSE(t.Has(101));
  EXPECT_TRUE(t.Has(200));
  EXPECT_EQ(t.Groups(102), 2U);
}

TEST(CacheGroups, ANamespaceOfSparseGroupsOnlyIsServedToo) {
  TestCache t(2);
  t.Add(kRow, {{.group = 0, .slot_bytes = kTestUnit}}, {{.ratio = 1, .dense = false}});
  ASSERT_TRUE(t.Publish(1, 0));
  ASSERT_TRUE(t.Publish(2, 1));
  EXPECT_TRUE(t.Has(1));
  ASSERT_TRUE(t.Publish(3, 2));
  EXPECT_FALSE(t.Has(1));  // no tree: a window does not need what lies before it
  EXPECT_TRUE(t.Has(2));
}

}  // namespace
}  // namespace orbitkv::cache
