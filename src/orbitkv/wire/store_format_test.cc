#include "orbitkv/wire/store_format.h"

#include <cstring>
#include <gtest/gtest.h>

namespace orbitkv::wire {
namespace {

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Superblock MakeSuperblock() {
  Superblock superblock;
  superblock.align = 512;
  superblock.uuid.fill(std::byte{7});
  superblock.file_bytes = kStoreBlockBytes + 4 * (1 << 20);
  superblock.segment_bytes = 1 << 20;
  superblock.segment_count = 4;
  Seal(superblock);
  return superblock;
}

// Every bit of a struct counts.
template <typename T, typename Decode>
void EveryBitCounts(T value, Decode decode) {
  ASSERT_TRUE(decode(BytesOf(value)));
  for (std::size_t bit = 0; bit < sizeof(T) * 8; ++bit) {
    T changed = value;
    BytesOf(changed)[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(decode(BytesOf(changed))) << bit;
  }
  EXPECT_FALSE(decode(BytesOf(value).first(sizeof(T) - 1)));
}

TEST(StoreFormat, ChangedBitsAreSeen) {
  EveryBitCounts(MakeSuperblock(), DecodeSuperblock);
  SegmentHeader segment;
  segment.sequence = 9;
  Seal(segment);
  EveryBitCounts(segment, DecodeSegmentHeader);
  RecordHeader record;
  record.payload_bytes = 4096;
  Seal(record);
  EveryBitCounts(record, DecodeRecordHeader);
  SummaryFooter footer;
  footer.entry_count = 3;
  Seal(footer);
  EveryBitCounts(footer, DecodeSummaryFooter);
}

TEST(StoreFormat, ANewerVersionIsNamed) {
  Superblock superblock = MakeSuperblock();
  superblock.version = kStoreVersion + 1;
  Seal(superblock);
  const auto decoded = DecodeSuperblock(BytesOf(superblock));
  EXPECT_EQ(decoded.error().code, Code::kUnsupported);
  EXPECT_EQ(decoded.error().a, kStoreVersion + 1);
}

TEST(StoreFormat, NumbersThatContradictEachOtherAreRefused) {
  const auto refused = [](void (*change)(Superblock&)) {
    Superblock superblock = MakeSuperblock();
    change(superblock);
    Seal(superblock);
    return DecodeSuperblock(BytesOf(superblock)).has_value() ? Code{} : Code::kCorrupt;
  };
  EXPECT_EQ(refused([](Superblock& s) { s.align = 1024; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.segment_count = 5; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.segment_count = 0; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.segment_bytes = 0; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.segment_bytes += 512; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.file_bytes = 0; }), Code::kCorrupt);
  EXPECT_EQ(refused([](Superblock& s) { s.segment_bytes = std::uint64_t{2} << 30U; }), Code::kCorrupt);
}

}  // namespace
}  // namespace orbitkv::wire
