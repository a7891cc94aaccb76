#include <sys/mman.h>

#include "orbitkv/client/client_fixture.h"
#include "orbitkv/testing/fake_device.h"

namespace orbitkv::client {
namespace {

class RestoreTest : public ClientTest {
 protected:
  // Blocks 0 to count-1 are in the pool, the pages are cleared, and a grant for all of them is begun.
  GrantId Prepare(std::uint32_t count) {
    hashes_ = Hashes(count);
    pages_.Fill(7);
    for (std::uint32_t i = 0; i < count; ++i) expected_.push_back(pages_.Block(i));
    EXPECT_EQ(Publish(hashes_, Ids(count)).outcomes, Outcomes(count, Outcome::kStored));
    pages_.Clear();
    const Answer answer = Ask(hashes_);
    EXPECT_EQ(answer.found_blocks, count);
    return Begin(answer);
  }
  std::vector<state::BlockHash> hashes_;
  std::vector<std::vector<std::byte>> expected_;
};

TEST_F(RestoreTest, SmallRestoreRunsOnTheCallingThread) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(2);
  const JobId job = StartRestore(grant, hashes_, Ids(2, 10)).value();
  const Completion done = Finished(job).value();
  EXPECT_TRUE(done.ok) << done.error;
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kRestored));
  EXPECT_EQ(done.bytes, 2 * 3 * 4096U);
  EXPECT_EQ(pages_.Block(10), expected_[0]);
  EXPECT_EQ(pages_.Block(11), expected_[1]);
  EXPECT_TRUE(manager_->Seen("end ok"));
  EXPECT_EQ(manager_->grants(), 0U);
}

TEST_F(RestoreTest, LargeRestoreRunsOnTheCopyThreads) {
  pages_ = Pages(4, 32, 64 * 1024);
  StartManager();
  Connect();
  const GrantId grant = Prepare(12);
  const Completion done = Finished(StartRestore(grant, hashes_, Ids(12, 20)).value()).value();
  EXPECT_TRUE(done.ok) << done.error;
  for (std::uint32_t i = 0; i < 12; ++i) EXPECT_EQ(pages_.Block(20 + i), expected_[i]);
  EXPECT_EQ(Counter("restore_inline_jobs"), 0U);
}

TEST_F(RestoreTest, AMismatchedBlockIsWithdrawnBeforeItIsReported) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(3);
  manager_->pool()[manager_->OffsetOf(hashes_[1]) + 5000] ^= std::byte{1};
  const Completion done = Finished(StartRestore(grant, hashes_, Ids(3)).value()).value();
  EXPECT_EQ(manager_->CountOf("end mismatch"), 1U);
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(done.outcomes, (std::vector<std::uint8_t>{4, 5, 4}));
  EXPECT_EQ(Counter("mismatched_blocks"), 1U);
  EXPECT_EQ(Ask(hashes_, "again").found_blocks, 1U);
}

TEST_F(RestoreTest, APlanThatIsNotThereYetIsAskedForAgain) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(2);
  std::atomic<int> refused{0};
  manager_->SetScript([&](channel::ServerSession& session, const channel::ReceivedRequest& request) {
    if (request.command != wire::Command::kRestorePlan || refused == 3) return false;
    ++refused;
    session.Answer(request.handle, wire::AnswerStatus::kNotYet);
    return true;
  });
  EXPECT_TRUE(Finished(StartRestore(grant, hashes_, Ids(2)).value()).value().ok);
  EXPECT_EQ(Counter("restore_plan_retries"), 3U);
}

TEST_F(RestoreTest, AGrantThatNeverComesFailsAtTheLoadDeadline) {
  options_.load_deadline_ms = 30;
  StartManager();
  Connect();
  const Completion done = Finished(StartRestore(GrantId(77), Hashes(2), Ids(2)).value()).value();
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kFailed));
  EXPECT_TRUE(manager_->Seen("end failed"));
  EXPECT_EQ(client_->state(), State::kUp);  // the Manager answered all the time
}

