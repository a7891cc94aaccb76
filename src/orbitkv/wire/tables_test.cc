#include "orbitkv/wire/tables.h"

#include <gtest/gtest.h>

#include "orbitkv/wire/namespace_table.h"
#include "orbitkv/wire/test_tables.h"

namespace orbitkv::wire {
namespace {

constexpr TablesShape kShape{
    .pool_bytes = 1U << 20U, .unit_bytes = 1U << 16U, .max_slots = 100, .namespace_rows = 3, .session_rows = 5};

RecordingTable Fresh() {
  RecordingTable table(TablesLayout(kShape).total_bytes);
  EXPECT_TRUE(StoreTablesHeader(table, {.shape = kShape, .pool_id_hi = 7, .pool_id_lo = 9}));
  return table;
}

NamespaceRecord Sample(std::uint8_t fill, std::size_t groups) {
  NamespaceRecord record;
  record.digest.fill(std::byte{fill});
  record.shard_count = fill;
  for (std::uint32_t i = 0; i < groups; ++i) {
    record.groups.push_back({.block_tokens = 16 + i,
                             .page_count = 2,
                             .page_bytes = 4096,
                             .kind = i % 2 == 0 ? state::GroupKind::kFullAttention : state::GroupKind::kSlidingWindow,
                             .span_tokens = i,
                             .hash_block_tokens = 16});
  }
  return record;
}

TEST(Tables, SectionsLieApartAndHoldWhatTheyMust) {
  const TablesLayout layout(kShape);
  EXPECT_GE(layout.slots.offset, kTablesAlign);
  EXPECT_EQ(layout.slots.bytes, 100 * kSlotRecordBytes);
  EXPECT_GE(layout.namespaces.offset, layout.slots.offset + layout.slots.bytes);
  EXPECT_GE(layout.sessions.offset, layout.namespaces.offset + layout.namespaces.bytes);
  EXPECT_EQ(layout.sessions.bytes, 5 * (64 + 16));
  EXPECT_GE(layout.total_bytes, layout.sessions.offset + layout.sessions.bytes);
  for (const std::uint64_t offset : {layout.namespaces.offset, layout.sessions.offset, layout.total_bytes}) {
    EXPECT_EQ(offset % kTablesAlign, 0U);
  }
}

TEST(Tables, HeaderComesBackAndLivesAreCounted) {
  RecordingTable table = Fresh();
  const auto header = LoadTablesHeader(table.bytes());
  ASSERT_TRUE(header);
  EXPECT_EQ(header->shape, kShape);
  EXPECT_EQ(header->pool_id_hi, 7U);
  EXPECT_EQ(header->pool_id_lo, 9U);
  EXPECT_EQ(header->lives, 0U);
  EXPECT_EQ(BeginLife(table).value(), 1U);
  EXPECT_EQ(BeginLife(table).value(), 2U);
  EXPECT_EQ(LoadTablesHeader(table.bytes())->lives, 2U);
  EXPECT_GT(FirstGeneration(2), FirstGeneration(1) + (std::uint64_t{1} << 43U));
}

TEST(Tables, ReservedBytesAreOneStore) {
  RecordingTable table = Fresh();
  EXPECT_EQ(LoadReservedBytes(table.bytes()), 0U);
  table.ForEachStop([](const auto&) {});
  ASSERT_TRUE(StoreReservedBytes(table, 12345));
  EXPECT_EQ(table.stores(), 1U);
  EXPECT_EQ(LoadReservedBytes(table.bytes()), 12345U);
  EXPECT_TRUE(LoadTablesHeader(table.bytes()));
}

TEST(Tables, AnUnfinishedHeaderIsNone) {
  RecordingTable table = Fresh();
  std::size_t stops = 0;
  bool valid = false;
  table.ForEachStop([&](const std::vector<std::uint64_t>& memory) {
    EXPECT_FALSE(valid) << "only the last store makes it one";
    valid = LoadTablesHeader(std::as_bytes(std::span(memory))).has_value();
    ++stops;
  });
  EXPECT_TRUE(valid);
  EXPECT_GT(stops, 8U);
}

TEST(Tables, EveryFlippedBitOfTheHeaderIsSeen) {
  RecordingTable table = Fresh();
  for (std::size_t bit = 0; bit < 80 * 8; ++bit) {
    table.words()[bit / 64] ^= std::uint64_t{1} << bit % 64;
    EXPECT_FALSE(LoadTablesHeader(table.bytes())) << "bit " << bit;
    table.words()[bit / 64] ^= std::uint64_t{1} << bit % 64;
  }
  EXPECT_TRUE(LoadTablesHeader(table.bytes()));
  EXPECT_EQ(LoadTablesHeader(table.bytes().first(100)).error().code, Code::kInvalid);
}

TEST(Tables, WhatDiffersIsSaid) {
  RecordingTable table = Fresh();
  const auto header = LoadTablesHeader(table.bytes()).value();
  EXPECT_TRUE(CheckTables(header, kShape));
  const auto refused = [&](auto change, std::uint64_t then, std::uint64_t now, const std::string& word) {
    TablesShape wanted = kShape;
    change(wanted);
    const Status status = CheckTables(header, wanted);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kRefused);
    EXPECT_EQ(status.error().a, then);
    EXPECT_EQ(status.error().b, now);
    EXPECT_NE(std::string(status.error().text).find(word), std::string::npos) << status.error().text;
  };
  refused([](TablesShape& s) { s.pool_bytes = 5; }, kShape.pool_bytes, 5, "size");
  refused([](TablesShape& s) { s.unit_bytes = 6; }, kShape.unit_bytes, 6, "units");
  refused([](TablesShape& s) { s.max_slots = 7; }, 100, 7, "max_slots");
  refused([](TablesShape& s) { s.namespace_rows = 8; }, 3, 8, "namespaces");
  refused([](TablesShape& s) { s.session_rows = 9; }, 5, 9, "max_sessions");
  table.words()[1] += 1;  // the format
  EXPECT_EQ(LoadTablesHeader(table.bytes()).error().code, Code::kRefused);
}

TEST(NamespaceTable, RecordsComeBackUnderTheirRows) {
  RecordingTable table(3 * kNamespaceRecordBytes);
  ASSERT_TRUE(StoreNamespace(table, NamespaceRow(1), Sample(1, 1)));
  ASSERT_TRUE(StoreNamespace(table, NamespaceRow(3), Sample(3, kMaxNamespaceGroups)));
  EXPECT_EQ(LoadNamespace(table.bytes(), NamespaceRow(1)).value(), Sample(1, 1));
  EXPECT_EQ(LoadNamespace(table.bytes(), NamespaceRow(2)).value(), std::nullopt);
  EXPECT_EQ(LoadNamespace(table.bytes(), NamespaceRow(3)).value(), Sample(3, kMaxNamespaceGroups));
  ASSERT_TRUE(ClearNamespace(table, NamespaceRow(1)));
  EXPECT_EQ(LoadNamespace(table.bytes(), NamespaceRow(1)).value(), std::nullopt);
  for (const std::uint32_t row : {0U, 4U}) {
    EXPECT_EQ(LoadNamespace(table.bytes(), NamespaceRow(row)).error().code, Code::kInvalid);
    EXPECT_EQ(StoreNamespace(table, NamespaceRow(row), Sample(1, 1)).error().code, Code::kInvalid);
    EXPECT_EQ(ClearNamespace(table, NamespaceRow(row)).error().code, Code::kInvalid);
  }
  EXPECT_FALSE(StoreNamespace(table, NamespaceRow(1), Sample(1, kMaxNamespaceGroups + 1)));
  EXPECT_FALSE(StoreNamespace(table, NamespaceRow(1), Sample(1, 0)));
}

TEST(NamespaceTable, EveryStopIsTheOldOneNoneOrTheNewOne) {
  RecordingTable table(kNamespaceRecordBytes);
  ASSERT_TRUE(StoreNamespace(table, NamespaceRow(1), Sample(1, 2)));
  table.ForEachStop([](const auto&) {});
  ASSERT_TRUE(ClearNamespace(table, NamespaceRow(1)));
  ASSERT_TRUE(StoreNamespace(table, NamespaceRow(1), Sample(2, 3)));
  const std::size_t stores = table.stores();
  std::size_t stop = 0;
  table.ForEachStop([&](const std::vector<std::uint64_t>& memory) {
    const auto seen = LoadNamespace(std::as_bytes(std::span(memory)), NamespaceRow(1));
    ASSERT_TRUE(seen) << stop;
    const auto expected = stop == 0        ? std::optional(Sample(1, 2))
                          : stop == stores ? std::optional(Sample(2, 3))
                                           : std::nullopt;
    EXPECT_EQ(*seen, expected) << stop;
    ++stop;
  });
}

TEST(NamespaceTable, EveryFlippedBitIsSeen) {
  RecordingTable table(kNamespaceRecordBytes);
  ASSERT_TRUE(StoreNamespace(table, NamespaceRow(1), Sample(4, kMaxNamespaceGroups)));
  for (std::size_t bit = 0; bit < kNamespaceRecordBytes * 8; ++bit) {
    table.words()[bit / 64] ^= std::uint64_t{1} << bit % 64;
    EXPECT_FALSE(LoadNamespace(table.bytes(), NamespaceRow(1))) << "bit " << bit;
    table.words()[bit / 64] ^= std::uint64_t{1} << bit % 64;
  }
}

}  // namespace
}  // namespace orbitkv::wire
