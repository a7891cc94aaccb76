// The power goes while a store writes: any subset of the sectors that were not synced may be there afterwards. Whatever
// it is, the next life serves right bytes or none.
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/store/layout.h"
#include "orbitkv/testing/effort.h"
#include "orbitkv/testing/store_world.h"

namespace orbitkv::store {
namespace {

using testing::StoreWorld;
using testing::VirtualDisk;
using Loaded = testing::StoreWorld::Loaded;
using Result = LogEnd::Result;

constexpr StoreWorld::Shape kSmall = {
    .segment_bytes = 32 * 1024, .segments = 4, .write_bytes = 8 * 1024, .page_count = 1, .page_bytes = 100};

// How many of the blocks are right with this disk; no other outcome than right or not there is allowed.
std::size_t Judge(StoreWorld& world, const VirtualDisk& disk, std::uint64_t blocks) {
  world.Close();
  world.disk() = disk;
  EXPECT_TRUE(world.Open());
  std::size_t right = 0;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const Loaded loaded = world.Load(block);
    EXPECT_NE(loaded, Loaded::kWrongBytes) << block;
    right += loaded == Loaded::kRight ? 1 : 0;
  }
  world.Close();
  return right;
}

void EverySubset(StoreWorld& world, const VirtualDisk& disk, std::uint64_t blocks, std::size_t most) {
  const std::size_t count = disk.unsynced().size();
  ASSERT_LE(count, most);
  std::size_t best = 0;
  for (std::uint64_t subset = 0; subset < (std::uint64_t{1} << count); ++subset) {
    VirtualDisk after = disk;
    after.PowerLoss([&](std::size_t write) { return (subset >> write & 1U) != 0; });
    const std::size_t right = Judge(world, after, blocks);
    best = std::max(best, right);
    if (::testing::Test::HasFailure()) FAIL() << "subset " << subset;
  }
  // All sectors are there in the last one: nothing may be missing then.
  EXPECT_EQ(best, blocks);
}

TEST(StorePower, EverySubsetOfAFirstSegment) {
  StoreWorld writer(kSmall);
  StoreWorld reader(kSmall);
  ASSERT_TRUE(writer.Open());
  for (std::uint64_t block = 0; block < 3; ++block) ASSERT_EQ(writer.Save(block), Result::kOk);
  EverySubset(reader, writer.disk(), 3, 10);
}

// The segment had records before, which the new ones are written over.
TEST(StorePower, EverySubsetOverOldRecords) {
  StoreWorld writer(kSmall);
  StoreWorld reader(kSmall);
  ASSERT_TRUE(writer.Open());
  std::uint64_t block = 100;
  while (writer.store().counters().evicted_segments < 1) ASSERT_EQ(writer.Save(block++), Result::kOk);
  writer.disk().Settle();
  const std::size_t before = Judge(reader, writer.disk(), 0);
  EXPECT_EQ(before, 0U);
  for (std::uint64_t fresh = 0; fresh < 3; ++fresh) ASSERT_EQ(writer.Save(fresh), Result::kOk);
  const std::size_t count = writer.disk().unsynced().size();
  ASSERT_LE(count, 12U);
  ASSERT_GE(count, 6U);
  for (std::uint64_t subset = 0; subset < (std::uint64_t{1} << count); ++subset) {
    VirtualDisk after = writer.disk();
    after.PowerLoss([&](std::size_t write) { return (subset >> write & 1U) != 0; });
    Judge(reader, after, 3);
    reader.disk() = after;
    ASSERT_TRUE(reader.Open());
    for (std::uint64_t old = 100; old < block; ++old) ASSERT_NE(reader.Load(old), Loaded::kWrongBytes);
    if (::testing::Test::HasFailure()) FAIL() << "subset " << subset;
  }
}

// What lies in sealed segments was synced: it is there, whatever becomes of the rest.
TEST(StorePower, SealedSegmentsSurviveWhole) {
  StoreWorld::Shape shape;
  StoreWorld writer(shape);
  StoreWorld reader(shape);
  ASSERT_TRUE(writer.Open());
  std::uint64_t blocks = 0;
  std::uint64_t sealed = 0;  // blocks of sealed segments
  while (writer.store().gauges().free_segments > 4) {
    const std::uint32_t free = writer.store().gauges().free_segments;
    ASSERT_EQ(writer.Save(blocks), Result::kOk);
    if (writer.store().gauges().free_segments < free) sealed = blocks;
    ++blocks;
  }
  EXPECT_GT(sealed, 20U);
  VirtualDisk after = writer.disk();
  after.PowerLoss([](std::size_t) { return false; });
  EXPECT_GE(Judge(reader, after, blocks), sealed);
}

// Power losses at random points of a long run, each with a random subset.
TEST(StorePower, RandomSubsetsAtRandomPoints) {
  for (std::uint64_t seed = 1; seed <= testing::Effort(15, 300); ++seed) {
    Prng prng(seed);
    StoreWorld::Shape shape{.segment_bytes = 32 * 1024, .segments = 5, .write_bytes = 8 * 1024};
    shape.align = prng.Below(2) == 0 ? 512 : 4096;
    StoreWorld world(shape);
    ASSERT_TRUE(world.Open());
    for (int life = 0; life < 10; ++life) {
      const std::uint64_t steps = prng.Below(60);
      for (std::uint64_t step = 0; step < steps; ++step) {
        const std::uint64_t block = prng.Below(60);
        if (prng.Below(3) == 0) {
          ASSERT_NE(world.Load(block), Loaded::kWrongBytes) << seed;
        } else {
          world.BeginSave(block, static_cast<std::uint32_t>(2 + block % 40));
          if (prng.Below(2) == 0) world.Run();
          world.Step();
        }
      }
      VirtualDisk after = world.disk();
      const std::uint64_t odds = 1 + prng.Below(4);
      after.PowerLoss([&](std::size_t) { return prng.Below(odds) == 0; });
      world.Close();
      world.disk() = after;
      ASSERT_TRUE(world.Open()) << seed;
      for (std::uint64_t block = 0; block < 60; ++block) {
        ASSERT_NE(world.Load(block), Loaded::kWrongBytes) << seed;
      }
    }
  }
}

}  // namespace
}  // namespace orbitkv::store
