// A client that breaks every rule, against the Manager's end of a session.
#include <cstring>
#include <gtest/gtest.h>
#include <unistd.h>

#include "orbitkv/base/prng.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::channel {
namespace {

using wire::AnswerStatus;
using wire::Command;

constexpr std::uint64_t kNow = 1000;
constexpr std::uint32_t kSlot = 4096;

class HostileClient : public testing::Test {
 protected:
  void SetUp() override {
    server_ = ServerSession::Create({.session = SessionId(5), .client_token = 1, .geometry = geometry_}).value();
    memory_ = os::Mapping::Map(server_->session_fd(), geometry_.total_bytes(), os::Access::kReadWrite).value();
    requests_ = RingProducer(memory_.data() + geometry_.request_ring_offset(), geometry_.ring_entries,
                             &header().request_head, &header().request_tail);
    answers_ = RingConsumer(memory_.data() + geometry_.answer_ring_offset(), geometry_.ring_entries,
                            &header().answer_head, &header().answer_tail);
  }
  wire::SessionHeader& header() { return *reinterpret_cast<wire::SessionHeader*>(memory_.data()); }
  std::byte* Slot(std::uint32_t index) { return memory_.data() + geometry_.arena_offset() + index * kSlot; }
  // A request in good order; tests spoil it.
  wire::Descriptor Good(Command command = Command::kPing) {
    wire::Descriptor d;
    d.abi = wire::kAbiMax;
    d.op = static_cast<std::uint16_t>(command);
    d.flags = wire::kLastChunk;
    d.generation = generation_;
    d.request_id = generation_;
    d.session_epoch = 5;
    d.deadline_ns = kNow + 1;
    generation_ += 2;
    return d;
  }
  // What the Manager says to one descriptor that it must not execute.
  AnswerStatus Refusal(const wire::Descriptor& request) {
    EXPECT_TRUE(requests_.Push(request));
    EXPECT_FALSE(server_->Next(kNow).has_value());
    return Answer().status;
  }
  struct Taken {
    AnswerStatus status = AnswerStatus::kOk;
    wire::Descriptor descriptor;
  };
  Taken Answer() {
    Taken taken;
    EXPECT_EQ(answers_.Take(&taken.descriptor), Pop::kGot);
    taken.status = static_cast<AnswerStatus>(taken.descriptor.op);
    return taken;
  }
  // The session still serves a request in good order.
  void ExpectServed() {
    ASSERT_TRUE(requests_.Push(Good()));
    const auto request = server_->Next(kNow);
    ASSERT_TRUE(request.has_value());
    server_->Answer(request->handle, AnswerStatus::kOk);
    EXPECT_EQ(Answer().status, AnswerStatus::kOk);
  }

