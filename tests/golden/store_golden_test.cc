// A whole store of format version 1, byte for byte: what is written now equals the file, and the file is served. As in
// golden_test.cc a difference means a new version, not a new file; ORBITKV_WRITE_GOLDEN writes one that is missing.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <vector>

#include "orbitkv/testing/store_world.h"

namespace orbitkv::store {
namespace {

using testing::StoreWorld;
constexpr StoreWorld::Shape kShape = {
    .segment_bytes = 32 * 1024, .segments = 4, .write_bytes = 4096, .page_count = 2, .page_bytes = 100};
// One at a time, so that each has a write of its own; the rest share writes. A sealed segment and one that is not.
constexpr std::uint64_t kAlone = 7;
constexpr std::uint64_t kBlocks = 15;

std::filesystem::path GoldenPath() { return std::filesystem::path(ORBITKV_GOLDEN_FOLDER) / "store1.bin"; }

std::vector<std::byte> Golden() {
  std::ifstream file(GoldenPath(), std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto as_bytes = std::as_bytes(std::span(bytes));
  return {as_bytes.begin(), as_bytes.end()};
}

TEST(StoreGolden, VersionOneIsWritten) {
  StoreWorld world(kShape);
  ASSERT_TRUE(world.Open());
  for (std::uint64_t block = 0; block < kAlone; ++block) ASSERT_EQ(world.Save(block), LogEnd::Result::kOk);
  for (std::uint64_t block = kAlone; block < kBlocks; ++block) {
    world.BeginSave(block, static_cast<std::uint32_t>(block));
  }
  world.Run();
  const auto bytes = world.disk().bytes();
  if (!std::filesystem::exists(GoldenPath()) && std::getenv("ORBITKV_WRITE_GOLDEN") != nullptr) {
    std::ofstream(GoldenPath(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  const std::vector<std::byte> golden = Golden();
  ASSERT_EQ(golden.size(), bytes.size()) << GoldenPath() << " is missing";
  const auto [ours, theirs] = std::ranges::mismatch(bytes, golden);
  EXPECT_EQ(ours, bytes.end()) << "first difference at " << ours - bytes.begin();
}

TEST(StoreGolden, VersionOneIsServed) {
  const std::vector<std::byte> golden = Golden();
  StoreWorld world(kShape);
  ASSERT_EQ(golden.size(), world.disk().size());
  std::ranges::copy(golden, world.disk().bytes().begin());
  ASSERT_TRUE(world.Open());
  EXPECT_FALSE(world.store().recovered().formatted);
  EXPECT_EQ(world.store().recovered().sealed_segments, 1U);
  EXPECT_EQ(world.store().recovered().scanned_segments, 1U);
  for (std::uint64_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(world.Load(block), StoreWorld::Loaded::kRight) << block;
  }
}

}  // namespace
}  // namespace orbitkv::store
