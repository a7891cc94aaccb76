// A pool comes back from its table: at every store at which an update can stop, and from damaged tables.
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/wire/test_tables.h"

namespace orbitkv::pool {
namespace {

using wire::SlotState;

constexpr std::uint64_t kUnit = 16 << 10U;
constexpr PoolConfig kConfig{.pool_bytes = 12 * kUnit, .unit_bytes = kUnit, .max_slots = 90};
// Of the life that recovers: a torn record may have hidden the last generation.
constexpr PoolConfig kNext{
    .pool_bytes = 12 * kUnit, .unit_bytes = kUnit, .max_slots = 90, .first_generation = 1'000'000};

SlotIdentity Identity(std::uint64_t number, std::uint32_t payload_bytes) {
  SlotIdentity identity{.row = NamespaceRow(1), .group = 2, .shard = 3, .depth = 4, .payload_bytes = payload_bytes};
  identity.last_use_ns = number;
  identity.checksum = number * 31;
  identity.hash.bytes[0] = std::byte{9};
  return identity;
}

struct Life {
  Slot slot;
  std::uint32_t payload_bytes = 0;
  bool sealed = false;
};
using Lives = std::map<std::uint64_t, Life>;  // by generation

struct Image {
  explicit Image(std::span<const std::uint64_t> words)
      : memory(words.begin(), words.end()), table(std::as_writable_bytes(std::span(memory))) {}
  std::vector<std::uint64_t> memory;
  wire::SpanTable table;
};

std::vector<bool> Holding(const std::set<std::uint32_t>& slots) {
  std::vector<bool> held(kConfig.max_slots + 1);
  for (const std::uint32_t slot : slots) held[slot] = true;
  return held;
}

// Every slot lies where it is said to, apart from the others, in a pool whose figures are right.
void ExpectSound(const Recovered& recovered) {
  const Pool& pool = *recovered.pool;
  std::map<std::uint64_t, std::uint64_t> taken;
  std::uint64_t used = 0;
  std::uint32_t sealed = 0;
  for (const RecoveredSlot& slot : recovered.slots) {
    const auto place = pool.Locate(slot.index, slot.generation);
    ASSERT_TRUE(place);
    const auto next = taken.lower_bound(place->offset);
    ASSERT_TRUE(next == taken.end() || place->offset + place->slot_bytes <= next->first);
    ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= place->offset);
    ASSERT_LE(place->offset + place->slot_bytes, pool.gauges().reserved_bytes);
    taken.emplace(place->offset, place->slot_bytes);
    used += place->slot_bytes;
    sealed += slot.sealed ? 1 : 0;
    EXPECT_EQ(pool.Read(slot.index, slot.generation).has_value(), slot.sealed);
  }
  EXPECT_EQ(pool.gauges().slots_sealed, sealed);
  EXPECT_EQ(pool.gauges().slots_writing, recovered.slots.size() - sealed);
  if (pool.gauges().slots_retired == 0) {
    EXPECT_EQ(pool.gauges().used_bytes, used);
  }
}

// The pool is used up to the last byte by slots of one size that lie apart from what is there.
void ExpectUsable(Recovered& recovered, std::uint64_t newest_generation) {
  Pool& pool = *recovered.pool;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (const RecoveredSlot& slot : recovered.slots) {
    const auto place = pool.Locate(slot.index, slot.generation).value();
    taken.emplace_back(place.offset, place.offset + place.slot_bytes);
  }
  for (const std::uint64_t size : {2048, 512}) {
    for (;;) {
      const auto slot = pool.Allocate(size);
      if (!slot) {
        EXPECT_EQ(slot.error().code, Code::kBusy);
        break;
      }
      EXPECT_GT(slot->generation, newest_generation);
      taken.emplace_back(slot->offset, slot->offset + slot->slot_bytes);
    }
  }
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i) ASSERT_LE(taken[i - 1].second, taken[i].first);
  for (const RecoveredSlot& slot : recovered.slots) ASSERT_TRUE(pool.Free(slot.index, slot.generation));
}