  wire::SessionGeometry geometry_{.slot_bytes = kSlot};
  std::unique_ptr<ServerSession> server_;
  os::Mapping memory_;
  RingProducer requests_;
  RingConsumer answers_;
  std::uint32_t generation_ = 1;
};

TEST_F(HostileClient, StaleAndEvenGenerationsAreRefused) {
  ExpectServed();
  wire::Descriptor d = Good();
  d.generation -= 2;
  EXPECT_EQ(Refusal(d), AnswerStatus::kStale);
  d.generation += 4;
  EXPECT_EQ(Refusal(d), AnswerStatus::kStale);
  d.generation -= 1;
  EXPECT_EQ(Refusal(d), AnswerStatus::kStale);
  EXPECT_EQ(server_->stats().malformed, 3U);
  generation_ -= 2;
  ExpectServed();
}

TEST_F(HostileClient, MalformedDescriptorsAreAnsweredAndTheSessionGoesOn) {
  wire::Descriptor d = Good();
  d.session_epoch = 6;
  EXPECT_EQ(Refusal(d), AnswerStatus::kStale);
  d = Good();
  d.magic = 0;
  EXPECT_EQ(Refusal(d), AnswerStatus::kInvalid);
  d = Good();
  d.op = 999;
  EXPECT_EQ(Refusal(d), AnswerStatus::kInvalid);
  d = Good();
  d.arena_offset = geometry_.arena_bytes();
  d.arena_length = 1;
  EXPECT_EQ(Refusal(d), AnswerStatus::kInvalid);
  d = Good();
  d.arena_offset = 0;
  d.arena_length = kSlot + 1;
  EXPECT_EQ(Refusal(d), AnswerStatus::kInvalid);
  ExpectServed();
}

TEST_F(HostileClient, NoiseNeverEndsTheManager) {
  Prng prng(11);
  std::size_t sessions = 1;
  for (int i = 0; i < 20'000; ++i) {
    if (server_->broken()) {
      EXPECT_EQ(server_->open_requests(), 0U);
      ++sessions;
      generation_ = 1;
      SetUp();
    }
    wire::Descriptor d = prng.Below(2) == 0 ? Good() : wire::Descriptor{};
    auto* bytes = reinterpret_cast<unsigned char*>(&d);
    for (std::uint64_t n = prng.Below(6); n > 0; --n) bytes[prng.Below(64)] = static_cast<unsigned char>(prng.Next());
    ASSERT_TRUE(requests_.Push(d));
    while (const auto request = server_->Next(kNow)) {
      server_->Answer(request->handle, AnswerStatus::kOk, 0, 0, request->args);
    }
    wire::Descriptor answer;
    while (answers_.Take(&answer) == Pop::kGot) EXPECT_TRUE(wire::IsAnswerStatus(answer.op));
  }
  EXPECT_GT(sessions, 3U);
  EXPECT_EQ(server_->open_requests(), 0U);
}

TEST_F(HostileClient, WhoIsMostlyMalformedLosesItsTurnsAndWhoErrsDoesNot) {
  wire::Descriptor answer;
  const auto send = [&](bool malformed) {
    wire::Descriptor d = Good();
    if (malformed) d.magic = 0;
    ASSERT_TRUE(requests_.Push(d));
    if (const auto request = server_->Next(kNow)) server_->Answer(request->handle, AnswerStatus::kOk);
    while (answers_.Take(&answer) == Pop::kGot) {
    }
  };
  for (std::uint32_t i = 0; i < 10 * ServerSession::kMostBlame; ++i) send(i % (2 * ServerSession::kBlamePerFault) == 0);
  EXPECT_FALSE(server_->broken());
  constexpr std::uint32_t kFaults = ServerSession::kMostBlame / ServerSession::kBlamePerFault;
  for (std::uint32_t i = 0; i < kFaults && !server_->broken(); ++i) send(true);
  EXPECT_TRUE(server_->broken());
  ASSERT_TRUE(requests_.Push(Good()));
  EXPECT_FALSE(server_->HasRequests());
  EXPECT_FALSE(server_->Next(kNow).has_value());
}

TEST_F(HostileClient, CursorThatJumpsEndsTheService) {
  header().request_head = 1000;
  EXPECT_TRUE(server_->HasRequests());
  EXPECT_FALSE(server_->Next(kNow).has_value());
  EXPECT_TRUE(server_->broken());
  EXPECT_FALSE(server_->HasRequests());
}

TEST_F(HostileClient, WhoTakesNoAnswersGetsNoTurn) {
  for (std::uint32_t i = 0; i < geometry_.ring_entries; ++i) {
    ASSERT_TRUE(requests_.Push(Good()));
    const auto request = server_->Next(kNow);
    ASSERT_TRUE(request.has_value());
    server_->Answer(request->handle, AnswerStatus::kOk);
  }
  ASSERT_TRUE(requests_.Push(Good()));
  EXPECT_FALSE(server_->HasRequests());
  EXPECT_FALSE(server_->Next(kNow).has_value());
  header().answer_tail = 77;  // a cursor that was never there changes nothing
  EXPECT_FALSE(server_->HasRequests());
  header().answer_tail = 1;
  EXPECT_TRUE(server_->HasRequests());
  EXPECT_TRUE(server_->Next(kNow).has_value());
}

TEST_F(HostileClient, OpenRequestsAreBoundedByTheRing) {
  std::vector<ReceivedRequest> open;
  for (std::uint32_t i = 0; i < geometry_.ring_entries; ++i) {
    ASSERT_TRUE(requests_.Push(Good()));
    open.push_back(server_->Next(kNow).value());
  }
  ASSERT_TRUE(requests_.Push(Good()));
  EXPECT_FALSE(server_->Next(kNow).has_value());
  for (const auto& request : open) server_->Answer(request.handle, AnswerStatus::kOk);
  EXPECT_EQ(server_->open_requests(), 0U);
}

TEST_F(HostileClient, ChunksOutOfOrderAreRefusedAndDropTheAssembly) {
  const auto chunk = [this](std::uint64_t id, std::uint32_t number, bool last) {
    wire::Descriptor d = Good(Command::kQuerySubmit);
    d.request_id = id;
    d.flags = number << 16U | (last ? wire::kLastChunk : 0);
    d.arena_offset = 0;
    d.arena_length = kSlot;
    return d;
  };
  EXPECT_EQ(Refusal(chunk(900, 1, true)), AnswerStatus::kInvalid);  // without a beginning
  EXPECT_EQ(Refusal(chunk(901, 0, false)), AnswerStatus::kMoreChunks);
  EXPECT_EQ(Refusal(chunk(901, 2, false)), AnswerStatus::kInvalid);
  EXPECT_EQ(Refusal(chunk(901, 1, true)), AnswerStatus::kInvalid);  // dropped by the jump
  EXPECT_EQ(Refusal(chunk(902, 0, false)), AnswerStatus::kMoreChunks);
  EXPECT_EQ(Refusal(chunk(903, 0, false)), AnswerStatus::kMoreChunks);  // replaces the one before
  EXPECT_EQ(Refusal(chunk(902, 1, true)), AnswerStatus::kInvalid);
  wire::Descriptor other = chunk(903, 1, true);
  other.op = static_cast<std::uint16_t>(Command::kPublishReserve);  // another command half way
  EXPECT_EQ(Refusal(other), AnswerStatus::kInvalid);
  ASSERT_TRUE(requests_.Push(chunk(904, 0, false)));
  EXPECT_FALSE(server_->Next(kNow).has_value());
  EXPECT_EQ(Answer().status, AnswerStatus::kMoreChunks);
  ASSERT_TRUE(requests_.Push(chunk(904, 1, true)));
  const auto request = server_->Next(kNow);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->args.size(), 2U * kSlot);
}

