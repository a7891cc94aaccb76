#include "orbitkv/pool/pool.h"

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <vector>

#include "orbitkv/base/prng.h"

namespace orbitkv::pool {
namespace {

using wire::SlotState;

constexpr std::uint64_t kUnit = 64 << 10U;

// A pool with the memory of its table.
struct Fixture {
  explicit Fixture(PoolConfig given, bool reserve = true)
      : config(given), memory(config.table_bytes() / 8), table(std::as_writable_bytes(std::span(memory))) {
    pool = std::move(*Pool::Create(config, table));
    if (reserve) {
      EXPECT_TRUE(pool->AddReserved(config.pool_bytes));
    }
  }
  PoolConfig config;
  std::vector<std::uint64_t> memory;
  wire::SpanTable table;
  std::unique_ptr<Pool> pool;
};

PoolConfig Small(std::uint64_t units, std::uint32_t max_slots = 1000) {
  return PoolConfig{.pool_bytes = units * kUnit, .unit_bytes = kUnit, .max_slots = max_slots};
}

std::vector<Slot> Fill(Pool& pool, std::uint64_t bytes) {
  std::vector<Slot> slots;
  for (;;) {
    auto slot = pool.Allocate(bytes);
    if (!slot) {
      EXPECT_EQ(slot.error().code, Code::kBusy);
      return slots;
    }
    slots.push_back(*slot);
  }
}

SlotIdentity Identity(std::uint32_t payload_bytes) {
  SlotIdentity identity{.row = NamespaceRow(3), .group = 1, .shard = 2, .depth = 4, .payload_bytes = payload_bytes};
  identity.last_use_ns = 77;
  identity.checksum = 0x1234;
  identity.hash.bytes[0] = std::byte{9};
  identity.parent.bytes[0] = std::byte{8};
  return identity;
}

TEST(Pool, LimitsAreChecked) {
  EXPECT_FALSE(PoolConfig{}.Validate());
  EXPECT_FALSE((PoolConfig{.pool_bytes = 1, .max_slots = 1}).Validate());
  EXPECT_FALSE((PoolConfig{.pool_bytes = kUnit, .unit_bytes = 1000, .max_slots = 1}).Validate());
  EXPECT_FALSE((PoolConfig{.pool_bytes = kUnit, .unit_bytes = kUnit, .max_slots = 0}).Validate());
  std::vector<std::uint64_t> memory(16);
  wire::SpanTable table(std::as_writable_bytes(std::span(memory)));
  EXPECT_FALSE(Pool::Create(Small(1, 2), table));
  EXPECT_TRUE(Pool::Create(Small(1, 1), table));
}

TEST(Pool, TailWasteIsBounded) {
  Fixture big({.pool_bytes = std::uint64_t{4} << 30U, .max_slots = 1});
  for (const std::uint64_t payload :
       {512ULL, 24'000ULL, 65'544ULL, 737'520ULL, 1'048'584ULL, 4'194'816ULL, 17'000'000ULL}) {
    const std::uint64_t slot = Pool::SlotBytes(payload);
    const std::uint64_t slab = big.pool->SlabUnits(slot) * big.config.unit_bytes;
    EXPECT_LE(slab % slot * 1000, slab * 30) << payload;
    EXPECT_GE(slab / slot, 4U) << payload;
  }
}

TEST(Pool, SlotLivesThroughItsStates) {
  Fixture f(Small(2));
  const auto slot = f.pool->Allocate(1000);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->slot_bytes, 1024U);
  EXPECT_EQ(f.pool->gauges().slots_writing, 1U);
  EXPECT_EQ(f.pool->Read(slot->index, slot->generation).error().code, Code::kRefused);
  EXPECT_EQ(f.pool->Seal(slot->index, slot->generation, Identity(1025)).error().code, Code::kInvalid);
  ASSERT_TRUE(f.pool->Seal(slot->index, slot->generation, Identity(1000)));
  EXPECT_EQ(f.pool->Seal(slot->index, slot->generation, Identity(1000)).error().code, Code::kRefused);

  const auto record = f.pool->Read(slot->index, slot->generation);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->namespace_row, 3U);
  EXPECT_EQ(record->group, 1U);
  EXPECT_EQ(record->shard, 2U);
  EXPECT_EQ(record->depth, 4U);
  EXPECT_EQ(record->payload_bytes, 1000U);
  EXPECT_EQ(record->last_use_ns, 77U);
  EXPECT_EQ(record->checksum, 0x1234U);
  EXPECT_EQ(record->hash.bytes[0], std::byte{9});
  EXPECT_EQ(record->parent.bytes[0], std::byte{8});
  EXPECT_EQ(record->offset, slot->offset);
  EXPECT_EQ(f.pool->gauges().slots_sealed, 1U);
  EXPECT_EQ(f.pool->gauges().used_bytes, 1024U);

