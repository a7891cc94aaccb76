#include <algorithm>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/base/prng.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/testing/fake_manager.h"

namespace orbitkv::channel {
namespace {

using testing::FakeManager;

const FakeManager::Options kEcho{.echo = true};

std::vector<std::byte> Noise(std::size_t size, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.Next());
  return bytes;
}

std::uint64_t Soon() { return os::DeadlineAfter(10'000'000'000U); }

bool Same(std::span<const std::byte> a, std::span<const std::byte> b) { return std::ranges::equal(a, b); }

TEST(Session, WelcomeSaysWhoTheManagerIs) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  EXPECT_EQ(client->incarnation(), (Incarnation{7, 9}));
  EXPECT_FALSE(client->epoch().is_none());
  EXPECT_EQ(client->manager_pid(), ::getpid());
  EXPECT_EQ(client->slot_capacity(), 64U << 10U);
  EXPECT_EQ(client->pool_bytes(), FakeManager::Options().pool_bytes);
  EXPECT_EQ(os::FileBytes(client->pool_fd()).value(), FakeManager::Options().pool_bytes);
  EXPECT_FALSE(client->pool_named());
  const auto second = manager.Connect();
  EXPECT_NE(second->epoch(), client->epoch());
  EXPECT_NE(second->token(), client->token());
}

TEST(Session, PingComesBackManyTimes) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  // Far more than the ring has entries, so that every cursor and slot is used again.
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto answer = client->Call({.scalar0 = i, .scalar1 = ~i, .deadline_ns = Soon()});
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(answer->ok());
    EXPECT_EQ(answer->scalar0, i);
    EXPECT_EQ(answer->scalar1, ~i);
  }
  EXPECT_EQ(client->pending(), 0U);
  EXPECT_EQ(client->stats().foreign_answers, 0U);
}

TEST(Session, ArgumentsAndAnswersOfEverySizeArriveWhole) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  const std::size_t slot = client->slot_capacity();
  for (const std::size_t size : {std::size_t{1}, slot - 1, slot, slot + 1, 2 * slot, 10 * slot + 17}) {
    const auto args = Noise(size, size);
    const auto answer =
        client->Call({.command = Command::kQuerySubmit, .scalar0 = size, .args = args, .deadline_ns = Soon()});
    ASSERT_TRUE(answer.has_value()) << size;
    EXPECT_EQ(answer->scalar0, size);
    EXPECT_TRUE(Same(answer->payload.bytes(), args)) << size;
  }
  EXPECT_EQ(client->pending(), 0U);
}

TEST(Session, ThreadsWaitAtOnceAndEachGetsItsOwnAnswer) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  ConnectOptions options = manager.Client();
  options.spin_ns = 0;
  const auto client = ClientSession::Connect(options).value();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&client, &wrong, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        // Every seventh is larger than a slot, so that assemblies of several threads meet.
        const auto args = Noise(i % 7 == 0 ? client->slot_capacity() + 100 * t : 64, i * 8 + t);
        const auto answer = client->Call(
            {.command = Command::kQuerySubmit, .scalar0 = t, .scalar1 = i, .args = args, .deadline_ns = Soon()});
        if (!answer || answer->scalar0 != t || answer->scalar1 != i || !Same(answer->payload.bytes(), args)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(client->pending(), 0U);
}

TEST(Session, FullRingIsBusyAndNeverLostCommandsStillFit) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  manager.Hold(true);
  std::vector<RequestId> ids;
  for (;;) {
    const auto id = client->Post({.deadline_ns = Soon()});
    if (!id) {
      EXPECT_EQ(id.error().code, Code::kBusy);
      break;
    }
    ids.push_back(*id);
  }
  EXPECT_EQ(ids.size(), 64U - wire::kReservedEntries);
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(client->PostNeverLost(Command::kRelease, 2, i));
  EXPECT_EQ(client->unacknowledged(), 40U);
  manager.Hold(false);
  for (const RequestId id : ids) EXPECT_TRUE(client->Wait(id, Soon()).value().ok());
  // Their answers are taken by whoever calls in.
  while (client->unacknowledged() > 0) ASSERT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  EXPECT_EQ(client->pending(), 0U);
}

TEST(Session, FullArenaIsBusyUntilAnswersAreThere) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  manager.Hold(true);
  const auto args = Noise(100, 1);
  std::vector<RequestId> ids;
  while (const auto id = client->Post({.command = Command::kQuerySubmit, .args = args, .deadline_ns = Soon()})) {
    ids.push_back(*id);
  }
  EXPECT_EQ(ids.size(), 16U - wire::kReservedSlots);
  EXPECT_TRUE(client->PostNeverLost(Command::kRestoreEnd, 1, 1, args));
  manager.Hold(false);
  for (const RequestId id : ids) EXPECT_TRUE(Same(client->Wait(id, Soon()).value().payload.bytes(), args));
  EXPECT_TRUE(client->Post({.command = Command::kQuerySubmit, .args = args, .deadline_ns = Soon()}).has_value());
}

TEST(Session, TimedOutWaitLeavesTheRequestToTheNextStep) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  manager.Hold(true);
  const RequestId id = client->Post({.scalar0 = 5, .deadline_ns = Soon()}).value();
  EXPECT_EQ(client->Wait(id, 0).error().code, Code::kTimedOut);
  EXPECT_EQ(client->Wait(id, os::DeadlineAfter(1'000'000)).error().code, Code::kTimedOut);
  EXPECT_FALSE(client->TryTake(id).value().has_value());
  manager.Hold(false);
  EXPECT_EQ(client->Wait(id, Soon()).value().scalar0, 5U);
  EXPECT_EQ(client->TryTake(id).error().code, Code::kStale);
}

