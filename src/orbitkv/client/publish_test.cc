#include "orbitkv/client/client_fixture.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/fake_device.h"

namespace orbitkv::client {
namespace {

class PublishTest : public ClientTest {
 protected:
  JobId Start(std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> ids) {
    return client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}}).value();
  }
  // Answers nothing of this command until the script is taken away.
  void Swallow(wire::Command command) {
    manager_->SetScript([this, command](channel::ServerSession&, const channel::ReceivedRequest& request) {
      if (request.command != command) return false;
      swallowed_.push_back(request.handle);
      return true;
    });
  }
  std::vector<channel::RequestHandle> swallowed_;
};

TEST_F(PublishTest, ASlotHoldsTheBytesAndAChecksumOfTheirIdentity) {
  StartManager();
  Connect();
  pages_.Fill(3);
  const auto hashes = Hashes(2);
  const Completion done = Publish(hashes, Ids(2, 6));
  EXPECT_TRUE(done.ok);
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kStored));
  EXPECT_EQ(done.bytes, 2 * 3 * 4096U);
  const auto bytes = pages_.Block(7);
  EXPECT_EQ(std::memcmp(manager_->pool() + manager_->OffsetOf(hashes[1]), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(manager_->reservations(), 0U);
}

TEST_F(PublishTest, BlocksThatAreThereAreNotCopiedAgain) {
  StartManager();
  Connect();
  const auto hashes = Hashes(4);
  Publish(std::span(hashes).first(2), Ids(2));
  const Completion done = Publish(hashes, Ids(4));
  EXPECT_EQ(done.outcomes, (std::vector<std::uint8_t>{2, 2, 1, 1}));
  EXPECT_TRUE(done.ok);
  EXPECT_EQ(done.bytes, 2 * 3 * 4096U);
}

TEST_F(PublishTest, WhatDoesNotFitIsLost) {
  pages_ = Pages(1, 32, 64 * 1024);
  StartManager({.pool_bytes = 256 * 1024});
  Connect();
  const Completion done = Publish(Hashes(6), Ids(6));
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(done.outcomes, (std::vector<std::uint8_t>{1, 1, 1, 3, 3, 3}));
}

TEST_F(PublishTest, ALongJobIsSavedPieceByPiece) {
  pages_ = Pages(1, 1200, 64);
  StartManager();
  Connect();
  pages_.Fill(5);
  const auto hashes = Hashes(1200);
  EXPECT_EQ(Publish(hashes, Ids(1200)).outcomes, Outcomes(1200, Outcome::kStored));
  EXPECT_EQ(manager_->CountOf("PublishReserve"), 3U);
  EXPECT_EQ(manager_->stored(), 1200U);
}

TEST_F(PublishTest, ACancelledQueuedJobIsNeverRead) {
  StartManager();
  Connect();
  Swallow(wire::Command::kPublishReserve);
  const JobId running = Start(Hashes(1, 1), Ids(1));
  const JobId queued = Start(Hashes(1, 2), Ids(1));
  ASSERT_TRUE(manager_->Seen("PublishReserve"));
  EXPECT_TRUE(client_->CancelPublish(queued).value());
  EXPECT_EQ(Finished(queued).value().outcomes, Outcomes(1, Outcome::kLost));
  // The running one waits for its reservation: nothing was read, and nothing will be.
  EXPECT_TRUE(client_->CancelPublish(running).value());
  EXPECT_TRUE(client_->WaitSourcesFree(std::vector{running}, 0).value());
  EXPECT_EQ(Counter("publish_jobs_cancelled"), 1U);
  EXPECT_FALSE(client_->CancelPublish(JobId(999)).value());
  manager_->Stop();  // ends the wait for the reservation
}

TEST_F(PublishTest, AReservationThatComesAfterTheCancelIsGivenBack) {
  StartManager();
  Connect();
  manager_->Hold(true);
  const JobId job = Start(Hashes(2), Ids(2));
  EXPECT_TRUE(client_->WaitSourcesFree(std::vector{job}, 0).value());
  manager_->Hold(false);
  const Completion done = Finished(job).value();
  EXPECT_EQ(done.bytes, 0U);
  if (manager_->CountOf("PublishReserve") > 0) {
    EXPECT_TRUE(manager_->Seen("PublishAbort"));
  }
  EXPECT_EQ(manager_->CountOf("PublishCommit"), 0U);
}

TEST_F(PublishTest, ALateReservationIsAborted) {
  options_.call_deadline_ms = 300;
  StartManager();
  Connect();
  Publish(Hashes(1, 9), Ids(1));  // the publish session is open
  std::atomic<bool> late{false};
  channel::RequestHandle handle;
  channel::ServerSession* publish = nullptr;
  manager_->SetScript([&](channel::ServerSession& session, const channel::ReceivedRequest& request) {
    if (request.command == wire::Command::kPublishReserve) {
      handle = request.handle;
      publish = &session;
      return true;
    }
    // A ping of the suspecting client comes after the deadline: only now the reservation is answered.
    if (request.command == wire::Command::kPing && publish != nullptr && !late.exchange(true)) {
      const wire::ReserveEntry entry{0, 1, pages_.Layout().slot_bytes(), 2};
      publish->Answer(handle, wire::AnswerStatus::kOk, 4242, 0, std::as_bytes(std::span(&entry, 1)));
      publish->FlushWake();
    }
    return false;
  });
  const Completion done = Finished(Start(Hashes(1), Ids(1))).value();
  EXPECT_EQ(done.outcomes, Outcomes(1, Outcome::kLost));
  EXPECT_GE(Counter("suspicions"), 1U);
  EXPECT_TRUE(manager_->Seen("PublishAbort"));
  EXPECT_TRUE(WaitForState(State::kUp));
}

TEST_F(PublishTest, OnlyARunningCopyHoldsItsSources) {
  auto device = std::make_unique<doubles::FakeDeviceEngine>();
  doubles::FakeDeviceEngine& engine = *device;
  StartManager();
  Connect(std::move(device));
  Swallow(wire::Command::kPublishCommit);
  const JobId job = Start(Hashes(2), Ids(2));
  while (!engine.Step()) std::this_thread::yield();
  EXPECT_FALSE(client_->CancelPublish(job).value());
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{job}, os::DeadlineAfter(1'000'000)).value());
  engine.RunUntilIdle();
  // The commit is never answered, and that does not keep the pages.
  EXPECT_TRUE(client_->WaitSourcesFree(std::vector{job}, os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_TRUE(manager_->Seen("PublishCommit"));
  manager_->Stop();
  EXPECT_EQ(Finished(job).value().outcomes, Outcomes(2, Outcome::kLost));
}

TEST_F(PublishTest, ABrokenDeviceNeverReportsItsPagesFree) {
  auto device = std::make_unique<doubles::FakeDeviceEngine>();
  doubles::FakeDeviceEngine& engine = *device;
  StartManager();
  Connect(std::move(device));
  const JobId job = Start(Hashes(2), Ids(2));
  while (!engine.Step()) std::this_thread::yield();
  engine.Break();
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{job}, os::DeadlineAfter(5'000'000)).value());
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{job}, 0).value());
}