TEST_F(RestoreTest, ASilentManagerFailsTheRestoreAndBecomesSuspect) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(2);
  ASSERT_TRUE(manager_->Seen("RestoreBegin"));
  client_.reset();
  options_.load_deadline_ms = 30;
  options_.query_deadline_ms = 10;
  Connect();
  manager_->Hold(true);
  const Completion done = Finished(StartRestore(grant, hashes_, Ids(2)).value()).value();
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(client_->state(), State::kSuspect);
  manager_->Hold(false);
  EXPECT_TRUE(manager_->Seen("end failed"));
  EXPECT_TRUE(WaitForState(State::kUp));
}

TEST_F(RestoreTest, ThePlanOfAnotherManagerIsRefused) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(1);
  const auto job = client_->Restore(
      {.grant = grant, .hashes = hashes_, .block_ids = Ids(1), .incarnation = Incarnation{9, 9}, .tag = 5});
  const Completion done = Finished(job.value()).value();
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(done.tag, 5U);
  EXPECT_EQ(manager_->CountOf("RestorePlan"), 0U);
}

TEST_F(RestoreTest, RangesOutsideThePoolAreNeverTouched) {
  StartManager();
  Connect();
  const std::uint32_t slot = pages_.Layout().slot_bytes();
  const std::vector<wire::PlanEntry> plans[] = {
      {{(8U << 20U) - 64, 1, 1, slot, 0}},           // reaches past the end
      {{~0ULL - 63, 1, 1, slot, 0}},                 // wraps around
      {{8, 1, 1, slot, 0}},                          // no slot starts there
      {{0, 1, 1, slot + 8, 0}},                      // of another size
      {{0, 1, 1, slot, 0}, {8192, 1, 1, slot, 0}}};  // more blocks than asked for
  std::size_t bad = 0;
  for (const auto& plan : plans) {
    manager_->SetScript([&](channel::ServerSession& session, const channel::ReceivedRequest& request) {
      if (request.command != wire::Command::kRestorePlan) return false;
      session.Answer(request.handle, wire::AnswerStatus::kOk, plan.size(), 0, std::as_bytes(std::span(plan)));
      return true;
    });
    const Completion done = Finished(StartRestore(GrantId(5), Hashes(1), Ids(1)).value()).value();
    EXPECT_EQ(done.outcomes, Outcomes(1, Outcome::kFailed));
    EXPECT_EQ(Counter("bad_answers"), ++bad);
  }
  EXPECT_TRUE(manager_->Seen("end failed", std::size(plans)));
  manager_->SetScript(nullptr);
}

TEST_F(RestoreTest, ACopyInFlightOutlivesTheManagerAndDelaysTheReconnect) {
  auto device = std::make_unique<doubles::FakeDeviceEngine>();
  doubles::FakeDeviceEngine& engine = *device;
  StartManager();
  Connect();
  const GrantId grant = Prepare(2);
  ASSERT_TRUE(manager_->Seen("RestoreBegin"));
  client_.reset();  // its copies were made by the host engine
  Connect(std::move(device));
  const JobId job = StartRestore(grant, hashes_, Ids(2, 4)).value();
  while (!engine.Step()) std::this_thread::yield();
  manager_->Stop();
  ASSERT_TRUE(WaitForState(State::kDown));
  manager_.reset();
  StartManager({.incarnation = {3, 4}});
  EXPECT_EQ(Counter("connects"), 1U);
  EXPECT_EQ(manager_->CountOf("opened"), 0U);
  engine.RunUntilIdle();
  const Completion done = Finished(job).value();
  EXPECT_TRUE(done.ok) << done.error;
  EXPECT_EQ(pages_.Block(4), expected_[0]);
  EXPECT_EQ(pages_.Block(5), expected_[1]);
  EXPECT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(client_->incarnation(), (Incarnation{3, 4}));
}