// Who looks between two steps of an engine must not give its processor away, as a sleep until a past time does.
TEST(Session, AWaitWhoseTimeIsOverDoesNotSleep) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  manager.Hold(true);
  const RequestId id = client->Post({.scalar0 = 5, .deadline_ns = Soon()}).value();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client->Wait(id, os::MonotonicNs()).error().code, Code::kTimedOut);
  EXPECT_EQ(client->stats().sleeps, 0U);
  EXPECT_EQ(client->Wait(id, os::DeadlineAfter(1'000'000)).error().code, Code::kTimedOut);
  EXPECT_GT(client->stats().sleeps, 0U);
  manager.Hold(false);
  EXPECT_EQ(client->Wait(id, Soon()).value().scalar0, 5U);
}

TEST(Session, ExpiredRequestIsNotExecuted) {
  std::atomic<int> executed{0};
  FakeManager manager(kEcho);
  manager.SetScript([&executed](ServerSession&, const ReceivedRequest&) {
    ++executed;
    return false;
  });
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  const RequestId id = client->Post({.deadline_ns = 1}).value();
  EXPECT_EQ(client->Wait(id, Soon()).value().status, AnswerStatus::kTimedOut);
  EXPECT_EQ(executed, 0);
}

// The Manager takes a request in time and answers after the caller has given up.
TEST(Session, LateSuccessGoesToTheHandlerOnce) {
  std::atomic<bool> taken{false};
  ServerSession* open_session = nullptr;
  RequestHandle open;
  FakeManager manager(kEcho);
  manager.SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kPublishReserve) {
      if (request.scalar0 == 1) open_session->Answer(open, AnswerStatus::kOk, 1234);
      return false;
    }
    open_session = &session;
    open = request.handle;
    taken = true;
    return true;
  });
  ASSERT_TRUE(manager.Start());
  std::vector<std::uint64_t> late;
  ConnectOptions options = manager.Client();
  ClientSession* raw = nullptr;
  options.late_answer = [&](const LateAnswer& answer) {
    EXPECT_EQ(answer.command, Command::kPublishReserve);
    EXPECT_EQ(answer.request_scalar1, 8U);
    late.push_back(answer.answer->scalar0);
    EXPECT_TRUE(raw->PostNeverLost(Command::kPublishAbort, answer.answer->scalar0, 0));
  };
  const auto client = ClientSession::Connect(options).value();
  raw = client.get();
  const auto args = Noise(10, 1);
  const RequestId id =
      client->Post({.command = Command::kPublishReserve, .scalar1 = 8, .args = args, .deadline_ns = Soon()}).value();
  while (!taken) ASSERT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  client->Abandon(id);
  EXPECT_EQ(client->TryTake(id).error().code, Code::kStale);
  EXPECT_TRUE(late.empty());
  ASSERT_TRUE(client->Call({.scalar0 = 1, .deadline_ns = Soon()}).has_value());
  while (client->unacknowledged() > 0) ASSERT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  EXPECT_EQ(late, std::vector<std::uint64_t>{1234});
  EXPECT_EQ(client->stats().late_answers, 1U);
}

TEST(Session, NeverLostIsSentAgainUntilItIsAcknowledged) {
  int refusals = 3;
  std::vector<std::uint64_t> executed;
  FakeManager manager(kEcho);
  manager.SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kRelease) return false;
    if (refusals-- > 0) {
      session.Answer(request.handle, AnswerStatus::kBusy);
      return true;
    }
    executed.push_back(request.scalar1);
    return false;
  });
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  ASSERT_TRUE(client->PostNeverLost(Command::kRelease, 2, 42));
  while (client->unacknowledged() > 0) ASSERT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
  EXPECT_EQ(client->stats().resent, 3U);
  manager.Stop();
  EXPECT_EQ(executed, std::vector<std::uint64_t>{42});
}

TEST(Session, ShutdownEndsEveryWait) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  manager.Hold(true);
  const RequestId id = client->Post({.deadline_ns = os::kNoDeadline}).value();
  std::thread waiter([&] { EXPECT_EQ(client->Wait(id, os::kNoDeadline).error().code, Code::kUnavailable); });
  client->Shutdown();
  waiter.join();
  EXPECT_EQ(client->Post({.deadline_ns = Soon()}).error().code, Code::kUnavailable);
  EXPECT_EQ(client->Exchange(1, {}, Soon()).error().code, Code::kUnavailable);
}

TEST(Session, LifecycleFramesAreAnsweredRefusedAndTimedOut) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  const auto payload = Noise(3U << 20U, 5);
  const auto reply = client->Exchange(1, payload, Soon()).value();
  EXPECT_FALSE(reply.refused);
  EXPECT_EQ(reply.payload, payload);
  EXPECT_EQ(client->Exchange(FakeManager::kIgnoredKind, {}, os::DeadlineAfter(1'000'000)).error().code,
            Code::kTimedOut);
  EXPECT_TRUE(client->Exchange(FakeManager::kRefusedKind, {}, Soon()).value().refused);
  EXPECT_TRUE(client->Exchange(2, {}, Soon()).has_value());
}

TEST(Session, ChildOfAForkIsRefusedAndTheParentGoesOn) {
  FakeManager manager(kEcho);
  ASSERT_TRUE(manager.Start());
  const auto client = manager.Connect();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = client->Post({.deadline_ns = Soon()}).error().code == Code::kRefused &&
                         client->Exchange(1, {}, Soon()).error().code == Code::kRefused &&
                         client->Call({.deadline_ns = Soon()}).error().code == Code::kRefused;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->Call({.deadline_ns = Soon()}).has_value());
}

}  // namespace
}  // namespace orbitkv::channel
