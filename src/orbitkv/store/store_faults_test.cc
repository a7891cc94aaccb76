// What a device may do to a store, and what a store makes of a file that it finds.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/store/backoff.h"
#include "orbitkv/store/layout.h"
#include "orbitkv/store/store.h"
#include "orbitkv/testing/effort.h"
#include "orbitkv/testing/store_world.h"

namespace orbitkv::store {
namespace {

using orbite::OperationKind;
using testing::Fault;
using testing::StoreWorld;
using Loaded = testing::StoreWorld::Loaded;
using Result = LogEnd::Result;

constexpr std::uint64_t kSecondNs = 1'000'000'000;

TEST(StoreFaults, AReadThatFailsIsAMissAndTheRestGoesOn) {
  for (const Fault fault : {Fault::kIoError, Fault::kShort, Fault::kFlip}) {
    StoreWorld world({});
    ASSERT_TRUE(world.Open());
    for (std::uint64_t block = 0; block < 4; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
    bool failed = false;
    world.faults().set_fault([&](const orbite::Operation& operation) {
      if (operation.kind != OperationKind::kRead || failed) return Fault::kNone;
      failed = true;
      return fault;
    });
    EXPECT_EQ(world.Load(1), Loaded::kFailed);
    EXPECT_FALSE(world.Has(1));
    EXPECT_EQ(world.Load(2), Loaded::kRight);
    const LogCounters counters = world.store().counters();
    EXPECT_EQ(counters.loads_failed, 1U);
    EXPECT_EQ(counters.loads_wrong + counters.read_errors, 1U);
    EXPECT_TRUE(world.store().log().last_error().has_value());
    // It is written anew, and served again.
    EXPECT_EQ(world.Save(1), Result::kOk);
    EXPECT_EQ(world.Load(1), Loaded::kRight);
  }
}

TEST(StoreFaults, WritesThatFailCostTheirRecordsAndAPause) {
  for (const Fault fault : {Fault::kIoError, Fault::kNoSpace, Fault::kReadOnly, Fault::kShort, Fault::kGone}) {
    StoreWorld world({});
    ASSERT_TRUE(world.Open());
    ASSERT_EQ(world.Save(0), Result::kOk);
    world.faults().set_fault([&](const orbite::Operation& operation) {
      return operation.kind == OperationKind::kWrite ? fault : Fault::kNone;
    });
    EXPECT_EQ(world.Save(1), Result::kFailed);
    EXPECT_FALSE(world.Has(1));
    EXPECT_FALSE(world.store().gauges().writable);
    EXPECT_EQ(world.Load(0), Loaded::kRight);
    world.faults().set_fault({});
    EXPECT_EQ(world.Save(1), Result::kFailed) << "the pause is not over";
    world.now_ns() += Backoff::kFirstNs;
    EXPECT_EQ(world.Save(1), Result::kOk);
    EXPECT_EQ(world.Load(1), Loaded::kRight);
    EXPECT_EQ(world.store().counters().write_errors, 1U);
    const auto segment_of = [&](std::uint64_t block) {
      return world.store().index().Find(world.KeyOf(block))->location.segment;
    };
    EXPECT_NE(segment_of(0), segment_of(1)) << "nothing is written behind a place that failed";
    ASSERT_TRUE(world.Open());
    EXPECT_EQ(world.Load(0), Loaded::kRight);
    EXPECT_EQ(world.Load(1), Loaded::kRight);
  }
}

// A device that returns another place than it was asked for: right in itself, but not what was asked for.
TEST(StoreFaults, ARecordInThePlaceOfAnotherIsNotServed) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 2; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  const auto place_of = [&](std::uint64_t block) {
    const Location location = world.store().index().Find(world.KeyOf(block))->location;
    const std::uint64_t at = SegmentOffset(world.store().superblock(), location.segment);
    return world.disk().bytes().subspan(at + location.sector * kSectorBytes, world.record_bytes());
  };
  std::ranges::copy(place_of(0), place_of(1).begin());
  EXPECT_EQ(world.Load(1), Loaded::kFailed);
  EXPECT_EQ(world.store().counters().loads_wrong, 1U);
  EXPECT_EQ(world.Load(0), Loaded::kRight);
}

TEST(StoreFaults, ATornWriteThatClaimsSuccessIsSeenWhenItIsRead) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  world.faults().set_fault([](const orbite::Operation& operation) {
    return operation.kind == OperationKind::kWrite ? Fault::kTorn : Fault::kNone;
  });
  for (std::uint32_t block = 0; block < 6; ++block) world.BeginSave(block, block);
  world.Run();
  world.faults().set_fault({});
  std::size_t right = 0;
  for (std::uint64_t block = 0; block < 6; ++block) {
    const Loaded loaded = world.Load(block);
    EXPECT_NE(loaded, Loaded::kWrongBytes);
    right += loaded == Loaded::kRight ? 1 : 0;
  }
  EXPECT_LT(right, 6U);
  EXPECT_GT(world.store().counters().loads_wrong, 0U);
}

// The segment's header is on its way for longest: what lies behind it counts once the header is written, and never when
// that fails, as no restart would find it.
TEST(StoreFaults, RecordsEndWithTheHeaderOfTheirSegment) {
  for (const Fault fault : {Fault::kNone, Fault::kIoError}) {
    // A write takes the header alone.
    StoreWorld world({.write_bytes = 4096, .page_count = 2, .page_bytes = 3000});
    ASSERT_TRUE(world.Open());
    int writes = 0;
    world.faults().set_fault([&](const orbite::Operation& operation) {
      return operation.kind == OperationKind::kWrite && ++writes == 1 ? Fault::kHold : Fault::kNone;
    });
    world.BeginSave(1, 1);
    world.Run();
    EXPECT_FALSE(world.TakeEnd(1)) << "written, but for the header";
    EXPECT_FALSE(world.Has(1));
    world.faults().ReleaseHeld(fault);
    world.Run();
    const bool whole = fault == Fault::kNone;
    EXPECT_EQ(world.TakeEnd(1)->result, whole ? Result::kOk : Result::kFailed);
    EXPECT_EQ(world.Has(1), whole);
    ASSERT_TRUE(world.Open());
    EXPECT_EQ(world.Has(1), whole);
  }
}

// A write in the middle fails: the record behind the torn one begins somewhere in the next write.
TEST(StoreFaults, RecordsBehindAHoleAreFoundByARestart) {
  StoreWorld world({.write_bytes = 4096, .page_count = 2, .page_bytes = 1500});
  ASSERT_TRUE(world.Open());
  int writes = 0;
  world.faults().set_fault([&](const orbite::Operation& operation) {
    if (operation.kind != OperationKind::kWrite) return Fault::kNone;
    ++writes;
    return writes == 2 ? Fault::kIoError : Fault::kHold;
  });
  for (std::uint32_t block = 0; block < 4; ++block) world.BeginSave(block, block);
  world.Run();
  world.faults().set_fault({});
  world.faults().ReleaseHeld();
  world.Run();
  std::set<std::uint64_t> here;
  for (std::uint64_t block = 0; block < 4; ++block) {
    if (world.Has(block)) here.insert(block);
  }
  ASSERT_FALSE(here.empty());
  ASSERT_LT(here.size(), 4U);
  ASSERT_TRUE(world.Open());
  for (const std::uint64_t block : here) EXPECT_EQ(world.Load(block), Loaded::kRight) << block;
}

// The power goes when a segment is sealed and nothing of it but its header was kept back: the next life begins the same
// segment, and must not take the old summary for its own.
TEST(StoreFaults, ASummaryOfAnEarlierLifeIsNotBelieved) {
  StoreWorld world({.segments = 4});
  ASSERT_TRUE(world.Open());
  const std::uint64_t segment_bytes = world.shape().segment_bytes;
  std::uint64_t count = 0;
  while (world.store().gauges().free_segments > 2) ASSERT_EQ(world.Save(count++), Result::kOk);
  const auto header = world.disk().bytes().subspan(wire::kStoreBlockBytes, wire::kStoreBlockBytes);
  world.Close();
  std::ranges::fill(header, std::byte{0});
  std::ranges::fill(world.disk().bytes().subspan(wire::kStoreBlockBytes + segment_bytes, segment_bytes), std::byte{0});
  ASSERT_TRUE(world.Open());
  ASSERT_EQ(world.store().gauges().records, 0U);
  for (const std::uint64_t block : {500, 501, 502}) ASSERT_EQ(world.Save(block), Result::kOk);
  ASSERT_TRUE(world.Open());
  for (const std::uint64_t block : {500, 501, 502}) EXPECT_EQ(world.Load(block), Loaded::kRight) << block;
}

TEST(StoreFaults, ADeviceThatIsGoneIsTriedAgainLaterAndLater) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 8; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  std::size_t asked = 0;
  world.faults().set_fault([&](const orbite::Operation&) {
    ++asked;
    return Fault::kGone;
  });
  EXPECT_EQ(world.Load(0), Loaded::kFailed);
  EXPECT_EQ(asked, 1U);
  for (std::uint64_t block = 0; block < 8; ++block) EXPECT_EQ(world.Load(block), Loaded::kMissing);
  EXPECT_EQ(asked, 1U);
  EXPECT_FALSE(world.store().gauges().readable);
  world.now_ns() += Backoff::kFirstNs;
  world.Step();
  EXPECT_EQ(world.Load(1), Loaded::kFailed);
  world.now_ns() += Backoff::kFirstNs;
  world.Step();
  EXPECT_FALSE(world.Has(2)) << "the second pause is longer";
  world.faults().set_fault({});
  world.now_ns() += Backoff::kFirstNs;
  world.Step();
  for (std::uint64_t block = 2; block < 8; ++block) EXPECT_EQ(world.Load(block), Loaded::kRight);
  EXPECT_EQ(world.store().counters().pauses, 2U);
}