// `before` and `after` differ in one slot at most: that one is as before, as after, or gone.
void ExpectOneOf(const Recovered& recovered, const Lives& before, const Lives& after) {
  std::set<std::uint64_t> seen;
  for (const RecoveredSlot& slot : recovered.slots) {
    if (!slot.sealed) continue;
    seen.insert(slot.generation);
    const auto was = before.find(slot.generation);
    const auto is = after.find(slot.generation);
    const Life* const life = is != after.end() && is->second.sealed      ? &is->second
                             : was != before.end() && was->second.sealed ? &was->second
                                                                         : nullptr;
    ASSERT_NE(life, nullptr) << "generation " << slot.generation;
    const auto record = recovered.pool->Read(slot.index, slot.generation).value();
    EXPECT_EQ(slot.index, life->slot.index);
    EXPECT_EQ(record.offset, life->slot.offset);
    EXPECT_EQ(record.slot_bytes, life->slot.slot_bytes);
    EXPECT_EQ(record.payload_bytes, life->payload_bytes);
    EXPECT_EQ(record.checksum, slot.generation * 31);
    EXPECT_EQ(record.group, 2U);
    EXPECT_EQ(record.shard, 3U);
  }
  for (const auto& [generation, life] : before) {
    const auto still = after.find(generation);
    if (life.sealed && still != after.end()) {
      EXPECT_TRUE(seen.contains(generation)) << generation;
    }
  }
}

// Random life of a pool; at each stop of each update a new pool comes from the table.
TEST(PoolRecovery, EveryStopOfEveryUpdate) {
  wire::RecordingTable table(kConfig.table_bytes());
  auto pool = Pool::Create(kConfig, table).value();
  ASSERT_TRUE(pool->AddReserved(kConfig.pool_bytes));
  Prng prng(5);
  Lives now;
  std::uint64_t newest = 0;
  const std::uint64_t sizes[] = {512, 1500, 4096, 20'000, 50'000};
  for (int step = 0; step < 2500; ++step) {
    const Lives before = now;
    const std::uint64_t size = sizes[(static_cast<std::uint64_t>(step) / 300 + prng.Below(2)) % 5];
    const auto any = [&] {
      auto it = now.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(prng.Below(now.size())));
      return it;
    };
    const std::uint64_t choice = prng.Below(100);
    if (now.empty() || choice < 40) {
      if (const auto slot = pool->Allocate(size)) {
        newest = slot->generation;
        now.emplace(slot->generation, Life{*slot, static_cast<std::uint32_t>(size), false});
      } else if (!now.empty()) {
        const auto victim = any();
        ASSERT_TRUE(pool->Free(victim->second.slot.index, victim->first));
        now.erase(victim);
      }
    } else if (const auto one = any(); choice < 70 && !one->second.sealed) {
      ASSERT_TRUE(pool->Seal(one->second.slot.index, one->first, Identity(one->first, one->second.payload_bytes)));
      one->second.sealed = true;
    } else if (choice < 80) {
      pool->NoteUse(one->second.slot.index, one->first, static_cast<std::uint64_t>(step));
    } else {
      if (pool->gauges().slots_retired < 2 && prng.Below(50) == 0) {
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool->CountFailure(one->second.slot.index, one->first));
      }
      ASSERT_TRUE(pool->Free(one->second.slot.index, one->first));
      now.erase(one);
    }
    // What is being written is held in half of the lives, as if a client lived.
    std::set<std::uint32_t> held;
    for (const auto& [generation, life] : before) {
      const bool freed = !now.contains(generation);
      if (!freed && !life.sealed && step % 2 == 0) held.insert(life.slot.index.value());
    }
    std::size_t stop = 0;
    table.ForEachStop([&](const std::vector<std::uint64_t>& memory) {
      SCOPED_TRACE("step " + std::to_string(step) + " stop " + std::to_string(stop++));
      Image image(memory);
      auto recovered = Pool::Recover(kNext, image.table, kConfig.pool_bytes, Holding(held));
      ASSERT_TRUE(recovered);
      ExpectSound(*recovered);
      ExpectOneOf(*recovered, before, now);
      EXPECT_EQ(recovered->misplaced, 0U);
      EXPECT_LE(recovered->damaged, 1U);
      // A second look, after the first one has cleaned up, finds the same.
      const auto again = Pool::Recover(kConfig, image.table, kConfig.pool_bytes, Holding(held));
      ASSERT_TRUE(again);
      EXPECT_EQ(again->slots.size(), recovered->slots.size());
      EXPECT_EQ(again->damaged + again->unfinished, 0U);
      if (step % 16 == 0) ExpectUsable(*recovered, newest);
    });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(pool->gauges().slots_retired, 0U);
}

