#include "orbitkv/wire/descriptor.h"

#include <gtest/gtest.h>

#include "orbitkv/wire/session_layout.h"

namespace orbitkv::wire {
namespace {

constexpr DescriptorLimits kLimits{.abi = kAbiMax, .session_epoch = 9, .slot_bytes = 4096, .arena_bytes = 16384};

Descriptor Request() {
  Descriptor d;
  d.abi = kAbiMax;
  d.op = static_cast<std::uint16_t>(Command::kQuerySubmit);
  d.flags = kLastChunk;
  d.generation = 7;
  d.request_id = 5;
  d.session_epoch = 9;
  d.arena_offset = 12288;
  d.arena_length = 4096;
  return d;
}

template <typename Change>
Code RefusedAs(Change change) {
  Descriptor d = Request();
  change(d);
  const auto decoded = DecodeRequest(d, kLimits);
  EXPECT_FALSE(decoded.has_value());
  return decoded ? Code::kCancelled : decoded.error().code;
}

TEST(Descriptor, RequestInRangeIsTaken) {
  const auto decoded = DecodeRequest(Request(), kLimits);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->arena_offset, 12288U);
}

TEST(Descriptor, EveryFieldOutOfRangeIsRefused) {
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.magic ^= 1; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.abi = 1; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.op = 0; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.op = 13; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.flags |= 1U << 9U; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.flags |= kMoreAnswer; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.flags |= kFetch; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.generation = 8; }), Code::kStale);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.session_epoch = 8; }), Code::kStale);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.request_id = 0; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.arena_offset = 16384; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.arena_offset = 0xfffff000U; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.arena_offset = 8; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.arena_length = 4097; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.arena_offset = kNoArena; }), Code::kInvalid);
  EXPECT_EQ(RefusedAs([](Descriptor& d) { d.flags = 0, d.arena_length = 100; }), Code::kInvalid);
}

TEST(Descriptor, AnswerHasAnEvenGenerationAndAStatus) {
  Descriptor d = Request();
  d.op = static_cast<std::uint16_t>(AnswerStatus::kOk);
  d.flags = kMoreAnswer;
  EXPECT_EQ(DecodeAnswer(d, kLimits).error().code, Code::kStale);
  d.generation = 8;
  EXPECT_TRUE(DecodeAnswer(d, kLimits).has_value());
  d.op = 15;
  EXPECT_EQ(DecodeAnswer(d, kLimits).error().code, Code::kInvalid);
}

TEST(Descriptor, AnOlderSessionHasNoLaterCommands) {
  DescriptorLimits limits = kLimits;
  Descriptor d = Request();
  d.op = static_cast<std::uint16_t>(Command::kQueryCancel);
  EXPECT_TRUE(DecodeRequest(d, limits).has_value());
  d.op = 13;
  EXPECT_FALSE(DecodeRequest(d, limits).has_value());
  limits.abi = d.abi = 1;
  d.op = static_cast<std::uint16_t>(Command::kQueryPoll);
  EXPECT_EQ(DecodeRequest(d, limits).error().code, Code::kInvalid);
  d.op = static_cast<std::uint16_t>(Command::kRelease);
  EXPECT_TRUE(DecodeRequest(d, limits).has_value());
}

TEST(AnswerStatus, CodesSurviveTheWayThroughAStatus) {
  for (const Code code : {Code::kInvalid, Code::kNotFound, Code::kBusy, Code::kTimedOut, Code::kUnavailable,
                          Code::kRefused, Code::kStale, Code::kCorrupt, Code::kExhausted, Code::kUnsupported}) {
    EXPECT_EQ(CodeOf(StatusOf(code)), code);
  }
  EXPECT_EQ(CodeOf(AnswerStatus::kOk), std::nullopt);
  EXPECT_EQ(CodeOf(AnswerStatus::kNotYet), Code::kBusy);
  EXPECT_EQ(CodeOf(AnswerStatus::kGone), Code::kNotFound);
}

TEST(SessionGeometry, PartsDoNotOverlapAndBadSizesAreRefused) {
  const SessionGeometry geometry;
  ASSERT_TRUE(geometry.Validate());
  EXPECT_EQ(geometry.answer_ring_offset(), geometry.request_ring_offset() + 4096);
  EXPECT_EQ(geometry.arena_offset(), 3U * 4096U);
  EXPECT_EQ(geometry.total_bytes(), 3U * 4096U + (1U << 20U));
  EXPECT_FALSE((SessionGeometry{.ring_entries = 48}.Validate()));
  EXPECT_FALSE((SessionGeometry{.ring_entries = 0}.Validate()));
  EXPECT_FALSE((SessionGeometry{.slot_count = 2}.Validate()));
  EXPECT_FALSE((SessionGeometry{.slot_bytes = 5000}.Validate()));
}

}  // namespace
}  // namespace orbitkv::wire
