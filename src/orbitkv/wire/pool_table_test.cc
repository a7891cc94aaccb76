#include "orbitkv/wire/pool_table.h"

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <vector>

#include "orbitkv/base/prng.h"

namespace orbitkv::wire {
namespace {

constexpr std::uint32_t kSlots = 4;

struct alignas(8) Memory {
  std::array<std::byte, kSlots * kSlotRecordBytes> bytes{};
};

// Stops storing after a number of stores, as a killed process does.
class StoppingTable final : public TableMemory {
 public:
  StoppingTable(Memory& memory, std::uint64_t stores) : table_(memory.bytes), left_(stores) {}
  std::span<const std::byte> bytes() const override { return table_.bytes(); }
  void Store(std::size_t word, std::uint64_t value) override {
    if (left_ == 0) return;
    --left_;
    ++stored_;
    table_.Store(word, value);
  }
  std::uint64_t stored() const { return stored_; }

 private:
  SpanTable table_;
  std::uint64_t left_;
  std::uint64_t stored_ = 0;
};

SlotRecord Sample(std::uint64_t seed) {
  Prng prng(seed);
  SlotRecord record;
  for (auto& byte : record.hash.bytes) byte = static_cast<std::byte>(prng.Next());
  for (auto& byte : record.parent.bytes) byte = static_cast<std::byte>(prng.Next());
  record.namespace_row = static_cast<std::uint32_t>(prng.Next());
  record.group = 1;
  record.shard = 2;
  record.depth = static_cast<std::uint32_t>(prng.Next());
  record.last_use_ns = prng.Next();
  record.payload_bytes = 700;
  record.slot_bytes = 1024;
  record.checksum = prng.Next();
  record.generation = prng.Next();
  record.offset = prng.Next();
  record.state = SlotState::kSealed;
  return record;
}

bool SameBut(const SlotRecord& a, const SlotRecord& b, SlotState state) {
  SlotRecord expected = b;
  expected.state = state;
  expected.crc = a.crc;
  return std::memcmp(&a, &expected, sizeof(a)) == 0;
}

// CRC32C by definition: reflected polynomial 0x82f63b78.
std::uint32_t PlainCrc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

TEST(PoolTable, UnwrittenMemoryIsFree) {
  Memory memory;
  const auto record = LoadSlotRecord(memory.bytes, 0);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->state, SlotState::kFree);
  EXPECT_EQ(record->generation, 0U);
}

TEST(PoolTable, StoredRecordComesBackWithStandardCrc) {
  Memory memory;
  SpanTable table(memory.bytes);
  for (std::uint32_t index = 0; index < kSlots; ++index) {
    ASSERT_TRUE(StoreSlotRecord(table, index, Sample(index)));
  }
  for (std::uint32_t index = 0; index < kSlots; ++index) {
    const auto record = LoadSlotRecord(memory.bytes, index);
    ASSERT_TRUE(record);
    EXPECT_TRUE(SameBut(*record, Sample(index), SlotState::kSealed));
    // The last use, at 80, is left out.
    const auto whole = std::span(memory.bytes).subspan(index * kSlotRecordBytes, 124);
    std::vector<std::byte> covered(whole.begin(), whole.begin() + 80);
    covered.insert(covered.end(), whole.begin() + 88, whole.end());
    EXPECT_EQ(record->crc, PlainCrc32c(covered));
  }
}

TEST(PoolTable, IndexOutsideIsRefused) {
  Memory memory;
  SpanTable table(memory.bytes);
  EXPECT_EQ(LoadSlotRecord(memory.bytes, kSlots).error().code, Code::kInvalid);
  EXPECT_EQ(StoreSlotRecord(table, kSlots, {}).error().code, Code::kInvalid);
  EXPECT_EQ(StoreSlotState(table, kSlots, {}, SlotState::kFree).error().code, Code::kInvalid);
  EXPECT_EQ(LoadSlotRecord(memory.bytes, std::numeric_limits<std::uint32_t>::max()).error().code, Code::kInvalid);
}

TEST(PoolTable, EveryStopOfAnUpdateIsOldOrRefusedOrNew) {
  for (const bool used_before : {false, true}) {
    for (std::uint64_t stores = 0;; ++stores) {
      Memory memory;
      SpanTable first(memory.bytes);
      if (used_before) {
        ASSERT_TRUE(StoreSlotRecord(first, 1, Sample(1)));
      }
      const auto old_record = LoadSlotRecord(memory.bytes, 1);
      StoppingTable table(memory, stores);
      ASSERT_TRUE(StoreSlotRecord(table, 1, Sample(2)));
      const auto seen = LoadSlotRecord(memory.bytes, 1);
      if (table.stored() < stores) break;  // the update needs fewer stores than this
      if (stores == 0) {
        ASSERT_TRUE(seen);
        EXPECT_TRUE(SameBut(*seen, *old_record, old_record->state));
      } else if (stores == kSlotRecordBytes / 8 + 1) {
        ASSERT_TRUE(seen);
        EXPECT_TRUE(SameBut(*seen, Sample(2), SlotState::kSealed));
      } else {
        ASSERT_FALSE(seen) << stores << " stores";
        EXPECT_EQ(seen.error().code, Code::kCorrupt);
      }
    }
  }
}

TEST(PoolTable, ChangeOfStateIsOneStore) {
  Memory memory;
  SpanTable first(memory.bytes);
  ASSERT_TRUE(StoreSlotRecord(first, 2, Sample(3)));
  StoppingTable table(memory, 100);
  ASSERT_TRUE(StoreSlotState(table, 2, Sample(3), SlotState::kRetired));
  EXPECT_EQ(table.stored(), 1U);
  const auto record = LoadSlotRecord(memory.bytes, 2);
  ASSERT_TRUE(record);
  EXPECT_TRUE(SameBut(*record, Sample(3), SlotState::kRetired));
}

TEST(PoolTable, ChangeOfLastUseIsOneStore) {
  Memory memory;
  SpanTable first(memory.bytes);
  ASSERT_TRUE(StoreSlotRecord(first, 2, Sample(3)));
  StoppingTable table(memory, 100);
  ASSERT_TRUE(StoreSlotUse(table, 2, 1234));
  EXPECT_EQ(table.stored(), 1U);
  SlotRecord expected = Sample(3);
  expected.last_use_ns = 1234;
  EXPECT_TRUE(SameBut(LoadSlotRecord(memory.bytes, 2).value(), expected, SlotState::kSealed));
  EXPECT_EQ(StoreSlotUse(table, kSlots, 1).error().code, Code::kInvalid);
}

TEST(PoolTable, EveryFlippedBitButThoseOfTheLastUseIsSeen) {
  Memory memory;
  SpanTable table(memory.bytes);
  ASSERT_TRUE(StoreSlotRecord(table, 0, Sample(4)));
  for (std::size_t bit = 0; bit < kSlotRecordBytes * 8; ++bit) {
    memory.bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    const bool use = bit / 8 >= offsetof(SlotRecord, last_use_ns) && bit / 8 < offsetof(SlotRecord, payload_bytes);
    EXPECT_EQ(LoadSlotRecord(memory.bytes, 0).has_value(), use) << "bit " << bit;
    memory.bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  EXPECT_TRUE(LoadSlotRecord(memory.bytes, 0));
}

}  // namespace
}  // namespace orbitkv::wire