TEST(PoolRecovery, UnfinishedSlotsGoUnlessTheyAreHeld) {
  wire::RecordingTable table(kConfig.table_bytes());
  auto pool = Pool::Create(kConfig, table).value();
  ASSERT_TRUE(pool->AddReserved(kConfig.pool_bytes));
  const Slot gone = pool->Allocate(4096).value();
  const Slot held = pool->Allocate(4096).value();
  const Slot freed = pool->Allocate(4096).value();
  ASSERT_TRUE(pool->Free(freed.index, freed.generation));
  const auto recovered =
      Pool::Recover(kConfig, table, kConfig.pool_bytes, Holding({held.index.value(), freed.index.value()})).value();
  ASSERT_EQ(recovered.slots.size(), 2U);
  for (const RecoveredSlot& slot : recovered.slots) {
    EXPECT_TRUE(slot.held);
    EXPECT_FALSE(slot.sealed);
    EXPECT_NE(slot.index, gone.index);
    EXPECT_EQ(recovered.pool->Locate(slot.index, slot.generation)->offset,
              slot.index == held.index ? held.offset : freed.offset);
  }
  EXPECT_EQ(recovered.unfinished, 1U);
  EXPECT_EQ(recovered.pool->gauges().slots_writing, 2U);
}

TEST(PoolRecovery, WhatLiesBeyondTheReservedMemoryIsFreed) {
  wire::RecordingTable table(kConfig.table_bytes());
  auto pool = Pool::Create(kConfig, table).value();
  ASSERT_TRUE(pool->AddReserved(kConfig.pool_bytes));
  std::uint32_t inside = 0;
  for (;;) {
    const auto slot = pool->Allocate(kUnit / 2);
    if (!slot) break;
    ASSERT_TRUE(pool->Seal(slot->index, slot->generation, Identity(slot->generation, 100)));
    inside += slot->offset + slot->slot_bytes <= 5 * kUnit ? 1 : 0;
  }
  const auto recovered = Pool::Recover(kConfig, table, 5 * kUnit + 100, {}).value();
  EXPECT_EQ(recovered.slots.size(), inside);
  EXPECT_EQ(recovered.misplaced, 24 - inside);
  ExpectSound(recovered);
}

TEST(PoolRecovery, TheOrderOfUseComesBack) {
  wire::RecordingTable table(kConfig.table_bytes());
  auto pool = Pool::Create(kConfig, table).value();
  ASSERT_TRUE(pool->AddReserved(kConfig.pool_bytes));
  const Slot slot = pool->Allocate(600).value();
  ASSERT_TRUE(pool->Seal(slot.index, slot.generation, Identity(7, 600)));
  EXPECT_EQ(Pool::Recover(kConfig, table, kConfig.pool_bytes, {})->slots[0].last_use_ns, 7U);
  pool->NoteUse(slot.index, slot.generation, 99);
  const auto recovered = Pool::Recover(kConfig, table, kConfig.pool_bytes, {}).value();
  ASSERT_EQ(recovered.slots.size(), 1U);
  EXPECT_EQ(recovered.slots[0].last_use_ns, 99U);
}