  ASSERT_TRUE(f.pool->Free(slot->index, slot->generation));
  EXPECT_EQ(f.pool->gauges().slots_sealed, 0U);
  EXPECT_EQ(f.pool->gauges().used_bytes, 0U);
  EXPECT_EQ(f.pool->Free(slot->index, slot->generation).error().code, Code::kRefused);
  EXPECT_EQ(f.pool->Read(slot->index, slot->generation).error().code, Code::kRefused);
  const auto freed = wire::LoadSlotRecord(f.table.bytes(), slot->index.value() - 1);
  ASSERT_TRUE(freed);
  EXPECT_EQ(freed->state, SlotState::kFree);

  const auto again = f.pool->Allocate(1000);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->index, slot->index);
  EXPECT_NE(again->generation, slot->generation);
  EXPECT_EQ(f.pool->Free(slot->index, slot->generation).error().code, Code::kStale);
  EXPECT_EQ(f.pool->Seal(slot->index, slot->generation, Identity(1)).error().code, Code::kStale);
}

TEST(Pool, BadArgumentsAreRefused) {
  Fixture f(Small(1));
  EXPECT_EQ(f.pool->Allocate(0).error().code, Code::kInvalid);
  EXPECT_EQ(f.pool->Allocate(kUnit + 1).error().code, Code::kInvalid);
  EXPECT_EQ(f.pool->Allocate(~std::uint64_t{0}).error().code, Code::kInvalid);
  EXPECT_EQ(f.pool->Free(SlotIndex(0), 1).error().code, Code::kInvalid);
  EXPECT_EQ(f.pool->Free(SlotIndex(1001), 1).error().code, Code::kInvalid);
  EXPECT_EQ(f.pool->Free(SlotIndex(1), 1).error().code, Code::kRefused);
  EXPECT_EQ(f.pool->CountFailure(SlotIndex(1), 1).error().code, Code::kRefused);
  EXPECT_EQ(f.pool->Locate(SlotIndex(5000), 1).error().code, Code::kInvalid);
  EXPECT_TRUE(f.pool->Allocate(kUnit));
}

TEST(Pool, OnlyReservedBytesAreHandedOut) {
  Fixture f(Small(4), false);
  EXPECT_EQ(f.pool->Allocate(512).error().code, Code::kBusy);
  ASSERT_TRUE(f.pool->AddReserved(kUnit + kUnit / 2));
  const auto first = Fill(*f.pool, 4096);
  ASSERT_EQ(first.size(), kUnit / 4096);
  for (const Slot& slot : first) EXPECT_LE(slot.offset + slot.slot_bytes, kUnit);
  ASSERT_TRUE(f.pool->AddReserved(kUnit / 2));
  EXPECT_EQ(Fill(*f.pool, 4096).size(), kUnit / 4096);
  EXPECT_EQ(f.pool->AddReserved(2 * kUnit + 1).error().code, Code::kInvalid);
  ASSERT_TRUE(f.pool->AddReserved(2 * kUnit));
  EXPECT_EQ(Fill(*f.pool, 4096).size(), 2 * kUnit / 4096);
  EXPECT_EQ(f.pool->gauges().used_bytes, f.config.pool_bytes);
}

TEST(Pool, TableIsALimitToo) {
  Fixture f(Small(4, 10));
  EXPECT_EQ(Fill(*f.pool, 512).size(), 10U);
}

TEST(Pool, HoleIsUsedWithShorterSlabs) {
  // 24 KiB slots want 3 units; of 7 units the last one still holds two slots, too few, and a pool of 8 leaves two.
  Fixture f(Small(8));
  EXPECT_EQ(f.pool->SlabUnits(24 << 10U), 3U);
  EXPECT_EQ(Fill(*f.pool, 24 << 10U).size(), 8U + 8U + 5U);
}

TEST(Pool, SlabChangesClassOnlyWhenEmpty) {
  Fixture f(Small(2));
  const auto small = Fill(*f.pool, 4096);
  EXPECT_EQ(f.pool->Allocate(8192).error().code, Code::kBusy);
  for (const Slot& slot : small) {
    if (slot.offset >= kUnit && slot.offset + 4096 < 2 * kUnit) {
      ASSERT_TRUE(f.pool->Free(slot.index, slot.generation));
    }
  }
  EXPECT_EQ(f.pool->Allocate(8192).error().code, Code::kBusy);  // one slot of the slab is still there
  const Slot last = small.back();
  ASSERT_TRUE(f.pool->Free(last.index, last.generation));
  const auto large = Fill(*f.pool, 8192);
  EXPECT_EQ(large.size(), kUnit / 8192);
  for (const Slot& slot : large) EXPECT_GE(slot.offset, kUnit);
  EXPECT_EQ(f.pool->class_gauges().size(), 2U);
}