TEST_F(HostileClient, AssemblyEndsAtItsDeadlineAndAtItsLimit) {
  wire::Descriptor d = Good(Command::kQuerySubmit);
  const std::uint64_t id = d.request_id;
  d.flags = 0;
  d.arena_offset = 0;
  d.arena_length = kSlot;
  EXPECT_EQ(Refusal(d), AnswerStatus::kMoreChunks);
  d.generation = generation_;
  generation_ += 2;
  d.flags = 1U << 16U | wire::kLastChunk;
  d.deadline_ns = kNow + 100;
  ASSERT_TRUE(requests_.Push(d));
  EXPECT_FALSE(server_->Next(kNow + 2).has_value());  // the first chunk's deadline counts
  EXPECT_EQ(Answer().status, AnswerStatus::kInvalid);

  AnswerStatus last = AnswerStatus::kMoreChunks;
  std::uint32_t number = 0;
  for (; last == AnswerStatus::kMoreChunks && number <= wire::kMaxArgumentBytes / kSlot; ++number) {
    d.generation = generation_;
    generation_ += 2;
    d.request_id = id + 1000;
    d.flags = number << 16U;
    last = Refusal(d);
  }
  EXPECT_EQ(last, AnswerStatus::kInvalid);
  EXPECT_EQ(number, wire::kMaxArgumentBytes / kSlot + 1);
}

TEST_F(HostileClient, AssemblyGoesWithTimeThoughItsSessionStaysSilent) {
  EXPECT_EQ(server_->NextDeadline(), os::kNoDeadline);
  wire::Descriptor d = Good(Command::kQuerySubmit);
  d.flags = 0;
  d.arena_offset = 0;
  d.arena_length = kSlot;
  EXPECT_EQ(Refusal(d), AnswerStatus::kMoreChunks);
  EXPECT_EQ(server_->NextDeadline(), kNow + 1);
  server_->Expire(kNow);
  EXPECT_EQ(server_->NextDeadline(), kNow + 1);
  server_->Expire(kNow + 1);
  EXPECT_EQ(server_->NextDeadline(), os::kNoDeadline);

  // A deadline that never comes keeps nothing for ever.
  d = Good(Command::kQuerySubmit);
  d.flags = 0;
  d.arena_offset = 0;
  d.arena_length = kSlot;
  d.deadline_ns = os::kNoDeadline;
  EXPECT_EQ(Refusal(d), AnswerStatus::kMoreChunks);
  EXPECT_EQ(server_->NextDeadline(), kNow + ServerSession::kLongestAssemblyNs);
}

