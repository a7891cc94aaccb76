#include "orbitkv/testing/fake_device.h"

#include "orbitkv/copy/conformance.h"

namespace orbitkv::copy {
namespace {

class FakeHarness final : public EngineHarness {
 public:
  explicit FakeHarness(std::uint32_t max_jobs) : device_(max_jobs) {}
  CopyEngine& engine() override { return device_; }
  void Run() override { device_.RunUntilIdle(); }
  doubles::FakeDeviceEngine& device() { return device_; }

 private:
  doubles::FakeDeviceEngine device_;
};

EngineCase FakeCase() {
  return {"fake_device", [](std::uint32_t max_jobs) { return std::make_unique<FakeHarness>(max_jobs); }};
}

INSTANTIATE_TEST_SUITE_P(Fake, CopyEngineConformance, testing::Values(FakeCase()), EngineCaseName);

class FakeDevice : public CopyEngineConformance {
 protected:
  void SetUp() override { Start(); }
  doubles::FakeDeviceEngine& device() { return static_cast<FakeHarness&>(*harness_).device(); }
};
INSTANTIATE_TEST_SUITE_P(Fake, FakeDevice, testing::Values(FakeCase()), EngineCaseName);

TEST_P(FakeDevice, BytesMoveOnlyWhenItIsStepped) {
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  EXPECT_TRUE(device().idle());
  const JobId id = device().Submit(PublishedRestore(source, target)).value();
  EXPECT_FALSE(device().idle());
  EXPECT_EQ(device().Poll(id).value(), JobState::kPending);
  ASSERT_TRUE(device().Step());
  EXPECT_EQ(device().Poll(id).value(), JobState::kEnqueued);
  EXPECT_TRUE(target.PageUnchanged(0, 0)) << "the first step only begins the job";
  ASSERT_TRUE(device().Step());
  EXPECT_TRUE(SamePage(source, target, 0, 0));
  EXPECT_TRUE(target.PageUnchanged(0, 1));
  for (std::uint32_t i = 1; i < kShape.blocks; ++i) ASSERT_TRUE(device().Step());
  EXPECT_EQ(device().LayersDone(id).value(), 1U);
  EXPECT_TRUE(target.PageUnchanged(1, 0));
  device().RunUntilIdle();
  EXPECT_EQ(device().Poll(id).value(), JobState::kDrainedOk);
  EXPECT_FALSE(device().Step());
}

TEST_P(FakeDevice, ACancelInTheMiddleKeepsFinishedBlocksApart) {
  TestMemory memory({2, 4096, 3}, 1);
  const JobId id = device().Submit(Job(Direction::kPublish, memory, memory)).value();
  for (int i = 0; i < 1 + 5; ++i) ASSERT_TRUE(device().Step());  // begin, layer 0 of three blocks, layer 1 of two
  ASSERT_TRUE(device().Cancel(id));
  EXPECT_EQ(device().Poll(id).value(), JobState::kEnqueued);
  device().RunUntilIdle();
  const JobResult result = device().Take(id).value();
  EXPECT_EQ(result.state, JobState::kDrainedFailed);
  EXPECT_EQ(result.unfinished, std::vector<std::uint32_t>{2});
  EXPECT_NE(result.slot_checksums[1], 0U);
  EXPECT_EQ(result.slot_checksums[2], 0U);
}

TEST_P(FakeDevice, ABrokenDeviceNeverReportsReusablePages) {
  TestMemory memory(kShape, 1);
  int reports = 0;
  CopyJob job = Job(Direction::kPublish, memory, memory);
  job.on_done = [&](JobId, const JobResult&) { ++reports; };
  const JobId id = device().Submit(std::move(job)).value();
  ASSERT_TRUE(device().Step());
  device().Break();
  EXPECT_FALSE(device().Step());
  EXPECT_EQ(device().Drain(TestDeadline()).error().code, Code::kIo);
  EXPECT_EQ(device().Wait(id, TestDeadline()).error().code, Code::kIo);
  device().Stop();
  EXPECT_EQ(device().Poll(id).value(), JobState::kEnqueued);
  EXPECT_EQ(reports, 0);
}

}  // namespace
}  // namespace orbitkv::copy