TEST(Pool, WindowNamesWhatIsInTheWay) {
  Fixture f(Small(6));
  const auto small = Fill(*f.pool, 4096);  // six slabs of one unit
  const std::uint64_t large = 24 << 10U;   // wants three units
  const auto window = f.pool->WindowAt(small[kUnit / 4096 * 4].index, large);
  ASSERT_TRUE(window);
  EXPECT_EQ(window->first_unit, 3U);
  EXPECT_EQ(window->units, 3U);
  std::set<std::uint32_t> in_window;
  std::uint64_t last_offset = 0;
  EXPECT_TRUE(f.pool->ForEachSlot(*window, [&](SlotIndex slot) {
    in_window.insert(slot.value());
    for (const Slot& candidate : small) {
      if (candidate.index != slot) continue;
      EXPECT_GE(candidate.offset, 3 * kUnit);
      EXPECT_GE(candidate.offset, last_offset);
      last_offset = candidate.offset;
      EXPECT_TRUE(f.pool->Free(slot, candidate.generation));
    }
    return true;
  }));
  EXPECT_EQ(in_window.size(), 3 * kUnit / 4096);
  EXPECT_EQ(Fill(*f.pool, large).size(), 8U);
  // What is left belongs to small slots; a window over the large ones is none for the large class.
  EXPECT_TRUE(f.pool->WindowAt(small[0].index, large));
  EXPECT_FALSE(f.pool->WindowAt(small[0].index, 4096));
  EXPECT_FALSE(f.pool->WindowAt(SlotIndex(0), large));
}

TEST(Pool, HandGoesRound) {
  Fixture f(Small(4));
  Fill(*f.pool, 4096);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 4; ++i) {
    const auto window = f.pool->NextWindow(8192);
    ASSERT_TRUE(window);
    seen.insert(window->first_unit);
  }
  EXPECT_EQ(seen.size(), 4U);
  EXPECT_FALSE(f.pool->NextWindow(4096));  // all slabs are of that class
}

TEST(Pool, SecondFailureRetires) {
  Fixture f(Small(1));
  auto slot = f.pool->Allocate(kUnit);
  ASSERT_TRUE(slot);
  ASSERT_TRUE(f.pool->CountFailure(slot->index, slot->generation));
  ASSERT_TRUE(f.pool->Free(slot->index, slot->generation));
  slot = f.pool->Allocate(kUnit);
  ASSERT_TRUE(slot);
  ASSERT_TRUE(f.pool->CountFailure(slot->index, slot->generation));
  ASSERT_TRUE(f.pool->Free(slot->index, slot->generation));
  EXPECT_EQ(f.pool->gauges().slots_retired, 1U);
  EXPECT_EQ(f.pool->Allocate(kUnit).error().code, Code::kBusy);
  EXPECT_EQ(f.pool->Allocate(512).error().code, Code::kBusy);  // its slab never becomes empty
  EXPECT_EQ(f.pool->Free(slot->index, slot->generation).error().code, Code::kRefused);
}

TEST(Pool, DamagedRecordIsRefusedAndCanBeFreed) {
  Fixture f(Small(1));
  const auto slot = f.pool->Allocate(600);
  ASSERT_TRUE(slot);
  ASSERT_TRUE(f.pool->Seal(slot->index, slot->generation, Identity(600)));
  const std::size_t first = (slot->index.value() - 1) * wire::kSlotRecordBytes / 8;
  f.memory[first + 9] ^= 1U << 7U;
  EXPECT_EQ(f.pool->Read(slot->index, slot->generation).error().code, Code::kCorrupt);
  std::fill_n(f.memory.begin() + static_cast<std::ptrdiff_t>(first), wire::kSlotRecordBytes / 8, 0U);
  EXPECT_EQ(f.pool->Read(slot->index, slot->generation).error().code, Code::kCorrupt);
  ASSERT_TRUE(f.pool->Free(slot->index, slot->generation));
  const auto again = f.pool->Allocate(600);
  ASSERT_TRUE(again);
  ASSERT_TRUE(f.pool->Seal(again->index, again->generation, Identity(600)));
  EXPECT_TRUE(f.pool->Read(again->index, again->generation));
}

