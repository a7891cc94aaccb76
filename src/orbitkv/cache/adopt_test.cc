// A cache that takes over what another one has left in the slot table.
#include <gtest/gtest.h>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/test_cache.h"
#include "orbitkv/wire/test_tables.h"

namespace orbitkv::cache {
namespace {

constexpr CacheConfig kConfig{.max_blocks = 400};
constexpr std::uint32_t kSlots = 64;

// A life of a cache over a table that others go on with.
struct OneLife {
  OneLife(std::span<const std::uint64_t> words, std::uint64_t units, std::span<const ComponentSpec> components,
          std::span<const GroupSpec> groups, const std::set<std::uint32_t>& held = {}, CacheConfig config = kConfig)
      : memory(words.begin(), words.end()), table(std::as_writable_bytes(std::span(memory))) {
    const pool::PoolConfig pool_config{.pool_bytes = units * kTestUnit, .unit_bytes = kTestUnit, .max_slots = kSlots};
    std::vector<bool> bits(kSlots + 1);
    for (const std::uint32_t slot : held) bits[slot] = true;
    auto recovered = pool::Pool::Recover(pool_config, table, pool_config.pool_bytes, bits).value();
    pool = std::move(recovered.pool);
    cache = BlockCache::Create(config, *pool).value();
    EXPECT_TRUE(cache->AddNamespace(kRow, components, groups));
    outcome = cache->Adopt(std::move(recovered.slots), 1U << 30U);
  }
  std::uint32_t Groups(std::uint64_t number) {
    const state::BlockHash hash = TestCache::Hash(number);
    std::vector<BlockUse> uses;
    cache->LookUp(kRow, std::span(&hash, 1), uses);
    return uses[0].groups;
  }
  bool Has(std::uint64_t number) { return cache->Find(kRow, TestCache::Hash(number)).has_value(); }