TEST(StoreFaults, WhatTakesTooLongPausesAndEndsWhenItIsDrained) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  ASSERT_EQ(world.Save(0), Result::kOk);
  ASSERT_EQ(world.Save(1), Result::kOk);
  world.faults().set_fault([](const orbite::Operation&) { return Fault::kHold; });
  world.BeginLoad(0, 0);
  world.Step();
  world.now_ns() += world.config().log.deadline_ns;
  world.Step();
  EXPECT_EQ(world.store().counters().slow, 1U);
  EXPECT_FALSE(world.Has(1)) << "a device that hangs answers nothing";
  EXPECT_FALSE(world.store().log().idle());
  EXPECT_EQ(world.store().counters().loads_failed, 0U) << "its slot may still be written";
  world.faults().set_fault({});
  world.faults().ReleaseHeld();
  world.Run();
  EXPECT_EQ(world.store().counters().loads_failed, 1U);
  world.now_ns() += 2 * Backoff::kFirstNs;
  world.Step();
  EXPECT_EQ(world.Load(1), Loaded::kRight);
}

// Any bit of the file may be wrong: never a wrong byte, whether it was so at the start or changes later.
TEST(StoreFaults, FlippedBitsOnTheDeviceAreNeverServed) {
  const std::uint64_t rounds = testing::Effort(300, 5000);
  StoreWorld fresh({.segment_bytes = 32 * 1024});
  ASSERT_TRUE(fresh.Open());
  for (std::uint64_t block = 0; block < 20; ++block) ASSERT_EQ(fresh.Save(block), Result::kOk);
  fresh.Close();
  const std::vector<std::byte> image(fresh.disk().bytes().begin(), fresh.disk().bytes().end());
  Prng prng(testing::Seed(3));
  std::uint64_t refused = 0;
  std::uint64_t right = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::ranges::copy(image, fresh.disk().bytes().begin());
    const std::uint64_t flips = 1 + prng.Below(30);
    const bool late = prng.Below(2) == 0;
    ASSERT_TRUE(!late || fresh.Open());
    for (std::uint64_t i = 0; i < flips; ++i) {
      // The superblock is one sector of many: hit on purpose now and then, else it would be rarely.
      const std::uint64_t at = prng.Below(50) == 0 ? prng.Below(64) : prng.Below(image.size());
      fresh.disk().bytes()[at] ^= static_cast<std::byte>(1U << prng.Below(8));
    }
    if (!late && !fresh.Open()) {
      ++refused;
      continue;
    }
    for (std::uint64_t block = 0; block < 20; ++block) {
      const Loaded loaded = fresh.Load(block);
      ASSERT_NE(loaded, Loaded::kWrongBytes) << round;
      right += loaded == Loaded::kRight ? 1 : 0;
    }
    fresh.Close();
  }
  EXPECT_GT(refused, 0U);
  EXPECT_GT(right, 10 * rounds);
}