TEST(Pool, ValidRecordOfSomethingElseIsRefused) {
  Fixture f(Small(1));
  const auto slot = f.pool->Allocate(600);
  ASSERT_TRUE(slot);
  ASSERT_TRUE(f.pool->Seal(slot->index, slot->generation, Identity(600)));
  const auto good = f.pool->Read(slot->index, slot->generation);
  ASSERT_TRUE(good);
  const auto refused = [&](auto change) {
    wire::SlotRecord record = *good;
    change(record);
    ASSERT_TRUE(wire::StoreSlotRecord(f.table, slot->index.value() - 1, record));
    EXPECT_EQ(f.pool->Read(slot->index, slot->generation).error().code, Code::kCorrupt);
  };
  refused([](wire::SlotRecord& r) { ++r.generation; });
  refused([](wire::SlotRecord& r) { r.offset += kSlotAlign; });
  refused([](wire::SlotRecord& r) { r.slot_bytes += kSlotAlign; });
  refused([](wire::SlotRecord& r) { r.state = SlotState::kWriting; });
  ASSERT_TRUE(wire::StoreSlotRecord(f.table, slot->index.value() - 1, *good));
  EXPECT_TRUE(f.pool->Read(slot->index, slot->generation));
}

// Random operations against a map: slots never overlap, generations never repeat, gauges and records agree.
TEST(Pool, RandomOperationsKeepTheInvariants) {
  Fixture f(Small(24, 700));
  struct Live {
    Slot slot;
    bool sealed = false;
  };
  std::map<std::uint64_t, Live> by_offset;
  std::set<std::uint64_t> generations;
  Prng prng(20250701);
  const std::uint64_t sizes[] = {512, 3000, 24 << 10U, 70'000, 200'000};
  std::uint64_t used = 0, busy = 0;
  for (int step = 0; step < 60'000; ++step) {
    // Long phases of one size, so that slabs become empty and change class.
    const std::uint64_t size = sizes[(static_cast<std::uint64_t>(step) / 3000 + prng.Below(2)) % 5];
    if (prng.Below(100) < 52 || by_offset.empty()) {
      const auto slot = f.pool->Allocate(size);
      if (!slot) {
        ASSERT_EQ(slot.error().code, Code::kBusy);
        ++busy;
        // Make room as a cache would: drop a random tenth.
        for (auto it = by_offset.begin(); it != by_offset.end();) {
          if (prng.Below(10) != 0) {
            ++it;
            continue;
          }
          ASSERT_TRUE(f.pool->Free(it->second.slot.index, it->second.slot.generation));
          used -= it->second.slot.slot_bytes;
          it = by_offset.erase(it);
        }
        continue;
      }
      ASSERT_TRUE(generations.insert(slot->generation).second);
      ASSERT_LE(slot->offset + slot->slot_bytes, f.config.pool_bytes);
      ASSERT_GE(slot->slot_bytes, size);
      const auto next = by_offset.lower_bound(slot->offset);
      if (next != by_offset.end()) {
        ASSERT_LE(slot->offset + slot->slot_bytes, next->first);
      }
      if (next != by_offset.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second.slot.slot_bytes, slot->offset);
      }
      by_offset.emplace(slot->offset, Live{*slot});
      used += slot->slot_bytes;
    } else {
      auto it = by_offset.lower_bound(prng.Below(f.config.pool_bytes));
      if (it == by_offset.end()) it = by_offset.begin();
      Live& live = it->second;
      if (!live.sealed && prng.Below(2) == 0) {
        ASSERT_TRUE(f.pool->Seal(live.slot.index, live.slot.generation, Identity(1)));
        live.sealed = true;
      } else {
        ASSERT_EQ(f.pool->Read(live.slot.index, live.slot.generation).has_value(), live.sealed);
        ASSERT_TRUE(f.pool->Free(live.slot.index, live.slot.generation));
        used -= live.slot.slot_bytes;
        by_offset.erase(it);
      }
    }
    ASSERT_EQ(f.pool->gauges().used_bytes, used);
    ASSERT_EQ(f.pool->gauges().slots_writing + f.pool->gauges().slots_sealed, by_offset.size());
    ASSERT_LE(f.pool->gauges().slab_bytes, f.config.pool_bytes);
  }
  EXPECT_GT(busy, 20U);
  for (const auto& [offset, live] : by_offset) {
    const auto record = wire::LoadSlotRecord(f.table.bytes(), live.slot.index.value() - 1);
    ASSERT_TRUE(record);
    EXPECT_EQ(record->offset, offset);
    EXPECT_EQ(record->state, live.sealed ? SlotState::kSealed : SlotState::kWriting);
  }
}

}  // namespace
}  // namespace orbitkv::pool
