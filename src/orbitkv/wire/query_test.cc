#include "orbitkv/wire/query.h"

#include <cstring>
#include <gtest/gtest.h>

#include "orbitkv/wire/test_hashes.h"

namespace orbitkv::wire {
namespace {

template <typename Change>
bool Taken(QueryHeader header, std::vector<HashView> views, Change change) {
  auto bytes = EncodeQuery(header, MakeHashes(4), views);
  change(bytes);
  return DecodeQuery(bytes).has_value();
}
bool Taken(const QueryHeader& header, const std::vector<HashView>& views = {}) {
  return Taken(header, views, [](auto&) {});
}

TEST(QueryPayload, RoundTripsWithEveryField) {
  const auto hashes = MakeHashes(300);
  const QueryHeader header{.request_key_hi = 1,
                           .request_key_lo = 2,
                           .consumer_key_hi = 3,
                           .consumer_key_lo = 4,
                           .wait_ns = 5,
                           .attempt = 6,
                           .mode = QueryMode::kPrepare,
                           .group = kAllGroups,
                           .prefix_blocks = 7};
  const auto bytes = EncodeQuery(header, hashes);
  ASSERT_EQ(bytes.size(), 64 + 300 * 32U);
  const auto view = DecodeQuery(bytes);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->header.consumer_key_lo, 4U);
  EXPECT_EQ(view->header.wait_ns, 5U);
  EXPECT_EQ(view->header.mode, QueryMode::kPrepare);
  EXPECT_EQ(view->header.group, kAllGroups);
  ASSERT_EQ(view->hashes.size(), 300U);
  EXPECT_EQ(view->hashes[299], hashes[299]);
}

TEST(QueryPayload, TheFirstVersionDecodesToTheSameView) {
  const auto hashes = MakeHashes(3);
  const auto bytes = EncodeQueryV1({.request_key_lo = 2, .attempt = 3, .group = 4, .prefix_blocks = 5}, hashes);
  ASSERT_EQ(bytes.size(), 32 + 3 * 32U);
  const auto view = DecodeQueryV1(bytes);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->header.mode, QueryMode::kLeasedRead);
  EXPECT_EQ(view->header.wait_ns, 0U);
  EXPECT_EQ(view->header.attempt, 3U);
  EXPECT_EQ(view->header.group, 4U);
  EXPECT_EQ(view->header.prefix_blocks, 5U);
  EXPECT_EQ(view->hashes[2], hashes[2]);
  EXPECT_FALSE(DecodeQueryV1(std::span(bytes).first(bytes.size() - 1)).has_value());
}

TEST(QueryPayload, FieldsOutOfRangeAreRefused) {
  EXPECT_TRUE(Taken({}));
  EXPECT_FALSE(Taken({.mode = static_cast<QueryMode>(6)}));
  EXPECT_FALSE(Taken({.flags = 4}));
  EXPECT_TRUE(Taken({.flags = kWaitIsComputeTime}));
  EXPECT_FALSE(Taken({.flags = kTellTiers})) << "a discovery alone tells";
  EXPECT_TRUE(Taken({.mode = QueryMode::kDiscovery, .flags = kTellTiers}));
  EXPECT_FALSE(Taken({.mode = QueryMode::kPrepare})) << "a preparation names its consumer";
  EXPECT_FALSE(Taken({.consumer_key_lo = 1})) << "only a preparation does";
  EXPECT_TRUE(Taken({.consumer_key_lo = 1, .mode = QueryMode::kPrepare}));
  EXPECT_FALSE(Taken({}, {}, [](auto& bytes) {
    const std::uint32_t count = 0xffffffffU;
    std::memcpy(bytes.data() + offsetof(QueryHeader, hash_count), &count, sizeof count);
  }));
  EXPECT_FALSE(Taken({}, {}, [](auto& bytes) { bytes.resize(bytes.size() + 8); }));
}

