#include "orbitkv/copy/pages.h"

#include <array>
#include <bit>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash.h"

namespace orbitkv::copy {
namespace {

constexpr std::uint64_t kGoldenChecksum = 0x9aa1e549b34f98aeULL;
constexpr std::uint32_t kLayers = 3;
constexpr std::uint64_t kPageBytes = 1027;  // no multiple of 8: the list is behind padding

state::StateKey Identity() {
  state::StateKey identity;
  identity.namespace_digest.fill(std::byte{1});
  identity.hash.bytes.fill(std::byte{2});
  identity.group = 3;
  identity.shard = 4;
  return identity;
}

class Slot : public testing::Test {
 protected:
  Slot() : bytes_(SlotBytes(kLayers, kPageBytes)) {
    Prng prng(5);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(prng.Next());
    for (std::uint32_t i = 0; i < kLayers; ++i) hashes_[i] = HashOnly(bytes_.data() + i * kPageBytes, kPageBytes);
    WriteList(bytes_.data(), kPageBytes, hashes_);
    checksum_ = SlotChecksum(Identity(), kLayers * kPageBytes, hashes_);
  }
  Status Check(const state::StateKey& identity = Identity()) const {
    return CheckSlot(bytes_, {kLayers, kPageBytes}, identity, checksum_);
  }

  std::vector<std::byte> bytes_;
  std::array<std::uint64_t, kLayers> hashes_{};
  std::uint64_t checksum_ = 0;
};

TEST_F(Slot, ListFollowsThePagesAtAMultipleOfEight) {
  EXPECT_EQ(ListOffset(kLayers, kPageBytes), 3088U);
  EXPECT_EQ(SlotBytes(kLayers, kPageBytes), 3088U + 24U);
  for (std::uint64_t at = kLayers * kPageBytes; at < 3088; ++at) EXPECT_EQ(bytes_[at], std::byte{0});
  std::uint64_t second = 0;
  std::memcpy(&second, bytes_.data() + 3088 + 8, sizeof(second));
  EXPECT_EQ(second, hashes_[1]);
  std::array<std::uint64_t, kLayers> read{};
  ReadList(bytes_.data(), kPageBytes, read);
  EXPECT_EQ(read, hashes_);
}

// The checksum is part of what a pool that outlives its Manager holds: its value may not change.
TEST_F(Slot, ChecksumValueIsFixed) {
  constexpr std::array<std::uint64_t, 2> kList = {0x1122334455667788ULL, 0x99aabbccddeeff00ULL};
  EXPECT_EQ(SlotChecksum(Identity(), 2048, kList), kGoldenChecksum);
}

TEST_F(Slot, EveryIngredientChangesTheChecksum) {
  ASSERT_TRUE(Check());
  state::StateKey other = Identity();
  other.namespace_digest[31] = std::byte{9};
  EXPECT_EQ(Check(other).error().a, kListPage);
  other = Identity();
  other.hash.bytes[0] = std::byte{9};
  EXPECT_EQ(Check(other).error().code, Code::kCorrupt);
  other = Identity();
  other.group = 4;
  EXPECT_FALSE(Check(other));
  other = Identity();
  other.shard = 3;
  EXPECT_FALSE(Check(other));
  EXPECT_NE(SlotChecksum(Identity(), kLayers * kPageBytes + 1, hashes_), checksum_);
  EXPECT_NE(SlotChecksum(Identity(), kLayers * kPageBytes, std::span(hashes_).first(2)), checksum_);
}

TEST_F(Slot, ADamagedByteNamesItsPage) {
  for (std::uint32_t page = 0; page < kLayers; ++page) {
    std::byte& victim = bytes_[page * kPageBytes + 77];
    victim ^= std::byte{1};
    const Status status = Check();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kCorrupt);
    EXPECT_EQ(status.error().a, page);
    victim ^= std::byte{1};
  }
  bytes_.back() ^= std::byte{1};
  EXPECT_EQ(Check().error().a, kListPage);
}

TEST_F(Slot, ASpanThatIsTooSmallIsRefused) {
  bytes_.pop_back();
  EXPECT_EQ(Check().error().code, Code::kInvalid);
  EXPECT_EQ(CheckSlot(bytes_, {0, kPageBytes}, Identity(), checksum_).error().code, Code::kInvalid);
}

TEST(PageLayout, RefusesWhatCannotBeRight) {
  std::vector<std::byte> memory(4096);
  const PageLayout good{{{memory.data(), 1024}, {memory.data() + 2048, 1024}}, 1024, 2};
  ASSERT_TRUE(good.Validate());
  EXPECT_EQ(good.page(1, 1), memory.data() + 3072);

  PageLayout bad = good;
  bad.layers.clear();
  EXPECT_FALSE(bad.Validate());
  bad = good;
  bad.page_bytes = 0;
  EXPECT_FALSE(bad.Validate());
  bad.page_bytes = kMaxPageBytes + 1;
  EXPECT_FALSE(bad.Validate());
  bad = good;
  bad.block_count = 0;
  EXPECT_FALSE(bad.Validate());
  bad = good;
  bad.layers[1].base = nullptr;
  EXPECT_EQ(bad.Validate().error().a, 1U);
  bad = good;
  bad.layers[0].block_stride_bytes = 1023;
  EXPECT_FALSE(bad.Validate());
  bad = good;
  bad.layers[0].block_stride_bytes = ~0ULL - std::bit_cast<std::uint64_t>(memory.data()) - 1000;
  EXPECT_FALSE(bad.Validate());
}

}  // namespace
}  // namespace orbitkv::copy