TEST_F(HostileClient, RingsForNothingAreBoundedAndRequestsMakeUpForThem) {
  // Late for each of its requests, however many they are.
  for (std::uint32_t i = 0; i < 4 * ServerSession::kMostIdleRings; ++i) {
    ExpectServed();
    ASSERT_FALSE(server_->Rang()) << i;
    ASSERT_FALSE(server_->Rang()) << i;
  }
  EXPECT_EQ(server_->stats().idle_rings, 4U * ServerSession::kMostIdleRings);
  // A request that is there is a reason to ring, taken or not.
  ASSERT_TRUE(requests_.Push(Good()));
  for (std::uint32_t i = 0; i < 2 * ServerSession::kMostIdleRings; ++i) ASSERT_FALSE(server_->Rang()) << i;
  const auto request = server_->Next(kNow);
  ASSERT_TRUE(request.has_value());
  server_->Answer(request->handle, AnswerStatus::kOk);
  EXPECT_EQ(Answer().status, AnswerStatus::kOk);

  std::uint32_t rings = 1;
  while (rings < 2 * ServerSession::kMostIdleRings && !server_->Rang()) ++rings;
  EXPECT_GE(rings, ServerSession::kMostIdleRings - 1);
  EXPECT_LE(rings, ServerSession::kMostIdleRings + 1);
  rings = 1;
  while (rings < ServerSession::kMostIdleRings && !server_->Rang()) ++rings;
  EXPECT_EQ(rings, ServerSession::kIdleRingsAfterMute);
  ExpectServed();
}

TEST_F(HostileClient, ArgumentsCannotChangeAfterTheyWereTaken) {
  wire::Descriptor d = Good(Command::kQuerySubmit);
  d.arena_offset = kSlot;
  d.arena_length = 8;
  std::memset(Slot(1), 1, 8);
  ASSERT_TRUE(requests_.Push(d));
  const auto request = server_->Next(kNow);
  ASSERT_TRUE(request.has_value());
  std::memset(Slot(1), 2, 8);
  EXPECT_EQ(request->args[7], std::byte{1});
}

TEST_F(HostileClient, AnswersNeedAPlaceAndFetchesNeedAnAnswer) {
  const std::vector<std::byte> payload(3 * kSlot);
  ASSERT_TRUE(requests_.Push(Good(Command::kRestorePlan)));  // without a slot
  auto request = server_->Next(kNow);
  server_->Answer(request->handle, AnswerStatus::kOk, 0, 0, payload);
  EXPECT_EQ(Answer().status, AnswerStatus::kInvalid);

  wire::Descriptor fetch = Good(Command::kRestorePlan);
  fetch.flags = wire::kFetch | 1U << 16U;
  fetch.arena_offset = 0;
  EXPECT_EQ(Refusal(fetch), AnswerStatus::kGone);

  wire::Descriptor d = Good(Command::kRestorePlan);
  d.arena_offset = 0;
  ASSERT_TRUE(requests_.Push(d));
  request = server_->Next(kNow);
  server_->Answer(request->handle, AnswerStatus::kOk, 0, 0, payload);
  EXPECT_NE(Answer().descriptor.flags & wire::kMoreAnswer, 0U);
  fetch = Good(Command::kRestorePlan);
  fetch.request_id = d.request_id;
  fetch.arena_offset = 0;
  fetch.flags = wire::kFetch | 9U << 16U;  // behind the end
  EXPECT_EQ(Refusal(fetch), AnswerStatus::kInvalid);
  fetch.generation = generation_;
  generation_ += 2;
  fetch.flags = wire::kFetch | 2U << 16U;
  EXPECT_EQ(Refusal(fetch), AnswerStatus::kOk);
  fetch.generation = generation_;
  generation_ += 2;
  EXPECT_EQ(Refusal(fetch), AnswerStatus::kGone);  // the last chunk ended it
}

TEST_F(HostileClient, FullDoorbellDoesNotKeepTheDispatcherAwakeOrAsleep) {
  const auto waiter = DispatcherWaiter::Create({.incarnation = {1, 2}, .spin_ns = 0}).value();
  ASSERT_TRUE(waiter->Watch(*server_));
  const std::uint64_t most = 0xfffffffffffffffeULL;
  ASSERT_EQ(::write(server_->doorbell_fd(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  waiter->Sleep(os::kNoDeadline, [] { return false; });  // the edge
  ASSERT_EQ(waiter->rung().size(), 1U);
  EXPECT_EQ(waiter->rung()[0], server_->id());
  const std::uint64_t until = os::DeadlineAfter(2'000'000);
  while (os::MonotonicNs() < until) waiter->Sleep(until, [] { return false; });
  EXPECT_LE(waiter->sleeps(), 3U);
  waiter->Notify();
  waiter->Sleep(os::kNoDeadline, [] { return false; });
  EXPECT_TRUE(waiter->rung().empty());
}

}  // namespace
}  // namespace orbitkv::channel
