#include "orbitkv/pool/session_lists.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/wire/test_tables.h"

namespace orbitkv::pool {
namespace {

constexpr std::uint32_t kRows = 4;
constexpr std::uint32_t kSlots = 130;

struct Lists {
  Lists() : table(kRows * wire::SessionRowBytes(kSlots)), lists(table, kRows, kSlots) {}
  wire::RecordingTable table;
  SessionLists lists;
};

SessionOwner Owner(std::uint64_t token) {
  return {.incarnation = {1, 2}, .token = token, .pid = 77, .watched = token % 2 == 0};
}

using Content = std::map<std::uint32_t, std::pair<std::uint64_t, std::set<std::uint32_t>>>;  // row: token and slots

Content ContentOf(std::vector<std::uint64_t> memory) {
  wire::SpanTable table(std::as_writable_bytes(std::span(memory)));
  Content content;
  for (const auto& earlier : SessionLists(table, kRows, kSlots).Load()) {
    auto& [token, slots] = content[earlier.row];
    token = earlier.owner.token;
    EXPECT_EQ(earlier.owner, Owner(token));
    for (const SlotIndex slot : earlier.slots) slots.insert(slot.value());
  }
  return content;
}

TEST(SessionLists, ASlotIsListedUntilItsLastReasonIsGone) {
  Lists l;
  ASSERT_TRUE(l.lists.Open(1, Owner(5)));
  EXPECT_EQ(l.lists.Open(1, Owner(6)).error().code, Code::kBusy);
  EXPECT_EQ(l.lists.Open(kRows, Owner(6)).error().code, Code::kInvalid);
  for (int i = 0; i < 3; ++i) l.lists.Add(1, SlotIndex(64));
  l.lists.Add(1, SlotIndex(1));
  l.lists.Add(1, SlotIndex(kSlots));
  for (int i = 0; i < 2; ++i) l.lists.Remove(1, SlotIndex(64));
  auto all = l.lists.Load();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].owner, Owner(5));
  EXPECT_EQ(all[0].slots, (std::vector{SlotIndex(1), SlotIndex(64), SlotIndex(kSlots)}));
  l.lists.Remove(1, SlotIndex(64));
  l.lists.Remove(1, SlotIndex(64));
  EXPECT_EQ(l.lists.Load()[0].slots, (std::vector{SlotIndex(1), SlotIndex(kSlots)}));
  l.lists.Close(1);
  EXPECT_TRUE(l.lists.Load().empty());
  ASSERT_TRUE(l.lists.Open(1, Owner(8)));
  EXPECT_TRUE(l.lists.Load()[0].slots.empty());
}

TEST(SessionLists, ADamagedRowIsASessionThatNobodyCanName) {
  Lists l;
  ASSERT_TRUE(l.lists.Open(2, Owner(5)));
  l.lists.Add(2, SlotIndex(9));
  const std::size_t first = 2 * wire::SessionRowBytes(kSlots) / 8;
  l.table.words()[first + 2] ^= 1;
  const auto all = l.lists.Load();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].owner.token, 0U);
  EXPECT_TRUE(all[0].owner.watched);
  EXPECT_EQ(all[0].slots, std::vector{SlotIndex(9)});
}

TEST(SessionLists, EveryStopIsBeforeOrAfterTheUpdate) {
  Lists l;
  Prng prng(11);
  Content now;
  std::uint64_t next_token = 1;
  for (int step = 0; step < 4000; ++step) {
    const Content before = now;
    const auto row = static_cast<std::uint32_t>(prng.Below(kRows));
    const auto open = now.find(row);
    if (open == now.end()) {
      ASSERT_TRUE(l.lists.Open(row, Owner(next_token)));
      now[row].first = next_token++;
    } else if (prng.Below(20) == 0) {
      l.lists.Close(row);
      now.erase(row);
    } else {
      const auto slot = static_cast<std::uint32_t>(prng.Below(kSlots) + 1);
      if (open->second.second.contains(slot)) {
        l.lists.Remove(row, SlotIndex(slot));
        open->second.second.erase(slot);
      } else {
        l.lists.Add(row, SlotIndex(slot));
        open->second.second.insert(slot);
      }
    }
    std::size_t stop = 0;
    const std::size_t stores = l.table.stores();
    l.table.ForEachStop([&](const std::vector<std::uint64_t>& memory) {
      const Content seen = ContentOf(memory);
      EXPECT_TRUE(seen == before || seen == now) << "step " << step << " stop " << stop;
      if (stop == stores) {
        EXPECT_TRUE(seen == now) << step;
      }
      ++stop;
    });
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

TEST(SessionLists, ANewLifeReadsWhatTheLastOneLeftAndOpensItsRowsAgain) {
  Lists l;
  ASSERT_TRUE(l.lists.Open(0, Owner(4)));
  l.lists.Add(0, SlotIndex(3));
  SessionLists next(l.table, kRows, kSlots);
  ASSERT_EQ(next.Load().size(), 1U);
  next.Close(0);
  EXPECT_TRUE(next.Load().empty());
  ASSERT_TRUE(next.Open(0, Owner(6)));
  EXPECT_TRUE(next.Load()[0].slots.empty()) << "nothing of the session before is left";
  // Also when the row was closed, but a stop kept its bits.
  next.Add(0, SlotIndex(5));
  const std::size_t words = wire::kSessionRowHeaderBytes / 8;
  l.table.words()[words - 1] = 0;
  SessionLists third(l.table, kRows, kSlots);
  EXPECT_TRUE(third.Load().empty());
  ASSERT_TRUE(third.Open(0, Owner(8)));
  EXPECT_TRUE(third.Load()[0].slots.empty());
}

TEST(SessionLists, WhatIsWrittenIsHeldFirstAndNoMoreThanTheBudget) {
  std::vector<std::uint64_t> memory(10 * wire::kSlotRecordBytes / 8);
  wire::SpanTable table(std::as_writable_bytes(std::span(memory)));
  const auto store = [&](std::uint32_t slot, wire::SlotState state) {
    wire::SlotRecord record;
    record.slot_bytes = 512;
    record.generation = slot;
    record.state = state;
    ASSERT_TRUE(wire::StoreSlotRecord(table, slot - 1, record));
  };
  for (const std::uint32_t slot : {1U, 2U, 3U}) store(slot, wire::SlotState::kSealed);
  store(4, wire::SlotState::kWriting);
  const SessionLists::Earlier one{
      .row = 0, .owner = {}, .slots = {SlotIndex(1), SlotIndex(2), SlotIndex(3), SlotIndex(4), SlotIndex(99)}};
  const SessionLists::Earlier other{.row = 1, .owner = {}, .slots = {SlotIndex(3)}};
  const SessionLists::Earlier both[] = {one, other};
  const auto held = SlotsToHold(both, table.bytes(), 10, 1100);
  ASSERT_EQ(held.size(), 11U);
  EXPECT_TRUE(held[4]);
  EXPECT_TRUE(held[1]);
  EXPECT_FALSE(held[2]) << "beyond the budget";
  EXPECT_TRUE(held[3]) << "the other session's";
}

}  // namespace
}  // namespace orbitkv::pool