// Records with right checksums that contradict each other, as no life writes them.
TEST(PoolRecovery, ContradictionsCostSlotsAndNothingElse) {
  Prng prng(77);
  const std::uint32_t sizes[] = {512, 1024, 1536, 8192, 20'480, 50'176, 0, 7, 1U << 30U};
  std::uint64_t kept = 0;
  std::uint64_t freed = 0;
  for (int round = 0; round < 3000; ++round) {
    wire::RecordingTable table(kConfig.table_bytes());
    std::set<std::uint32_t> held;
    for (std::uint32_t slot = 0; slot < kConfig.max_slots; ++slot) {
      if (prng.Below(3) == 0) continue;
      wire::SlotRecord record;
      record.slot_bytes = sizes[prng.Below(prng.Below(8) == 0 ? 9 : 5)];
      record.slab_unit = static_cast<std::uint32_t>(prng.Below(13));
      record.offset = record.slab_unit * kUnit + prng.Below(6) * record.slot_bytes;
      record.payload_bytes = static_cast<std::uint32_t>(prng.Below(600));
      record.generation = prng.Below(40) == 0 ? ~std::uint64_t{0} : prng.Below(1000);
      record.state = static_cast<SlotState>(prng.Below(4));
      record.last_use_ns = prng.Next();
      ASSERT_TRUE(wire::StoreSlotRecord(table, slot, record));
      if (prng.Below(4) == 0) held.insert(slot + 1);
    }
    auto recovered = Pool::Recover(kConfig, table, kConfig.pool_bytes, Holding(held));
    ASSERT_TRUE(recovered);
    ExpectSound(*recovered);
    kept += recovered->slots.size();
    freed += recovered->misplaced;
    ExpectUsable(*recovered, 0);
    ASSERT_FALSE(::testing::Test::HasFailure()) << round;
  }
  EXPECT_GT(kept, 3000U);
  EXPECT_GT(freed, 3000U);
}

TEST(PoolRecovery, NoMoreSizesThanThePoolMayHave) {
  PoolConfig config = kConfig;
  wire::RecordingTable table(config.table_bytes());
  auto pool = Pool::Create(config, table).value();
  ASSERT_TRUE(pool->AddReserved(config.pool_bytes));
  for (std::uint64_t size = 512; size <= 5 * 512; size += 512) {
    const Slot slot = pool->Allocate(size).value();
    ASSERT_TRUE(pool->Seal(slot.index, slot.generation, Identity(slot.generation, 100)));
  }
  config.max_classes = 3;
  const auto recovered = Pool::Recover(config, table, config.pool_bytes, {}).value();
  EXPECT_EQ(recovered.slots.size(), 3U);
  EXPECT_EQ(recovered.misplaced, 2U);
}

TEST(PoolRecovery, ADamagedTableIsNeverTrusted) {
  wire::RecordingTable table(kConfig.table_bytes());
  auto pool = Pool::Create(kConfig, table).value();
  ASSERT_TRUE(pool->AddReserved(kConfig.pool_bytes));
  Lives lives;
  for (int i = 0; i < 40; ++i) {
    const auto slot = pool->Allocate(1024);
    ASSERT_TRUE(slot);
    ASSERT_TRUE(pool->Seal(slot->index, slot->generation, Identity(slot->generation, 1024)));
    lives.emplace(slot->generation, Life{*slot, 1024, true});
  }
  Prng prng(3);
  for (int round = 0; round < 2000; ++round) {
    Image image(table.words());
    for (std::uint64_t hits = prng.Below(20) + 1; hits > 0; --hits) {
      image.memory[prng.Below(image.memory.size())] ^= std::uint64_t{1} << prng.Below(64);
    }
    const auto recovered = Pool::Recover(kNext, image.table, kConfig.pool_bytes, {});
    ASSERT_TRUE(recovered);
    ExpectSound(*recovered);
    ExpectOneOf(*recovered, lives, {});
    EXPECT_GE(recovered->slots.size() + recovered->damaged, lives.size());
    ASSERT_FALSE(::testing::Test::HasFailure()) << round;
  }
}

}  // namespace
}  // namespace orbitkv::pool
