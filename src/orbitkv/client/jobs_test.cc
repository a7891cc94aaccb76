#include <algorithm>
#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/client/client_fixture.h"
#include "orbitkv/client/completions.h"
#include "orbitkv/client/page_generations.h"
#include "orbitkv/testing/fake_device.h"

namespace orbitkv::client {
namespace {

// Jobs as handles, and the generations of their pages.
class JobsTest : public ClientTest {
 protected:
  // Connects with a device that copies one page at a time, when the test says so.
  doubles::FakeDeviceEngine& ConnectDevice() {
    auto device = std::make_unique<doubles::FakeDeviceEngine>();
    doubles::FakeDeviceEngine& engine = *device;
    StartManager();
    Connect(std::move(device));
    return engine;
  }
  static void FirstStep(doubles::FakeDeviceEngine& engine) {
    ASSERT_TRUE(Eventually([&] { return engine.Step(); }));
  }
  // Steps until the job has ended, also when the client submits to the device only later.
  void RunToTheEnd(doubles::FakeDeviceEngine& engine, JobId job) {
    const std::uint64_t deadline = os::DeadlineAfter(10 * kSecondNs);
    while (!copy::IsDrained(StateOf(job)) && os::MonotonicNs() < deadline) {
      if (!engine.Step()) std::this_thread::yield();
    }
  }
  JobState StateOf(JobId job) { return client_->StateOf(job).value(); }
  JobState WaitJob(JobId job, std::uint64_t ns) { return client_->WaitJob(job, os::DeadlineAfter(ns)).value(); }
  JobId StartPublish(std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> ids,
                     std::span<const std::uint64_t> generations = {}) {
    return client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}, .generations = generations}).value();
  }
  JobId StartRestore(GrantId grant, std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> ids,
                     std::span<const std::uint64_t> generations = {}) {
    return client_
        ->Restore({.grant = grant,
                   .hashes = hashes,
                   .block_ids = ids,
                   .incarnation = std::nullopt,
                   .generations = generations})
        .value();
  }
  // Two blocks in the pool and a grant for them.
  GrantId PrepareRestore(doubles::FakeDeviceEngine& engine) {
    pages_.Fill(7);
    const JobId job = StartPublish(hashes_, Ids(2));
    RunToTheEnd(engine, job);
    EXPECT_TRUE(Finished(job).value().ok);
    return Begin(Ask(hashes_));
  }
  std::vector<state::BlockHash> hashes_ = Hashes(2);
};

TEST_F(JobsTest, APublishIsPendingThenEnqueuedThenDrained) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  manager_->Hold(true);
  const JobId job = StartPublish(hashes_, Ids(2));
  EXPECT_EQ(WaitJob(job, 1'000'000), JobState::kPending);
  manager_->Hold(false);
  FirstStep(engine);
  EXPECT_EQ(StateOf(job), JobState::kEnqueued);
  EXPECT_EQ(WaitJob(job, 1'000'000), JobState::kEnqueued);
  EXPECT_FALSE(os::WaitReadable(client_->completion_fd(), 0));
  engine.RunUntilIdle();
  EXPECT_EQ(WaitJob(job, 10 * kSecondNs), JobState::kDrainedOk);
  EXPECT_TRUE(os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(10 * kSecondNs)));
  EXPECT_TRUE(Finished(job).value().ok);
  EXPECT_FALSE(os::WaitReadable(client_->completion_fd(), 0));
  EXPECT_EQ(StateOf(job), JobState::kDrainedOk);  // also when its completion was taken
}

TEST_F(JobsTest, ARestoreIsPendingThenEnqueuedThenDrained) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const GrantId grant = PrepareRestore(engine);
  manager_->Hold(true);
  const JobId job = StartRestore(grant, hashes_, Ids(2, 8));
  EXPECT_EQ(StateOf(job), JobState::kPending);
  manager_->Hold(false);
  FirstStep(engine);
  EXPECT_EQ(StateOf(job), JobState::kEnqueued);
  engine.RunUntilIdle();
  EXPECT_EQ(WaitJob(job, 10 * kSecondNs), JobState::kDrainedOk);
  const JobId failed = StartRestore(grant, hashes_, Ids(2, 8));  // its grant has ended
  static_cast<void>(client_->Stop());
  EXPECT_EQ(WaitJob(failed, 10 * kSecondNs), JobState::kDrainedFailed);
}

