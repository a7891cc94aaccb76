#include "orbitkv/copy/host_engine.h"

#include <thread>

#include "orbitkv/copy/conformance.h"

namespace orbitkv::copy {
namespace {

class HostHarness final : public EngineHarness {
 public:
  HostHarness(std::uint32_t threads, std::uint32_t max_jobs) {
    HostEngineOptions options;
    options.threads = threads;
    options.max_jobs = max_jobs;
    engine_ = HostCopyEngine::Create(options).value();
  }
  CopyEngine& engine() override { return *engine_; }

 private:
  std::unique_ptr<HostCopyEngine> engine_;
};

EngineCase HostCase(std::string name, std::uint32_t threads) {
  return {std::move(name),
          [threads](std::uint32_t max_jobs) { return std::make_unique<HostHarness>(threads, max_jobs); }};
}

INSTANTIATE_TEST_SUITE_P(Host, CopyEngineConformance,
                         testing::Values(HostCase("one_thread", 1), HostCase("two_threads", 2)), EngineCaseName);

class HostEngine : public CopyEngineConformance {};
INSTANTIATE_TEST_SUITE_P(Host, HostEngine, testing::Values(HostCase("two_threads", 2)), EngineCaseName);

// The worker that reports the first layer submits a second job and waits for it. The other worker must copy the rest of
// the first job before it may take the second; when that one is done, all bytes of the first are there, although the
// reporter has not moved.
TEST_P(HostEngine, TwoWorkersShareOneJob) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  TestMemory other(kShape, 3);
  std::promise<void> other_done;
  CopyJob job = PublishedRestore(source, target);
  bool shared = false;
  job.on_layer = [&](JobId, std::uint32_t layer) {
    if (layer != 0) return;
    CopyJob next = Job(Direction::kPublish, other, other);
    next.on_done = [&](JobId, const JobResult&) { other_done.set_value(); };
    if (!engine().Submit(std::move(next))) return;
    if (other_done.get_future().wait_for(std::chrono::minutes(1)) != std::future_status::ready) return;
    shared = true;
    for (std::uint32_t block = 0; block < kShape.blocks; ++block) shared = shared && SameBlock(source, target, block);
  };
  ASSERT_TRUE(engine().Submit(std::move(job)));
  ASSERT_TRUE(engine().Drain(TestDeadline()));
  EXPECT_TRUE(shared);
}

// A thread that comes to a block whose list another thread is reading copies the block all the same. Block 0 is held
// until a second job is done, which only the other worker can begin, after it has left the first one.
TEST_P(HostEngine, AWorkerDoesNotWaitForAnotherOneThatEntersABlock) {
  Start();
  constexpr TestMemory::Shape kTwoBlocks{3, 64 * 1024, 2};
  TestMemory source(kTwoBlocks, 1);
  TestMemory target(kTwoBlocks, 2);
  TestMemory other(kShape, 3);
  std::promise<void> other_done;
  CopyJob job = PublishedRestore(source, target);
  bool copied = false;
  job.before_block = [&](const BlockCopy& block) {
    if (block.block != 0) return;
    if (other_done.get_future().wait_for(std::chrono::minutes(1)) != std::future_status::ready) return;
    copied = SameBlock(source, target, 1);
    for (std::uint32_t layer = 1; layer < kTwoBlocks.layers; ++layer) {
      copied = copied && SamePage(source, target, layer, 0);
    }
  };
  CopyJob next = Job(Direction::kPublish, other, other);
  next.on_done = [&](JobId, const JobResult&) { other_done.set_value(); };
  const JobId id = engine().Submit(std::move(job)).value();
  ASSERT_TRUE(engine().Submit(std::move(next)));
  EXPECT_EQ(engine().Wait(id, TestDeadline()).value(), JobState::kDrainedOk);
  ASSERT_TRUE(engine().Drain(TestDeadline()));
  EXPECT_TRUE(copied);
  for (std::uint32_t block = 0; block < 2; ++block) EXPECT_TRUE(SameBlock(source, target, block));
}

TEST_P(HostEngine, ASmallRestoreIsCopiedByTheCaller) {
  Start();
  const auto copied_by_caller = [&](std::uint64_t page_bytes) {
    TestMemory source({1, page_bytes, 2}, 1);
    TestMemory target({1, page_bytes, 2}, 2);
    CopyJob job = PublishedRestore(source, target);
    std::thread::id where;
    job.on_done = [&](JobId, const JobResult&) { where = std::this_thread::get_id(); };
    const JobId id = engine().Submit(std::move(job)).value();
    EXPECT_EQ(engine().Wait(id, TestDeadline()).value(), JobState::kDrainedOk);
    return where == std::this_thread::get_id();
  };
  EXPECT_TRUE(copied_by_caller(128 * 1024));
  EXPECT_FALSE(copied_by_caller(128 * 1024 + 1));
}

// What before_block puts into a slot is what is read from it, the list included.
TEST(HostEngineBeforeBlock, RunsBeforeTheSlotIsRead) {
  constexpr TestMemory::Shape kOneBlock{3, 128 * 1024, 1};
  HostHarness harness(1, 4);
  TestMemory source(kOneBlock, 1);
  TestMemory target(kOneBlock, 2);
  CopyJob publish;
  publish.layout = &source.layout();
  publish.blocks.push_back({0, source.slot(0), TestMemory::Identity(0), 0});
  CopyJob restore = publish;
  const JobId published = harness.engine().Submit(std::move(publish)).value();
  ASSERT_EQ(harness.engine().Wait(published, TestDeadline()).value(), JobState::kDrainedOk);
  std::vector<std::byte> slot(SlotBytes(kOneBlock.layers, kOneBlock.page_bytes));
  std::memcpy(slot.data(), source.slot(0), slot.size());
  std::memset(source.slot(0), 0, slot.size());
  restore.direction = Direction::kRestore;
  restore.layout = &target.layout();
  restore.blocks[0].slot_checksum = harness.engine().Take(published).value().slot_checksums.at(0);
  restore.before_block = [&](const BlockCopy& block) { std::memcpy(block.slot, slot.data(), slot.size()); };
  const JobId id = harness.engine().Submit(std::move(restore)).value();
  EXPECT_EQ(harness.engine().Wait(id, TestDeadline()).value(), JobState::kDrainedOk);
}

TEST(HostEngineOptions, RefusesWhatCannotWork) {
  HostEngineOptions options;
  options.threads = 0;
  EXPECT_EQ(HostCopyEngine::Create(options).error().code, Code::kInvalid);
  options.threads = 1;
  options.max_jobs = 0;
  EXPECT_EQ(HostCopyEngine::Create(options).error().code, Code::kInvalid);
}

TEST(JobTable, FinishedJobsAreForgottenInTheEnd) {
  JobTable table(1);
  const JobId first = table.Admit().value();
  const auto finish = [&](JobId id) {
    JobResult result;
    result.state = JobState::kDrainedOk;
    table.Finish(id, std::move(result));
  };
  finish(first);
  for (int i = 0; i < 4096; ++i) finish(table.Admit().value());
  EXPECT_EQ(table.Poll(first).value(), JobState::kDrainedOk);
  for (int i = 0; i < 4096; ++i) finish(table.Admit().value());
  EXPECT_EQ(table.Poll(first).error().code, Code::kStale);
}

TEST(JobTable, ALongJobKeepsItsEntry) {
  JobTable table(2);
  const JobId held = table.Admit().value();
  for (int i = 0; i < 10'000; ++i) {
    JobResult result;
    result.state = JobState::kDrainedOk;
    table.Finish(table.Admit().value(), std::move(result));
  }
  EXPECT_EQ(table.Poll(held).value(), JobState::kPending);
}

}  // namespace
}  // namespace orbitkv::copy