  std::vector<std::uint64_t> memory;
  wire::SpanTable table;
  std::unique_ptr<pool::Pool> pool;
  std::unique_ptr<BlockCache> cache;
  AdoptOutcome outcome;
};

const std::vector<ComponentSpec> kOne = {{.group = 0, .shard = 0, .slot_bytes = 1000}};
const std::vector<ComponentSpec> kMixed = {{.group = 0, .shard = 0, .slot_bytes = 1000},
                                           {.group = 0, .shard = 1, .slot_bytes = 1000},
                                           {.group = 1, .shard = 0, .slot_bytes = 400},
                                           {.group = 1, .shard = 1, .slot_bytes = 400}};
const std::vector<GroupSpec> kMixedGroups = {{.ratio = 1, .dense = true}, {.ratio = 2, .dense = false}};

TEST(Adopt, BlocksAreServedAgainFromWhereTheyLie) {
  TestCache t(8, kConfig, kSlots);
  t.Add(kRow, kOne);
  for (std::uint64_t block = 0; block < 10; ++block)
    ASSERT_TRUE(t.Publish(100 + block, static_cast<std::uint32_t>(block)));
  OneLife next(t.memory, 8, kOne, {});
  EXPECT_EQ(next.outcome.adopted, 10U);
  EXPECT_EQ(next.outcome.adopted_bytes, 10U * 1024);
  EXPECT_EQ(next.outcome.discarded, 0U);
  EXPECT_EQ(next.cache->counters().adopted, 10U);
  EXPECT_EQ(next.cache->counters().commits, 0U);
  for (std::uint64_t block = 100; block < 110; ++block) {
    ASSERT_TRUE(next.Has(block));
    const PlanSlot was = t.cache->Plan(t.Ref(block), 0).value();
    const PlanSlot is = next.cache->Plan(next.cache->Find(kRow, TestCache::Hash(block)).value(), 0).value();
    EXPECT_EQ(is.offset, was.offset);
    EXPECT_EQ(is.generation, was.generation);
    EXPECT_EQ(is.checksum, block * 3);
    EXPECT_EQ(is.payload_bytes, 1000U);
  }
}

TEST(Adopt, TheTreeAndTheOrderOfUseComeBack) {
  TestCache t(4, kConfig, kSlots);
  t.Add(kRow, kOne);
  // Two chains of two blocks; the older one is used again, two seconds later.
  for (const std::uint64_t first : {100U, 200U}) {
    ASSERT_TRUE(t.Publish(first, 0));
    ASSERT_TRUE(t.Publish(first + 1, 1));
  }
  t.now += 2'000'000'000;
  const BlockRef used[] = {t.Ref(100), t.Ref(101)};
  t.cache->Touch(used, t.now);
  OneLife next(t.memory, 4, kOne, {});
  const auto evict = [&] {
    std::set<std::uint64_t> gone;
    for (const std::uint64_t block : {100U, 101U, 200U, 201U}) {
      if (!next.Has(block)) gone.insert(block);
    }
    return gone;
  };
  // The pool has 16 slots: twelve new blocks fit, then the coldest leaf goes, before its parent.
  std::uint64_t number = 1000;
  const auto reserve = [&] {
    return next.cache->Reserve({kRow, TestCache::Hash(number++), 0}, 1U << 30U).status == ReserveStatus::kSlot;
  };
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(reserve());
  EXPECT_EQ(evict(), (std::set<std::uint64_t>{}));
  ASSERT_TRUE(reserve());
  EXPECT_EQ(evict(), (std::set<std::uint64_t>{201}));
  ASSERT_TRUE(reserve());
  EXPECT_EQ(evict(), (std::set<std::uint64_t>{200, 201}));
  ASSERT_TRUE(reserve());
  EXPECT_EQ(evict(), (std::set<std::uint64_t>{101, 200, 201}));
}

TEST(Adopt, AnIncompleteBlockStaysOneAndIsTheFirstVictim) {
  TestCache t(8, kConfig, kSlots);
  t.Add(kRow, kMixed, kMixedGroups);
  for (const std::uint32_t component : {0U, 1U}) ASSERT_TRUE(t.Publish(100, 0, component));
  ASSERT_TRUE(t.Publish(101, 1, 0));
  OneLife next(t.memory, 8, kMixed, kMixedGroups);
  EXPECT_EQ(next.outcome.adopted, 3U);
  EXPECT_TRUE(next.Has(100));
  EXPECT_FALSE(next.Has(101));
  EXPECT_EQ(next.cache->Reserve({kRow, TestCache::Hash(101), 0}, 5).status, ReserveStatus::kHaveIt);
  next.cache->Tick((1U << 30U) + kConfig.incomplete_after_ns);
  EXPECT_EQ(next.cache->counters().incomplete, 1U);
}

TEST(Adopt, SlotsThatNobodyKnowsAreFreed) {
  TestCache t(8, kConfig, kSlots);
  t.Add(kRow, kOne);
  ASSERT_TRUE(t.Publish(100, 0));
  ASSERT_TRUE(t.Publish(101, 1));
  const std::vector<ComponentSpec> other = {{.group = 0, .shard = 0, .slot_bytes = 999}};
  OneLife next(t.memory, 8, other, {});
  EXPECT_EQ(next.outcome.adopted, 0U);
  EXPECT_EQ(next.outcome.discarded, 2U);
  EXPECT_EQ(next.pool->gauges().used_bytes, 0U);
  EXPECT_EQ(next.cache->gauges().entries, 0U);
}

TEST(Adopt, OfTwoSlotsOfOneComponentTheYoungerStays) {
  TestCache t(8, kConfig, kSlots);
  t.Add(kRow, kOne);
  ASSERT_TRUE(t.Publish(100, 0));
  const BlockRef old = t.Ref(100);
  ASSERT_TRUE(t.cache->PinGranted(old));
  ASSERT_TRUE(t.cache->Drop(old, 0, DropReason::kWithdrawn));  // its bytes stay: they are being read
  ASSERT_TRUE(t.Publish(100, 0));
  const std::uint64_t generation = t.cache->Plan(t.Ref(100), 0).value().generation;
  OneLife next(t.memory, 8, kOne, {});
  EXPECT_EQ(next.outcome.adopted, 2U);
  EXPECT_EQ(next.pool->gauges().slots_sealed, 1U);
  EXPECT_EQ(next.cache->Plan(next.cache->Find(kRow, TestCache::Hash(100)).value(), 0)->generation, generation);
}

TEST(Adopt, HeldBlocksAreServedAndStayHeldSlotsWait) {
  TestCache t(1, kConfig, kSlots);
  t.Add(kRow, kOne);
  ASSERT_TRUE(t.Publish(100, 0));
  ASSERT_TRUE(t.Publish(101, 1));
  const auto writing = t.cache->Reserve({kRow, TestCache::Hash(102), 0}, t.now).slot;
  const std::uint32_t read = t.cache->Plan(t.Ref(101), 0)->slot.value();
  OneLife next(t.memory, 1, kOne, {}, {read, writing.index.value()});
  ASSERT_EQ(next.outcome.held.size(), 2U);
  EXPECT_TRUE(next.Has(101));
  // Four slots: 100, 101 (held), one that is being written (held), one that is free.
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t block = 500; block < 510; ++block) {
    const auto got = next.cache->Reserve({kRow, TestCache::Hash(block), 0}, 9);
    if (got.status == ReserveStatus::kSlot) offsets.push_back(got.slot.offset);
  }
  EXPECT_EQ(offsets.size(), 1U) << "a child is held, so its parent stays too";
  EXPECT_EQ(std::ranges::count(offsets, writing.offset), 0);
  EXPECT_TRUE(next.Has(100));
  EXPECT_TRUE(next.Has(101));
  for (const HeldSlot& held : next.outcome.held) next.cache->LetGo(held);
  for (std::uint64_t block = 600; block < 610; ++block) {
    const auto got = next.cache->Reserve({kRow, TestCache::Hash(block), 0}, 9);
    if (got.status == ReserveStatus::kSlot) offsets.push_back(got.slot.offset);
  }
  EXPECT_EQ(offsets.size(), 4U);
  EXPECT_EQ(next.cache->gauges().granted_pins, 0U);
}

TEST(Adopt, ASmallerIndexKeepsTheYoungestBlocks) {
  TestCache t(8, kConfig, kSlots);
  t.Add(kRow, kOne);
  for (std::uint64_t block = 0; block < 10; ++block) ASSERT_TRUE(t.Publish(100 * (block + 1), 0));
  OneLife next(t.memory, 8, kOne, {}, {}, {.max_blocks = 4});
  for (std::uint64_t block = 0; block < 10; ++block) EXPECT_EQ(next.Has(100 * (block + 1)), block >= 6) << block;
  EXPECT_EQ(next.pool->gauges().slots_sealed, 4U);
}

// Random life; at some of the stops a new cache says of every block what the old one says, but for the last change.
TEST(Adopt, EveryStopServesWhatWasStored) {
  constexpr std::uint64_t kUnits = 6;
  const pool::PoolConfig pool_config{.pool_bytes = kUnits * kTestUnit, .unit_bytes = kTestUnit, .max_slots = kSlots};
  wire::RecordingTable table(pool_config.table_bytes());
  auto pool = pool::Pool::Create(pool_config, table).value();
  ASSERT_TRUE(pool->AddReserved(pool_config.pool_bytes));
  auto cache = BlockCache::Create(kConfig, *pool).value();
  ASSERT_TRUE(cache->AddNamespace(kRow, kMixed, kMixedGroups));
  Prng prng(21);
  constexpr std::uint64_t kChains = 4;
  constexpr std::uint32_t kDepths = 6;
  const auto number = [](std::uint64_t chain, std::uint32_t depth) { return chain * 100 + depth + 100; };
  const auto served = [&](BlockCache& one) {
    std::vector<std::uint32_t> groups;
    for (std::uint64_t chain = 0; chain < kChains; ++chain) {
      for (std::uint32_t depth = 0; depth < kDepths; ++depth) {
        const state::BlockHash hash = TestCache::Hash(number(chain, depth));
        std::vector<BlockUse> uses;
        one.LookUp(kRow, std::span(&hash, 1), uses);
        groups.push_back(uses[0].groups);
      }
    }
    return groups;
  };
  std::uint64_t compared = 0;
  for (std::uint64_t step = 1; step < 1500; ++step) {
    const std::vector<std::uint32_t> before = served(*cache);
    const std::uint64_t chain = prng.Below(kChains);
    const auto depth = static_cast<std::uint32_t>(prng.Below(kDepths));
    const auto component = static_cast<std::uint32_t>(prng.Below(4));
    const std::uint32_t ratio = component < 2 ? 1 : 2;
    if ((depth + 1) % ratio == 0) {
      const state::BlockHash hash = TestCache::Hash(number(chain, depth));
      const auto got = cache->Reserve({kRow, hash, component}, step);
      if (got.status == ReserveStatus::kSlot && prng.Below(8) == 0) {
        ASSERT_TRUE(cache->AbortReserved(got.slot.index, got.slot.generation));
      } else if (got.status == ReserveStatus::kSlot) {
        CommitRequest request{.row = kRow, .hash = hash, .parent = {}, .depth = depth, .component = component};
        if (depth >= ratio) request.parent = TestCache::Hash(number(chain, depth - ratio));
        request.slot = got.slot.index;
        request.generation = got.slot.generation;
        cache->Commit(request, step);
      }
    }
    const std::vector<std::uint32_t> after = served(*cache);
    std::size_t stop = 0;
    const std::size_t stores = table.stores();
    table.ForEachStop([&](const std::vector<std::uint64_t>& memory) {
      const std::size_t at = stop++;
      if (at != stores && (at + step) % 5 != 0) return;
      OneLife next(memory, kUnits, kMixed, kMixedGroups);
      const std::vector<std::uint32_t> seen = served(*next.cache);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const bool as_is = seen[i] == after[i] || seen[i] == before[i];
        // A step may evict several components and store one; in between, fewer groups than on either side are there.
        const bool between =
            (seen[i] & ~(before[i] | after[i])) == 0 && (seen[i] & before[i] & after[i]) == (before[i] & after[i]);
        ASSERT_TRUE(as_is || between) << "step " << step << " stop " << at << " block " << i;
      }
      if (at == stores) {
        ASSERT_EQ(seen, after) << "step " << step;
      }
      ++compared;
    });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(compared, 3000U);
  EXPECT_GT(cache->counters().evictions, 100U);
}

}  // namespace
}  // namespace orbitkv::cache