TEST_F(JobsTest, LayersOfARestoreAreToldWhenTheyAreInTheirPages) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const GrantId grant = PrepareRestore(engine);
  const std::vector<std::vector<std::byte>> expected{pages_.Block(0), pages_.Block(1)};
  pages_.Clear();
  const JobId job = StartRestore(grant, hashes_, Ids(2, 8));
  FirstStep(engine);
  EXPECT_EQ(client_->WaitLayers(job, 0, os::DeadlineAfter(1'000'000)).value(), 0U);
  std::vector<std::uint32_t> told;
  while (!copy::IsDrained(StateOf(job))) {
    const std::uint32_t layers = client_->WaitLayers(job, 0, 0).value();
    if (told.empty() || told.back() != layers) told.push_back(layers);
    for (std::uint32_t i = 0; i < 2; ++i) {
      const auto first = static_cast<std::ptrdiff_t>(layers * pages_.page_bytes());
      const std::vector<std::byte> block = pages_.Block(8 + i);
      EXPECT_TRUE(std::equal(block.begin(), block.begin() + first, expected[i].begin())) << layers << " layers";
    }
    engine.Step();
  }
  EXPECT_EQ(told, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(client_->WaitLayers(job, 3, os::kNoDeadline).value(), 3U) << "no more will come";
  EXPECT_EQ(client_->WaitLayers(JobId(1), 0, os::kNoDeadline).error().code, Code::kNotFound);
}

TEST_F(JobsTest, AThreadThatWaitsForALayerIsWoken) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const GrantId grant = PrepareRestore(engine);
  const JobId job = StartRestore(grant, hashes_, Ids(2, 8));
  std::atomic<std::uint32_t> seen = 0;
  std::thread waiter([&] {
    while (seen < 3) seen = client_->WaitLayers(job, seen, os::kNoDeadline).value();
  });
  for (std::uint32_t layers = 1; layers <= 3; ++layers) {
    while (client_->WaitLayers(job, 0, 0).value() < layers) FirstStep(engine);
    EXPECT_TRUE(Eventually([&] { return seen >= layers; }));
  }
  waiter.join();
  RunToTheEnd(engine, job);
}