TEST(QueryPayload, AMeasuredWaitIsDividedAmongTheBlocks) {
  const auto hashes = MakeHashes(4);
  const auto bytes = EncodeQuery({.wait_ns = 4000, .flags = kWaitIsComputeTime}, hashes);
  EXPECT_EQ(DecodeQuery(bytes)->compute_ns, 1000U);
  EXPECT_FALSE(DecodeQuery(bytes, 2).has_value()) << "version 2 has no flags";
  EXPECT_EQ(DecodeQuery(EncodeQuery({.wait_ns = 4000}, hashes))->compute_ns, 0U);
  EXPECT_EQ(DecodeQuery(EncodeQuery({.wait_ns = 4000, .flags = kWaitIsComputeTime}, {}))->compute_ns, 0U);
}

TEST(QueryPayload, DiscoveriesTellBoundariesAndTiers) {
  const std::uint32_t boundaries[] = {2, 4};
  const Tier tiers[] = {Tier::kPool, Tier::kBehind, Tier::kAbsent};
  auto bytes = EncodeDiscovery(boundaries, tiers);
  ASSERT_EQ(bytes.size(), 8 + 8 + 3U);
  const auto view = DecodeDiscovery(bytes);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->boundaries[1], 4U);
  EXPECT_EQ(view->tiers[1], Tier::kBehind);
  EXPECT_FALSE(DecodeDiscovery(std::span(bytes).first(bytes.size() - 1)).has_value());
  bytes.back() = std::byte{3};
  EXPECT_FALSE(DecodeDiscovery(bytes).has_value());
  bytes.resize(bytes.size() + 1);
  EXPECT_FALSE(DecodeDiscovery(bytes).has_value());
}

TEST(QueryPayload, ViewsLieInsideTheHashes) {
  const QueryHeader selected{.mode = QueryMode::kSelected};
  EXPECT_FALSE(Taken(selected)) << "a selected read has views";
  EXPECT_FALSE(Taken({}, {{.first = 0, .count = 1}})) << "only a selected read has";
  EXPECT_TRUE(Taken(selected, {{.first = 0, .count = 4}, {.first = 3, .count = 1}}));
  EXPECT_FALSE(Taken(selected, {{.first = 3, .count = 2}}));
  EXPECT_FALSE(Taken(selected, {{.first = 5, .count = 0xffffffffU}}));
  EXPECT_FALSE(Taken(selected, {{.first = 1, .count = 0}}));
  EXPECT_FALSE(Taken(selected, {{.first = 0, .count = 1, .reserved = 1}}));
}

TEST(QueryPayload, PollsAndTheirAnswers) {
  const std::vector<PollRequest> requests(kMaxPolled, PollRequest{.operation = 1, .revision = 2});
  EXPECT_EQ(DecodePoll(EncodePoll(requests)).value().size(), kMaxPolled);
  EXPECT_FALSE(DecodePoll({}).has_value());
  EXPECT_FALSE(DecodePoll(EncodePoll(std::vector<PollRequest>(kMaxPolled + 1))).has_value());
  const std::vector<PollEntry> entries = {{.operation = 1, .boundary_count = 2}, {.operation = 2, .boundary_count = 1}};
  const std::vector<std::uint32_t> boundaries = {4, 8, 3};
  const auto bytes = EncodePollAnswer(entries, boundaries);
  const auto view = DecodePollAnswer(bytes);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->entries[1].operation, 2U);
  EXPECT_EQ(view->boundaries[2], 3U);
  EXPECT_FALSE(DecodePollAnswer(EncodePollAnswer(entries, std::span(boundaries).first(2))).has_value());
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodePollAnswer(std::span(bytes).first(cut)).has_value()) << cut;
  }
}

TEST(QueryPayload, ClaimsNameTheirConsumer) {
  const auto bytes = EncodeClaim({.consumer_key_hi = 1, .operation = 2, .revision = 3});
  EXPECT_EQ(DecodeClaim(bytes).value().operation, 2U);
  EXPECT_FALSE(DecodeClaim(EncodeClaim({.operation = 2})).has_value());
  EXPECT_FALSE(DecodeClaim(EncodeClaim({.consumer_key_hi = 1, .reserved = 1})).has_value());
  EXPECT_FALSE(DecodeClaim(std::span(bytes).first(31)).has_value());
}

}  // namespace
}  // namespace orbitkv::wire