// Saves and loads while operations go wrong at random: what was acknowledged is right or missing, and when the faults
// end everything works again.
TEST(StoreFaults, RandomFaultsNeverGiveAWrongByte) {
  for (std::uint64_t seed = 1; seed <= testing::Effort(20, 400); ++seed) {
    StoreWorld world({.segments = 5});
    ASSERT_TRUE(world.Open());
    Prng prng(seed);
    const auto arm = [&] {
      world.faults().set_fault([&](const orbite::Operation&) {
        return prng.Below(20) == 0 ? static_cast<Fault>(prng.Below(8)) : Fault::kNone;
      });
    };
    arm();
    for (int step = 0; step < 300; ++step) {
      const std::uint64_t block = prng.Below(120);
      if (prng.Below(2) == 0) {
        static_cast<void>(world.Save(block));
      } else {
        ASSERT_NE(world.Load(block), Loaded::kWrongBytes) << seed;
      }
      world.now_ns() += prng.Below(3) * kSecondNs;
      if (prng.Below(60) == 0) {
        ASSERT_TRUE(world.Open());
        arm();
      }
    }
    world.faults().set_fault({});
    world.now_ns() += Backoff::kLongestNs;
    for (std::uint64_t block = 200; block < 220; ++block) {
      ASSERT_EQ(world.Save(block), Result::kOk) << seed;
      ASSERT_EQ(world.Load(block), Loaded::kRight) << seed;
    }
  }
}