TEST_F(JobsTest, AWaitThatTimesOutLeavesThePagesToTheJob) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const GrantId grant = PrepareRestore(engine);
  const auto expected = pages_.Block(1);
  pages_.Clear();
  const JobId restore = StartRestore(grant, hashes_, Ids(2, 4));
  FirstStep(engine);
  EXPECT_EQ(WaitJob(restore, 1'000'000), JobState::kEnqueued);
  engine.RunUntilIdle();  // the copy goes on as if nobody had waited
  EXPECT_EQ(WaitJob(restore, 10 * kSecondNs), JobState::kDrainedOk);
  EXPECT_EQ(pages_.Block(5), expected);
  const JobId publish = StartPublish(Hashes(1, 5), Ids(1));
  FirstStep(engine);
  EXPECT_EQ(WaitJob(publish, 1'000'000), JobState::kEnqueued);
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{publish}, 0).value());
  engine.RunUntilIdle();
  EXPECT_TRUE(client_->WaitSourcesFree(std::vector{publish}, os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(WaitJob(publish, 10 * kSecondNs), JobState::kDrainedOk);
}

TEST_F(JobsTest, AHandleMeansNothingToAnotherClientOrAChild) {
  StartManager();
  Connect();
  const JobId job = StartPublish(hashes_, Ids(2));
  EXPECT_EQ(WaitJob(job, 10 * kSecondNs), JobState::kDrainedOk);
  const auto other = CacheClient::Create(options_).value();
  EXPECT_EQ(other->StateOf(job).error().code, Code::kNotFound);
  EXPECT_EQ(other->WaitJob(job, os::kNoDeadline).error().code, Code::kNotFound);
  EXPECT_EQ(client_->StateOf(JobId(job.value() + 1)).error().code, Code::kNotFound);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = client_->StateOf(job).error().code == Code::kRefused &&
                         client_->WaitJob(job, os::kNoDeadline).error().code == Code::kRefused;
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(CompletionsTest, TheOldestStatesAreForgottenAndNoneThatIsNotTaken) {
  Completions completions(2 * Completions::kKeptStates);
  ASSERT_TRUE(completions.Open());
  const auto end = [&](JobId job) {
    Completion done;
    done.job = job;
    done.ok = true;
    completions.Push(std::move(done));
  };
  const JobId waiting = completions.Admit().value();
  const JobId first = completions.Admit().value();
  end(first);
  EXPECT_EQ(completions.Take().size(), 1U);
  JobId last;
  for (std::size_t i = 0; i < Completions::kKeptStates; ++i) {
    last = completions.Admit().value();
    end(last);
  }
  EXPECT_EQ(completions.StateOf(first), JobState::kDrainedOk);
  EXPECT_EQ(completions.Take().size(), Completions::kKeptStates);
  EXPECT_EQ(completions.StateOf(first).error().code, Code::kNotFound);
  EXPECT_EQ(completions.StateOf(last), JobState::kDrainedOk);
  EXPECT_EQ(completions.StateOf(waiting), JobState::kPending);
}

TEST_F(JobsTest, WhatCannotBeDrainedKeepsItsPagesAndSlotsForEver) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const JobId job = StartPublish(hashes_, Ids(2));
  FirstStep(engine);
  engine.Break();
  ASSERT_TRUE(Eventually([&] { return Counter("undrained_jobs") > 0; }));
  EXPECT_FALSE(client_->WaitSourcesFree(std::vector{job}, os::kNoDeadline).value());
  EXPECT_EQ(StateOf(job), JobState::kEnqueued);
  EXPECT_FALSE(client_->CancelPublish(job).value());
  EXPECT_TRUE(client_->Poll().value().empty());
  // The slots are given back by nobody: not by an abort, and not by a report that the session has drained.
  manager_->Stop();
  ASSERT_TRUE(WaitForState(State::kDown));
  EXPECT_EQ(manager_->CountOf("PublishAbort"), 0U);
  manager_.reset();
  StartManager({.incarnation = {3, 4}});
  EXPECT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(Ask(hashes_).reason, AnswerReason::kAbsent);
  EXPECT_EQ(manager_->CountOf("drained"), 0U);
  static_cast<void>(client_->Stop(os::DeadlineAfter(10 * kSecondNs)));
}

TEST_F(JobsTest, APublishOfPagesWithANewUseIsDropped) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  ASSERT_TRUE(client_->RenewPages(Ids(4), 3));
  const std::uint64_t generations[] = {3, 3};
  JobId job = StartPublish(hashes_, Ids(2), generations);
  RunToTheEnd(engine, job);
  EXPECT_TRUE(Finished(job).value().ok);  // still the same use
  // Renewed while it is queued, before it reserves.
  manager_->Hold(true);
  const JobId running = StartPublish(Hashes(1, 8), Ids(1, 9));
  job = StartPublish(Hashes(2, 5), Ids(2), generations);
  ASSERT_TRUE(client_->RenewPages(Ids(1, 1), 4));
  manager_->Hold(false);
  RunToTheEnd(engine, running);
  Completion done = Finished(job).value();
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kStale));
  EXPECT_EQ(done.error, kStalePages);
  EXPECT_EQ(done.bytes, 0U);
  // Renewed when the device has the copy and has not begun it.
  job = StartPublish(Hashes(2, 6), Ids(2, 2), std::vector<std::uint64_t>{3});
  ASSERT_TRUE(Eventually([&] { return StateOf(job) == JobState::kEnqueued; }));
  ASSERT_TRUE(client_->RenewPages(Ids(1, 3), 4));
  RunToTheEnd(engine, job);
  done = Finished(job).value();
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kStale));
  EXPECT_EQ(StateOf(job), JobState::kDrainedFailed);
  EXPECT_TRUE(manager_->Seen("PublishAbort"));
  EXPECT_EQ(manager_->stored(), 3U);
  EXPECT_EQ(Counter("jobs_with_stale_pages"), 2U);
}