TEST_F(RestoreTest, ADeviceThatCannotBeDrainedFailsTheEndAndItsPagesAreNeverReported) {
  auto device = std::make_unique<doubles::FakeDeviceEngine>();
  doubles::FakeDeviceEngine& engine = *device;
  StartManager();
  Connect(std::move(device));
  const auto hashes = Hashes(2);
  const auto saved = client_->Publish({.hashes = hashes, .block_ids = Ids(2), .parent = {}});
  ASSERT_TRUE(Eventually([&] {
    engine.RunUntilIdle();
    return copy::IsDrained(client_->StateOf(saved.value()).value());
  }));
  const JobId job = StartRestore(Begin(Ask(hashes)), hashes, Ids(2, 10)).value();
  ASSERT_TRUE(Eventually([&] { return engine.Step(); }));
  engine.Break();
  const Status stopped = client_->Stop();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::kIo);
  EXPECT_FALSE(client_->Stop()) << "also when it is asked again";
  EXPECT_EQ(client_->StateOf(job).value(), JobState::kEnqueued);
  const std::vector<Completion> polled = client_->Poll().value();
  for (const Completion& done : polled) EXPECT_NE(done.job, job);
  EXPECT_EQ(Counter("undrained_jobs"), 1U);
  EXPECT_EQ(manager_->CountOf("end ok") + manager_->CountOf("end failed"), 0U) << "the Manager keeps the slots";
  // The device comes back to life after all: what it writes to, and whom it tells, is still there.
  client_.reset();
  engine.Mend();
  engine.RunUntilIdle();
}

TEST_F(RestoreTest, BadArgumentsAreRefusedAndNothingIsSent) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  EXPECT_EQ(StartRestore(GrantId(1), hashes, Ids(1)).error().code, Code::kInvalid);
  EXPECT_EQ(StartRestore(GrantId(1), hashes, Ids(2, 31)).error().code, Code::kInvalid);
  EXPECT_EQ(StartRestore(GrantId(1), hashes, std::vector<std::uint32_t>{3, 3}).error().code, Code::kInvalid);
  EXPECT_EQ(StartRestore(GrantId(), hashes, Ids(2)).error().code, Code::kInvalid);
  EXPECT_EQ(StartRestore(GrantId(1), {}, {}).error().code, Code::kInvalid);
  EXPECT_EQ(manager_->CountOf("RestorePlan"), 0U);
}

TEST_F(RestoreTest, JobsWithoutAPolledCompletionAreBounded) {
  options_.max_jobs = 2;
  StartManager();
  Connect();
  manager_->Hold(true);
  const auto hashes = Hashes(1);
  const auto first = StartRestore(GrantId(1), hashes, Ids(1));
  ASSERT_TRUE(first);
  ASSERT_TRUE(StartRestore(GrantId(2), hashes, Ids(1)));
  EXPECT_EQ(StartRestore(GrantId(3), hashes, Ids(1)).error().code, Code::kBusy);
  manager_->Stop();  // both fail
  EXPECT_TRUE(Finished(*first));
  EXPECT_TRUE(StartRestore(GrantId(3), hashes, Ids(1)));
}

TEST_F(RestoreTest, AReadOnlyClientRestoresAndPublishesNothing) {
  StartManager();
  Connect();
  const GrantId grant = Prepare(2);
  ASSERT_TRUE(manager_->Seen("RestoreBegin"));
  client_.reset();
  options_.read_only = true;
  Connect();
  EXPECT_EQ(client_->Publish({.hashes = hashes_, .block_ids = Ids(2), .parent = {}}).error().code, Code::kInvalid);
  EXPECT_TRUE(Finished(StartRestore(grant, hashes_, Ids(2)).value()).value().ok);
  EXPECT_EQ(pages_.Block(1), expected_[1]);
}

TEST_F(RestoreTest, StopEndsWaitingRestores) {
  StartManager();
  Connect();
  const JobId job = StartRestore(GrantId(77), Hashes(20), Ids(20)).value();  // no such grant: waits for its plan
  EXPECT_TRUE(client_->Stop());
  EXPECT_TRUE(client_->Stop());
  EXPECT_EQ(Finished(job).value().outcomes, Outcomes(20, Outcome::kFailed));
  EXPECT_EQ(StartRestore(GrantId(1), Hashes(1), Ids(1)).error().code, Code::kCancelled);
}

}  // namespace
}  // namespace orbitkv::client