// --- Refusals
// -----------------------------------------------------------------------------------------------------------

TEST(StoreOpen, RefusesWhatIsNotItsOwn) {
  StoreWorld world({});
  world.disk().bytes()[100] = std::byte{1};
  EXPECT_EQ(world.Open().error().code, Code::kInvalid);
  world.disk().bytes()[100] = std::byte{0};
  ASSERT_TRUE(world.Open());
  world.Close();

  wire::Superblock superblock;
  std::memcpy(&superblock, world.disk().bytes().data(), sizeof superblock);
  wire::Superblock changed = superblock;
  changed.version = wire::kStoreVersion + 1;
  wire::Seal(changed);
  std::memcpy(world.disk().bytes().data(), &changed, sizeof changed);
  EXPECT_EQ(world.Open().error().code, Code::kUnsupported);
  std::memcpy(world.disk().bytes().data(), &superblock, sizeof superblock);
  world.config().file_bytes -= world.shape().segment_bytes;
  EXPECT_EQ(world.Open().error().code, Code::kRefused);
  EXPECT_EQ(world.Open().error().a, superblock.file_bytes);
  world.config().file_bytes += world.shape().segment_bytes;
  EXPECT_TRUE(world.Open());

  StoreWorld small({.segments = 3});
  EXPECT_EQ(small.Open().error().code, Code::kInvalid);
}

TEST(StoreOpen, ASegmentThatLostItsHeaderCostsItselfOnly) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 60; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  world.Close();
  const auto bytes = world.disk().bytes();
  std::ranges::fill(bytes.subspan(wire::kStoreBlockBytes, 512), std::byte{0});
  ASSERT_TRUE(world.Open());
  std::size_t right = 0;
  for (std::uint64_t block = 0; block < 60; ++block) right += world.Load(block) == Loaded::kRight ? 1 : 0;
  EXPECT_LT(right, 60U);
  EXPECT_GT(right, 20U);
}

TEST(StoreOpen, DamagedSummariesAreReadFromTheRecords) {
  StoreWorld world({});
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < 60; ++block) ASSERT_EQ(world.Save(block), Result::kOk);
  world.Close();
  for (std::uint32_t segment = 0; segment < world.shape().segments; ++segment) {
    const std::uint64_t end = wire::kStoreBlockBytes + (segment + 1) * world.shape().segment_bytes;
    world.disk().bytes()[end - wire::kStoreBlockBytes - 4096 + 200] ^= std::byte{1};
  }
  ASSERT_TRUE(world.Open());
  EXPECT_GT(world.store().recovered().damaged_summaries, 0U);
  EXPECT_EQ(world.store().recovered().records, 60U);
  for (std::uint64_t block = 0; block < 60; ++block) EXPECT_EQ(world.Load(block), Loaded::kRight);
}

}  // namespace
}  // namespace orbitkv::store