TEST_F(JobsTest, ACopyThatHasBegunIsNotStopped) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const JobId job = StartPublish(hashes_, Ids(2), std::vector<std::uint64_t>{0});
  FirstStep(engine);
  ASSERT_TRUE(client_->RenewPages(Ids(2), 1));
  EXPECT_EQ(StateOf(job), JobState::kEnqueued);  // which tells the engine to wait
  engine.RunUntilIdle();
  EXPECT_EQ(Finished(job).value().outcomes, Outcomes(2, Outcome::kStored));
}

TEST_F(JobsTest, OnlyTheRestOfALongPublishIsDropped) {
  pages_ = Pages(1, 1200, 64);
  StartManager();
  Connect();
  std::atomic<int> reserves{0};
  manager_->SetScript([&](channel::ServerSession&, const channel::ReceivedRequest& request) {
    if (request.command == wire::Command::kPublishReserve && ++reserves == 2) {
      EXPECT_TRUE(client_->RenewPages(Ids(1, 700), 1));
    }
    return false;
  });
  const JobId job = StartPublish(Hashes(1200), Ids(1200), std::vector<std::uint64_t>(1200, 0));
  const Completion done = Finished(job).value();
  auto expected = Outcomes(512, Outcome::kStored);
  expected.resize(1200, static_cast<std::uint8_t>(Outcome::kStale));
  EXPECT_EQ(done.outcomes, expected);
  EXPECT_EQ(manager_->stored(), 512U);
  manager_->SetScript(nullptr);
}

TEST_F(JobsTest, ARestoreIntoPagesWithANewUseTouchesNoneOfThem) {
  doubles::FakeDeviceEngine& engine = ConnectDevice();
  const GrantId grant = PrepareRestore(engine);
  pages_.Clear();
  const JobId job = StartRestore(grant, hashes_, Ids(2, 8), std::vector<std::uint64_t>{0, 0});
  ASSERT_TRUE(Eventually([&] { return StateOf(job) == JobState::kEnqueued; }));
  ASSERT_TRUE(client_->RenewPages(Ids(1, 9), 1));
  RunToTheEnd(engine, job);
  const Completion done = Finished(job).value();
  EXPECT_EQ(done.outcomes, Outcomes(2, Outcome::kStale));
  EXPECT_EQ(done.error, kStalePages);
  EXPECT_TRUE(manager_->Seen("end failed"));
  EXPECT_EQ(pages_.Block(8), pages_.Block(0));  // both zeroes
  EXPECT_EQ(pages_.Block(9), pages_.Block(0));
}

TEST_F(JobsTest, GenerationsAreChecked) {
  StartManager();
  Connect();
  EXPECT_EQ(client_->RenewPages(Ids(1, 32), 1).error().code, Code::kInvalid);
  ASSERT_TRUE(client_->RenewPages(Ids(2), 5));
  EXPECT_EQ(client_->RenewPages(Ids(3), 5).error().code, Code::kInvalid);
  ASSERT_TRUE(client_->RenewPages(Ids(1, 2), 1));  // the refused call had changed nothing
  const std::uint64_t three[] = {5, 5, 5};
  EXPECT_EQ(client_->Publish({.hashes = hashes_, .block_ids = Ids(2), .parent = {}, .generations = three}).error().code,
            Code::kInvalid);
  EXPECT_EQ(client_
                ->Restore({.grant = GrantId(1),
                           .hashes = hashes_,
                           .block_ids = Ids(2),
                           .incarnation = std::nullopt,
                           .generations = three})
                .error()
                .code,
            Code::kInvalid);
}

}  // namespace
}  // namespace orbitkv::client
