#include "orbitkv/manager/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::manager {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Bytes(const google::protobuf::MessageLite& message) {
  const std::string text = message.SerializeAsString();
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

wire::Register GoodRegister() {
  wire::Register message;
  message.set_instance("engine-0");
  message.set_name("worker 7");
  message.set_role(wire::Register::ROLE_WORKER);
  message.set_rank(1);
  message.set_world_size(2);
  message.set_shard(1);
  message.set_shard_count(2);
  message.set_computation_digest(std::string(32, 'c'));
  message.set_representation_digest(std::string(32, 'r'));
  auto& group = *message.add_groups();
  group.set_block_tokens(32);
  group.set_page_count(30);
  group.set_page_bytes(24576);
  return message;
}

Code CodeOf(const wire::Register& message) {
  const auto decoded = DecodeRegister(Bytes(message));
  return decoded ? Code{} : decoded.error().code;
}

TEST(Lifecycle, RegistrationKeepsEveryField) {
  const auto decoded = DecodeRegister(Bytes(GoodRegister()));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->instance, "engine-0");
  EXPECT_EQ(decoded->name, "worker 7");
  EXPECT_EQ(decoded->role, service::Role::kWorker);
  EXPECT_EQ(decoded->rank, Rank(1));
  EXPECT_EQ(decoded->world_size, 2U);
  EXPECT_EQ(decoded->shard, 1U);
  EXPECT_EQ(decoded->shard_count, 2U);
  EXPECT_EQ(decoded->computation[31], std::byte{'c'});
  ASSERT_TRUE(decoded->representation);
  EXPECT_EQ((*decoded->representation)[0], std::byte{'r'});
  ASSERT_EQ(decoded->groups.size(), 1U);
  EXPECT_EQ(decoded->groups[0], (state::GroupShape{32, 30, 24576}));
}

TEST(Lifecycle, RegistrationKeepsTheRulesOfGroups) {
  wire::Register message = GoodRegister();
  const wire::CacheGroup::Kind kinds[] = {wire::CacheGroup::KIND_SLIDING_WINDOW, wire::CacheGroup::KIND_RECURRENT,
                                          wire::CacheGroup::KIND_CHUNKED_LOCAL};
  for (const auto kind : kinds) {
    auto& group = *message.add_groups();
    group.set_kind(kind);
    group.set_span_tokens(64);
    group.set_hash_block_tokens(16);
  }
  const auto decoded = DecodeRegister(Bytes(message));
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->groups.size(), 4U);
  EXPECT_EQ(decoded->groups[1], (state::GroupShape{0, 0, 0, state::GroupKind::kSlidingWindow, 64, 16}));
  EXPECT_EQ(decoded->groups[2].kind, state::GroupKind::kRecurrent);
  EXPECT_EQ(decoded->groups[3].kind, state::GroupKind::kChunkedLocal);
  message.mutable_groups(3)->set_kind(static_cast<wire::CacheGroup::Kind>(4));
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
}

TEST(Lifecycle, BadRegistrationsAreRefused) {
  wire::Register message = GoodRegister();
  message.set_computation_digest("short");
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  message = GoodRegister();
  message.set_representation_digest(std::string(33, 'r'));
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  message = GoodRegister();
  message.set_role(static_cast<wire::Register::Role>(9));
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  message = GoodRegister();
  message.clear_instance();
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  message = GoodRegister();
  message.set_instance(std::string(257, 'x'));
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  message = GoodRegister();
  for (int i = 0; i < 64; ++i) message.add_groups();
  EXPECT_EQ(CodeOf(message), Code::kInvalid);
  const std::byte garbage[] = {std::byte{0xff}, std::byte{0xff}};
  EXPECT_FALSE(DecodeRegister(garbage));
  EXPECT_FALSE(DecodeDrained(garbage));
  EXPECT_FALSE(DecodeEmpty(garbage));
  EXPECT_FALSE(DecodeHealth(garbage));
  EXPECT_TRUE(DecodeEmpty(EncodeHealthRequest()));
}

TEST(Lifecycle, DrainedNamesTokenAndIncarnation) {
  wire::SessionDrained message;
  message.set_client_token(77);
  std::string incarnation(16, '\0');
  incarnation[0] = 1;
  incarnation[8] = 2;
  message.set_incarnation(incarnation);
  const auto decoded = DecodeDrained(Bytes(message));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->client_token, 77U);
  EXPECT_EQ(decoded->incarnation, (Incarnation{1, 2}));
  message.set_incarnation("short");
  EXPECT_FALSE(DecodeDrained(Bytes(message)));
}

TEST(Lifecycle, RegisterReplyCarriesTheDigestOnlyWhenReady) {
  service::RegisterOutcome outcome;
  outcome.instance = InstanceId(3);
  outcome.namespace_digest.fill(std::byte{'n'});
  wire::RegisterReply reply;
  auto bytes = EncodeRegisterReply(outcome, 4096);
  ASSERT_TRUE(reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  EXPECT_EQ(reply.instance_id(), 3U);
  EXPECT_EQ(reply.max_reserve_blocks(), 4096U);
  EXPECT_FALSE(reply.namespace_ready());
  EXPECT_TRUE(reply.namespace_digest().empty());
  outcome.namespace_ready = true;
  bytes = EncodeRegisterReply(outcome, 4096);
  ASSERT_TRUE(reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  EXPECT_EQ(reply.namespace_digest(), std::string(32, 'n'));
}

TEST(Lifecycle, HealthRoundTripsAndPrints) {
  Health health{"0.1.0", 42, {0xab, 0xcd}, 1.5, {}};
  health.samples.push_back({"orbitkv_hits_total", "Hits.", {{"b", "2"}, {"a", "1"}}, 12, true});
  health.samples.push_back({"orbitkv_share", "Share.", {}, 0.25, false});
  const auto decoded = DecodeHealth(EncodeHealth(health));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->incarnation, health.incarnation);
  const auto json = nlohmann::json::parse(HealthAsJson(*decoded));
  EXPECT_EQ(json["pid"], 42);
  EXPECT_EQ(json["incarnation"], "00000000000000ab00000000000000cd");
  EXPECT_EQ(json["samples"][0]["name"], "orbitkv_hits_total");
  EXPECT_EQ(json["samples"][0]["value"], 12);
  EXPECT_EQ(json["samples"][0]["labels"]["a"], "1");
  const std::string text = HealthAsText(*decoded);
  EXPECT_THAT(text, HasSubstr("pid=42"));
  EXPECT_THAT(text, HasSubstr("orbitkv_hits_total{a=\"1\",b=\"2\"}"));
  EXPECT_THAT(text, HasSubstr(" 0.25\n"));
}

TEST(Lifecycle, ErrorsCarryCodeAndText) {
  const auto bytes = EncodeError(Code::kRefused, "another layout");
  wire::ErrorReply reply;
  ASSERT_TRUE(reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  EXPECT_EQ(reply.code(), static_cast<std::uint32_t>(Code::kRefused));
  EXPECT_EQ(reply.text(), "another layout");
}

}  // namespace
}  // namespace orbitkv::manager