TEST_F(PublishTest, AnEndWaitsForACopyAsLongAsItIsToldAndThenFails) {
  options_.drain_patience_ms = 20;
  auto device = std::make_unique<doubles::FakeDeviceEngine>();
  doubles::FakeDeviceEngine& engine = *device;
  StartManager();
  Connect(std::move(device));
  const JobId job = Start(Hashes(2), Ids(2));
  ASSERT_TRUE(Eventually([&] { return engine.Step(); }));
  const Status stopped = client_->Stop();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::kIo);
  EXPECT_EQ(client_->StateOf(job).value(), JobState::kEnqueued);
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{job}, 0).value());
  EXPECT_EQ(manager_->CountOf("PublishAbort") + manager_->CountOf("PublishCommit"), 0U);
}

TEST_F(PublishTest, BadSlotsAreRefusedAndTheReservationAborted) {
  StartManager();
  Connect();
  const std::uint32_t slot = pages_.Layout().slot_bytes();
  const std::vector<wire::ReserveEntry> answers[] = {{{8U << 20U, 1, slot, 2}},               // behind the pool
                                                     {{0, 1, slot + 64, 2}},                  // of another size
                                                     {{0, 1, slot, 2}, {8192, 2, slot, 2}}};  // one too many
  for (std::size_t i = 0; i < std::size(answers); ++i) {
    manager_->SetScript([&, i](channel::ServerSession& session, const channel::ReceivedRequest& request) {
      if (request.command != wire::Command::kPublishReserve) return false;
      session.Answer(request.handle, wire::AnswerStatus::kOk, 70 + i, 0, std::as_bytes(std::span(answers[i])));
      return true;
    });
    EXPECT_EQ(Publish(Hashes(1), Ids(1)).outcomes, Outcomes(1, Outcome::kLost));
    EXPECT_TRUE(manager_->Seen("PublishAbort", i + 1));
    EXPECT_EQ(Counter("bad_answers"), i + 1);
  }
  EXPECT_EQ(manager_->CountOf("PublishCommit"), 0U);
  manager_->SetScript(nullptr);
}

TEST_F(PublishTest, SavesThatWaitTooLongForAManagerAreDropped) {
  options_.save_max_age_ms = 20;
  StartClient();
  ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
  const JobId job = Start(Hashes(2), Ids(2));
  EXPECT_EQ(Finished(job).value().outcomes, Outcomes(2, Outcome::kLost));
  EXPECT_EQ(Counter("publish_jobs_stale"), 1U);
}

TEST_F(PublishTest, AFullQueueRefuses) {
  options_.max_queued_saves = 2;
  options_.save_max_age_ms = 20'000;
  StartClient();
  ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
  const auto hashes = Hashes(1);
  const auto ids = Ids(1);
  Start(hashes, ids);
  Start(hashes, ids);
  EXPECT_EQ(client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}}).error().code, Code::kBusy);
  EXPECT_EQ(Counter("publish_jobs_refused"), 1U);
}

TEST_F(PublishTest, StopSavesWhatIsQueuedWithinItsDeadline) {
  StartManager();
  Connect();
  std::vector<JobId> jobs;
  for (std::uint64_t i = 0; i < 8; ++i) jobs.push_back(Start(Hashes(1, 100 + i), Ids(1)));
  static_cast<void>(client_->Stop(os::DeadlineAfter(10 * kSecondNs)));
  EXPECT_EQ(manager_->stored(), 8U);
  for (const JobId job : jobs) EXPECT_TRUE(Finished(job).value().ok);
  EXPECT_EQ(manager_->CountOf("unregister"), 2U);
}

TEST_F(PublishTest, WithoutALayoutOrTheRoleNothingIsPublished) {
  StartClient();
  EXPECT_EQ(client_->Publish({.hashes = Hashes(1), .block_ids = Ids(1), .parent = {}}).error().code, Code::kInvalid);
  client_.reset();
  options_.role = Role::kScheduler;
  StartClient();
  EXPECT_EQ(client_->RegisterLayout(pages_.Layout()).error().code, Code::kInvalid);
}

}  // namespace
}  // namespace orbitkv::client
