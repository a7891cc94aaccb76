#include "orbitkv/store/store.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/store/backoff.h"
#include "orbitkv/testing/store_world.h"

namespace orbitkv::store {
namespace {

using orbite::OperationKind;
using testing::Fault;
using testing::StoreWorld;
using Loaded = testing::StoreWorld::Loaded;
using Result = LogEnd::Result;

TEST(Store, KeepsBlocksAndTheirFacts) {
  for (const std::uint32_t align : {512U, 4096U}) {
    StoreWorld world({.align = align});
    ASSERT_TRUE(world.Open());
    EXPECT_TRUE(world.store().recovered().formatted);
    for (std::uint64_t block = 0; block < 20; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
    for (std::uint64_t block = 0; block < 20; ++block) {
      EXPECT_EQ(world.Load(block), Loaded::kRight) << block;
      const auto facts = world.store().Locate(world.KeyOf(block));
      EXPECT_EQ(facts->parent, world.FactsOf(block).parent);
      EXPECT_EQ(facts->depth, world.FactsOf(block).depth);
      EXPECT_EQ(facts->checksum, world.FactsOf(block).checksum);
    }
    EXPECT_FALSE(world.Has(20));
    const LogCounters counters = world.store().counters();
    EXPECT_EQ(counters.saves, 20U);
    EXPECT_EQ(counters.loads, 20U);
    EXPECT_GE(counters.written_bytes, 20 * world.record_bytes());
  }
}

TEST(Store, WritesNothingBeyondTheSlot) {
  StoreWorld world({.align = 4096});
  ASSERT_TRUE(world.Open());
  ASSERT_EQ(world.Save(1), Result::kOk);
  std::ranges::fill(world.Slot(2), std::byte{0x77});
  EXPECT_EQ(world.Load(1), Loaded::kRight);
  for (const std::byte byte : world.Slot(2)) ASSERT_EQ(byte, std::byte{0x77});
}

TEST(Store, SavingWhatItHasWritesNothing) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  ASSERT_EQ(world.Save(1), Result::kOk);
  const std::uint64_t before = world.store().counters().written_bytes;
  EXPECT_EQ(world.Save(1), Result::kOk);
  EXPECT_EQ(world.store().counters().written_bytes, before);
}

TEST(Store, SmallRecordsShareWrites) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  std::size_t writes = 0;
  world.faults().set_fault([&](const orbite::Operation& operation) {
    if (operation.kind == OperationKind::kWrite) ++writes;
    return Fault::kNone;
  });
  for (std::uint32_t block = 0; block < 20; ++block) world.BeginSave(block, block);
  world.Step();
  // Those that fill a buffer go out; the rest waits for its time.
  const std::uint64_t bytes = wire::kStoreBlockBytes + 20 * world.record_bytes();
  EXPECT_EQ(writes, bytes / world.shape().write_bytes);
  EXPECT_FALSE(world.Has(19));
  world.now_ns() += world.config().log.flush_after_ns;
  world.Step();
  world.Step();
  EXPECT_EQ(writes, bytes / world.shape().write_bytes + 1);
  EXPECT_TRUE(world.Has(19));
}

TEST(Store, RecordsLargerThanAllBuffersAreKept) {
  StoreWorld world({.segment_bytes = 1 << 20, .segments = 4, .page_count = 3, .page_bytes = 100'000});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 5; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  for (std::uint64_t block = 0; block < 5; ++block) EXPECT_EQ(world.Load(block), Loaded::kRight);
  StoreWorld tight({.segments = 4, .page_count = 3, .page_bytes = 100'000});
  ASSERT_TRUE(tight.Open());
  EXPECT_EQ(tight.Save(1), Result::kNoRoom);
}

TEST(Store, AnotherLifeFindsEverything) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 60; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  ASSERT_TRUE(world.Open());
  const RecoveryReport& report = world.store().recovered();
  EXPECT_FALSE(report.formatted);
  EXPECT_EQ(report.records, 60U);
  EXPECT_GT(report.sealed_segments, 0U);
  EXPECT_EQ(report.scanned_segments, 1U);
  for (std::uint64_t block = 0; block < 60; ++block) {
    EXPECT_EQ(world.Load(block), Loaded::kRight) << block;
    EXPECT_EQ(world.store().Locate(world.KeyOf(block))->parent, world.FactsOf(block).parent);
  }
  // What was scanned is sealed now.
  ASSERT_TRUE(world.Open());
  EXPECT_EQ(world.store().recovered().scanned_segments, 0U);
  EXPECT_EQ(world.store().recovered().records, 60U);
  EXPECT_EQ(world.Save(100), Result::kOk);
  EXPECT_EQ(world.Load(100), Loaded::kRight);
}

TEST(Store, GivesUpTheOldestAndKeepsWhatIsRead) {
  StoreWorld world({.segments = 5});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 300; ++block) {
    ASSERT_EQ(world.Save(block), Result::kOk) << block;
    ASSERT_EQ(world.Load(block), Loaded::kRight) << block;
    // Block 3 is asked for again and again; the others are read once, right after they were written.
    ASSERT_EQ(world.Load(3), block >= 3 ? Loaded::kRight : Loaded::kMissing) << block;
  }
  EXPECT_GT(world.store().counters().evicted_segments, 5U);
  EXPECT_GT(world.store().counters().reinserted, 0U);
  EXPECT_FALSE(world.Has(0));
  EXPECT_TRUE(world.Has(299));
  std::size_t kept = 0;
  for (std::uint64_t block = 0; block < 300; ++block) kept += world.Has(block) ? 1 : 0;
  EXPECT_LE(kept * world.record_bytes(), world.disk().size());
  EXPECT_GE(kept * world.record_bytes(), world.disk().size() / 4);
}

TEST(Store, ColdRecordsAreNotWrittenAgain) {
  StoreWorld world({.segments = 5});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 300; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  const LogCounters counters = world.store().counters();
  EXPECT_EQ(counters.reinserted, 0U);
  EXPECT_GT(counters.evicted_records, 100U);
}

TEST(Store, SaysWhatItHasLostAndWhatItKeeps) {
  StoreWorld world({.segments = 5});
  ASSERT_TRUE(world.Open());
  ASSERT_EQ(world.Save(1), Result::kOk);
  ASSERT_EQ(world.Save(2), Result::kOk);
  EXPECT_EQ(world.store().losses(), 0U);
  world.faults().set_fault([](const orbite::Operation& operation) {
    return operation.kind == OperationKind::kRead ? Fault::kGone : Fault::kNone;
  });
  EXPECT_EQ(world.Load(1), Loaded::kFailed);
  EXPECT_FALSE(world.store().gauges().readable);
  EXPECT_FALSE(world.Has(2));
  EXPECT_TRUE(world.store().Kept(world.KeyOf(2))) << "the device may come back";
  EXPECT_FALSE(world.store().Kept(world.KeyOf(1)));
  EXPECT_EQ(world.store().losses(), 1U);
  world.faults().set_fault({});
  for (std::uint64_t block = 100; block < 400; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  EXPECT_FALSE(world.store().Kept(world.KeyOf(2)));
  const LogCounters counters = world.store().counters();
  EXPECT_EQ(world.store().losses(), counters.evicted_records + counters.forgotten_records);
}

// A segment that is given up has its records until it is begun again, and a restart may as well serve them. It is the
// oldest then and goes first, which costs nothing: what was hot in it lies further on by now. The next one goes because
// the segment that was open is full, as a restart leaves it.
TEST(Store, WhatWasGivenUpServesAfterARestartUntilItsRoomIsNeeded) {
  StoreWorld world({.segments = 5});
  ASSERT_TRUE(world.Open());
  std::uint64_t count = 0;
  while (world.store().counters().evicted_segments == 0 && count < 1000) {
    ASSERT_EQ(world.Save(count), Result::kOk);
    if (count == 3) {
      ASSERT_EQ(world.Load(3), Loaded::kRight);
    }
    ++count;
  }
  ASSERT_EQ(world.store().gauges().free_segments, 1U);
  EXPECT_EQ(world.store().counters().reinserted, 1U);
  std::set<std::uint64_t> kept;
  for (std::uint64_t block = 0; block < count; ++block) {
    if (world.Has(block)) kept.insert(block);
  }
  EXPECT_FALSE(kept.contains(0));
  EXPECT_TRUE(kept.contains(3));
  ASSERT_TRUE(world.Open());
  EXPECT_EQ(world.store().gauges().free_segments, 0U);
  EXPECT_EQ(world.store().gauges().records, count);
  EXPECT_TRUE(world.Has(0));
  ASSERT_EQ(world.Save(1000), Result::kOk);
  EXPECT_EQ(world.store().counters().evicted_segments, 2U);
  EXPECT_EQ(world.store().counters().reinserted, 0U);
  EXPECT_FALSE(world.Has(0));
  EXPECT_TRUE(world.Has(3));
  const auto lost = std::ranges::count_if(kept, [&](std::uint64_t block) { return !world.Has(block); });
  EXPECT_LE(static_cast<std::uint64_t>(lost), world.shape().segment_bytes / world.record_bytes());
}

// The index says what recovery finds, but for records of segments that are free and not written again yet.
TEST(Store, RecoveryFindsWhatTheIndexHas) {
  StoreWorld world({.segments = 5});
  ASSERT_TRUE(world.Open());
  Prng prng(5);
  for (int step = 0; step < 400; ++step) {
    const std::uint64_t block = prng.Below(200);
    if (prng.Below(3) == 0) {
      static_cast<void>(world.Load(block));
    } else {
      ASSERT_EQ(world.Save(block), Result::kOk);
    }
    if (step % 40 != 39) continue;
    // Of a record that was written again the later place counts.
    std::map<std::uint64_t, Location> before;
    for (std::uint64_t known = 0; known < 200; ++known) {
      if (const auto found = world.store().index().Find(world.KeyOf(known))) before[known] = found->location;
    }
    ASSERT_TRUE(world.Open());
    for (const auto& [known, location] : before) {
      ASSERT_TRUE(world.Has(known)) << known;
      ASSERT_EQ(world.store().index().Find(world.KeyOf(known))->location, location) << known;
    }
    for (std::uint64_t known = 0; known < 200; ++known) {
      ASSERT_NE(world.Load(known), Loaded::kWrongBytes);
      if (!before.contains(known)) continue;
      ASSERT_EQ(world.Load(known), Loaded::kRight);
    }
  }
}

// Two saves of one key whose writes end in another order than they lie in the log.
TEST(Store, TheLaterRecordOfAKeyCountsWhicheverIsWrittenFirst) {
  StoreWorld world({.write_bytes = 4096, .page_count = 2, .page_bytes = 3000});
  ASSERT_TRUE(world.Open());
  int writes = 0;
  world.faults().set_fault([&](const orbite::Operation& operation) {
    // The first one is the segment's header.
    return operation.kind == OperationKind::kWrite && ++writes == 2 ? Fault::kHold : Fault::kNone;
  });
  world.BeginSave(1, 1);
  world.BeginSave(1, 2, 7);
  world.Run();
  EXPECT_EQ(world.store().Locate(world.KeyOf(1))->checksum, world.FactsOf(1, 7).checksum);
  world.faults().ReleaseHeld();
  world.Run();
  ASSERT_EQ(world.TakeEnd(1)->result, Result::kOk);
  EXPECT_EQ(world.store().Locate(world.KeyOf(1))->checksum, world.FactsOf(1, 7).checksum);
  ASSERT_TRUE(world.Open());
  EXPECT_EQ(world.store().Locate(world.KeyOf(1))->checksum, world.FactsOf(1, 7).checksum);
}

TEST(Store, LoadsGoBeforeWrites) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 12; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  std::size_t writing = 0;
  world.faults().set_fault([&](const orbite::Operation& operation) {
    if (operation.kind == OperationKind::kWrite) ++writing;
    return Fault::kHold;
  });
  // More loads than may run at once, so some of them wait while the saves come.
  for (std::uint32_t block = 0; block < 12; ++block) world.BeginLoad(block, block);
  for (std::uint32_t block = 20; block < 50; ++block) world.BeginSave(block, block);
  world.Step();
  EXPECT_EQ(writing, 1U);
  world.faults().set_fault({});
  world.faults().ReleaseHeld();
  world.Run();
  for (std::uint64_t block = 20; block < 50; ++block) EXPECT_EQ(world.Load(block), Loaded::kRight);
}

TEST(Store, SavesBeyondTheirBytesAreTurnedDown) {
  StoreWorld world({});
  world.config().log.save_bytes = 3 * 2048;
  ASSERT_TRUE(world.Open());
  for (std::uint32_t block = 0; block < 10; ++block) world.BeginSave(block, block);
  world.Run();
  EXPECT_EQ(world.store().counters().saves, 3U);
  EXPECT_EQ(world.store().counters().saves_no_room, 7U);
}

TEST(Store, AFullIndexTurnsSavesDown) {
  StoreWorld world({});
  world.config().max_records = 5;
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 5; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  EXPECT_EQ(world.Save(5), Result::kNoRoom);
  EXPECT_EQ(world.Load(4), Loaded::kRight);
  ASSERT_TRUE(world.Open());
  EXPECT_EQ(world.store().index().size(), 5U);
}

TEST(Backoff, PausesGrowAndASuccessEndsThem) {
  Backoff backoff;
  EXPECT_FALSE(backoff.Failed(10, false));
  EXPECT_FALSE(backoff.Failed(10, false));
  EXPECT_TRUE(backoff.Failed(10, false));
  EXPECT_TRUE(backoff.Pausing(9 + Backoff::kFirstNs));
  EXPECT_FALSE(backoff.Pausing(10 + Backoff::kFirstNs));
  EXPECT_TRUE(backoff.Failed(10 + Backoff::kFirstNs, false));
  EXPECT_TRUE(backoff.Pausing(9 + 3 * Backoff::kFirstNs));
  backoff.Succeeded(10 + 3 * Backoff::kFirstNs);
  EXPECT_FALSE(backoff.Failed(20 + 3 * Backoff::kFirstNs, false));
}

}  // namespace
}  // namespace orbitkv::store
