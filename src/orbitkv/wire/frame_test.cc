#include "orbitkv/wire/frame.h"

#include <gtest/gtest.h>

namespace orbitkv::wire {
namespace {

template <typename T>
Result<T> RoundTrip(const T& message) {
  ORBITKV_ASSIGN_OR_RETURN(const auto bytes, EncodeFrame(message));
  ORBITKV_ASSIGN_OR_RETURN(const auto back, DecodeFrame(std::span(bytes).subspan(kFrameLengthBytes)));
  const T* value = std::get_if<T>(&back);
  if (value == nullptr) return Fail(Code::kCorrupt, "another message came back");
  return *value;
}

Welcome SomeWelcome() {
  return {.abi = 1,
          .incarnation = {1, 2},
          .session = SessionId(3),
          .client_token = 4,
          .geometry = {},
          .pool_bytes = 1U << 30U,
          .pool_named = true,
          .manager_pid = 77};
}

TEST(Frame, MessagesComeBackEqual) {
  const auto hello =
      RoundTrip(Hello{.abi_min = 1, .abi_max = 3, .purpose = Purpose::kPublish, .name = "n", .pid = 5}).value();
  EXPECT_EQ(hello.abi_max, 3);
  EXPECT_EQ(hello.purpose, Purpose::kPublish);
  EXPECT_EQ(hello.name, "n");
  const auto welcome = RoundTrip(SomeWelcome()).value();
  EXPECT_EQ(welcome.incarnation, (Incarnation{1, 2}));
  EXPECT_EQ(welcome.client_token, 4U);
  EXPECT_EQ(welcome.geometry.slot_bytes, 64U << 10U);
  EXPECT_TRUE(welcome.pool_named);
  EXPECT_EQ(RoundTrip(Refusal{.code = Code::kBusy, .text = "full"}).value().code, Code::kBusy);
  EXPECT_EQ(RoundTrip(ProbeReply{.pid = 9}).value().pid, 9);
  EXPECT_TRUE(RoundTrip(Probe{}).has_value());
  const auto life =
      RoundTrip(Lifecycle{.session = SessionId(3), .id = 8, .kind = 2, .refused = true, .payload = {std::byte{7}}});
  EXPECT_EQ(life->id, 8U);
  EXPECT_TRUE(life->refused);
  EXPECT_EQ(life->payload, std::vector<std::byte>{std::byte{7}});
}

TEST(Frame, FieldsOutOfRangeAreRefused) {
  EXPECT_EQ(RoundTrip(Hello{.abi_min = 3, .abi_max = 2}).error().code, Code::kInvalid);
  EXPECT_EQ(RoundTrip(Hello{.abi_min = 0}).error().code, Code::kInvalid);
  EXPECT_EQ(RoundTrip(Hello{.purpose = static_cast<Purpose>(9)}).error().code, Code::kInvalid);
  Welcome welcome = SomeWelcome();
  welcome.geometry.ring_entries = 63;
  EXPECT_EQ(RoundTrip(welcome).error().code, Code::kInvalid);
  welcome = SomeWelcome();
  welcome.session = SessionId();
  EXPECT_EQ(RoundTrip(welcome).error().code, Code::kInvalid);
  EXPECT_EQ(RoundTrip(Lifecycle{.kind = 0}).error().code, Code::kInvalid);
  const std::byte noise[] = {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  EXPECT_EQ(DecodeFrame(noise).error().code, Code::kInvalid);
  EXPECT_EQ(DecodeFrame({}).error().code, Code::kInvalid);
}

TEST(FrameReader, CutsAStreamThatArrivesByteByByte) {
  auto stream = EncodeFrame(ProbeReply{.pid = 1}).value();
  const auto second = EncodeFrame(ProbeReply{.pid = 2}).value();
  stream.insert(stream.end(), second.begin(), second.end());
  FrameReader reader;
  std::vector<std::int32_t> pids;
  for (const std::byte byte : stream) {
    reader.Append({&byte, 1});
    const auto frame = reader.Next().value();
    if (frame) pids.push_back(std::get<ProbeReply>(DecodeFrame(*frame).value()).pid);
  }
  EXPECT_EQ(pids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_FALSE(reader.half_frame());
  reader.Append(std::span(stream).first(3));
  EXPECT_FALSE(reader.Next().value().has_value());
  EXPECT_TRUE(reader.half_frame());
}

TEST(FrameReader, KeepsLittleMemoryBetweenFrames) {
  FrameReader reader;
  const Lifecycle large{.session = SessionId(1), .id = 1, .kind = 1, .payload = std::vector<std::byte>(8U << 20U)};
  reader.Append(EncodeFrame(large).value());
  EXPECT_TRUE(reader.Next().value().has_value());
  EXPECT_GE(reader.capacity_bytes(), large.payload.size());
  EXPECT_FALSE(reader.Next().value().has_value());
  EXPECT_LE(reader.capacity_bytes(), std::size_t{64} << 10U);
  reader.Append(EncodeFrame(ProbeReply{.pid = 1}).value());
  EXPECT_TRUE(reader.Next().value().has_value());
}

TEST(FrameReader, RefusesLengthsOutOfRange) {
  for (const std::uint32_t length : {0U, kMaxFrameBytes + 1, 0xffffffffU}) {
    FrameReader reader;
    reader.Append(std::as_bytes(std::span(&length, 1)));
    EXPECT_EQ(reader.Next().error().code, Code::kInvalid) << length;
  }
}

TEST(Frame, TooLargeIsNotSent) {
  EXPECT_EQ(EncodeFrame(Lifecycle{.kind = 1, .payload = std::vector<std::byte>(kMaxFrameBytes)}).error().code,
            Code::kInvalid);
}

}  // namespace
}  // namespace orbitkv::wire
