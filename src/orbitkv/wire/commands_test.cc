#include "orbitkv/wire/commands.h"

#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "orbitkv/wire/test_hashes.h"

namespace orbitkv::wire {
namespace {

TEST(Commands, ReserveRoundTripAndBounds) {
  const auto hashes = MakeHashes(3);
  ReserveHeader header{};
  header.parent = hashes[0];
  header.slot_bytes = 4096;
  header.first_depth = 9;
  const auto bytes = EncodeReserve(header, hashes);
  const auto view = DecodeReserve(bytes);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->header.parent, hashes[0]);
  EXPECT_EQ(view->hashes.size(), 3U);

  header.slot_bytes = 0;
  EXPECT_EQ(DecodeReserve(EncodeReserve(header, hashes)).error().code, Code::kInvalid);
  header.slot_bytes = 4096;
  EXPECT_EQ(DecodeReserve(EncodeReserve(header, {})).error().code, Code::kInvalid);
  const auto too_many = MakeHashes(kMaxBlocksPerReserve + 1);
  EXPECT_EQ(DecodeReserve(EncodeReserve(header, too_many)).error().code, Code::kInvalid);
}

TEST(Commands, CommitBeginAndEndRoundTrip) {
  const std::vector<CommitEntry> entries{{.slot_checksum = 11, .generation = 12, .index = 13, .reserved = 0}};
  const auto commit_bytes = EncodeCommit(entries);
  const auto commit = DecodeCommit(commit_bytes);
  ASSERT_TRUE(commit.has_value());
  EXPECT_EQ(commit->entries[0].index, 13U);

  const std::vector<std::uint32_t> ranks{0, 3};
  const auto begin_bytes = EncodeBegin(17, ranks);
  const auto begin = DecodeBegin(begin_bytes);
  ASSERT_TRUE(begin.has_value());
  EXPECT_EQ(begin->header.boundary_blocks, 17U);
  EXPECT_EQ(begin->ranks[1], 3U);
  EXPECT_FALSE(DecodeBegin(EncodeBegin(0, ranks)).has_value());
  EXPECT_FALSE(DecodeBegin(EncodeBegin(1, {})).has_value());

  const std::vector<EndEntry> mismatches{{.generation = 7, .index = 3}, {.generation = 8, .index = 0}};
  const auto end_bytes = EncodeEnd(mismatches);
  const auto end = DecodeEnd(end_bytes);
  ASSERT_TRUE(end.has_value());
  ASSERT_EQ(end->mismatches.size(), 2U);
  EXPECT_EQ(end->mismatches[0].generation, 7U);
  EXPECT_EQ(end->mismatches[0].index, 3U);
  EXPECT_EQ(EncodeEndFor(2, mismatches), end_bytes);
}

TEST(Commands, VersionOneEndsWithIndicesAlone) {
  const std::vector<std::uint32_t> indices{3, 0};
  const auto bytes = EncodeEndV1(indices);
  const auto end = DecodeEndV1(bytes);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(std::ranges::equal(end->indices, indices));
  const std::vector<EndEntry> mismatches{{.generation = 7, .index = 3}, {.generation = 8, .index = 0}};
  EXPECT_EQ(EncodeEndFor(1, mismatches), bytes);
  EXPECT_FALSE(DecodeEndV1(EncodeEnd(mismatches)).has_value());
  EXPECT_FALSE(DecodeEnd(bytes).has_value());
  EXPECT_EQ(EncodeEnd({}), EncodeEndV1({})) << "an end without mismatches is the same in both";
}

// Every cut and every surplus byte of every payload is refused: a count never reaches beyond the bytes that came.
TEST(Commands, LengthsMustMatchExactly) {
  const auto hashes = MakeHashes(4);
  ReserveHeader reserve{};
  reserve.slot_bytes = 512;
  const std::vector<std::uint32_t> ranks{0, 1, 2};
  const std::vector<CommitEntry> entries(2);
  const auto expect_exact = [](std::vector<std::byte> bytes, auto decode) {
    ASSERT_TRUE(decode(std::span<const std::byte>(bytes)));
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_FALSE(decode(std::span<const std::byte>(bytes).first(cut))) << cut;
    }
    bytes.resize(bytes.size() + 8);
    EXPECT_FALSE(decode(std::span<const std::byte>(bytes)));
  };
  expect_exact(EncodeQuery({}, hashes), [](auto bytes) { return DecodeQuery(bytes).has_value(); });
  expect_exact(EncodeReserve(reserve, hashes), [](auto bytes) { return DecodeReserve(bytes).has_value(); });
  expect_exact(EncodeCommit(entries), [](auto bytes) { return DecodeCommit(bytes).has_value(); });
  expect_exact(EncodeBegin(1, ranks), [](auto bytes) { return DecodeBegin(bytes).has_value(); });
  expect_exact(EncodeEnd(std::vector<EndEntry>(2)), [](auto bytes) { return DecodeEnd(bytes).has_value(); });
  expect_exact(EncodeEndV1(ranks), [](auto bytes) { return DecodeEndV1(bytes).has_value(); });
}

TEST(Commands, AHostileCountIsRefused) {
  auto bytes = EncodeQuery({}, MakeHashes(1));
  const std::uint32_t count = 0xffffffffU;
  std::memcpy(bytes.data() + offsetof(QueryHeader, hash_count), &count, sizeof(count));
  EXPECT_EQ(DecodeQuery(bytes).error().code, Code::kInvalid);
  EXPECT_FALSE(DecodePlan(std::span<const std::byte>(bytes).first(41)).has_value());
  EXPECT_FALSE(DecodeReserveAnswer(std::span<const std::byte>(bytes).first(25)).has_value());
  EXPECT_FALSE(DecodeCommitAnswer(std::span<const std::byte>(bytes).first(3)).has_value());
}

}  // namespace
}  // namespace orbitkv::wire
