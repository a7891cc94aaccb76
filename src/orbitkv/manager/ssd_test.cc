// SSD stores on real files, behind the interface that the Manager has to them.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <unistd.h>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/manager/ssd_backing.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::manager {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kPages = 4;
constexpr std::uint64_t kPageBytes = 10'000;
constexpr std::uint64_t kSlots = 64;
constexpr std::uint64_t kFileBytes = std::uint64_t{16} << 20U;
constexpr std::uint64_t kPatienceNs = 60'000'000'000;

const auto kSlotBytes = static_cast<std::uint32_t>(copy::SlotBytes(kPages, kPageBytes));
constexpr std::uint64_t kStride = 40'960;

class SsdTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    log::SetLevel(log::Level::kError);
    pool_fd_ = os::CreateMemfd("ssd-test", kSlots * kStride).value();
    pool_ = os::Mapping::Map(pool_fd_.get(), kSlots * kStride, os::Access::kReadWrite).value();
    options_.paths = {directory_ / "a"};
    options_.bytes = kFileBytes;
    options_.ring = GetParam();
  }
  void TearDown() override { backing_.reset(); }

  std::string Open() {
    backing_ = std::make_unique<SsdBacking>(options_);
    auto opened = backing_->Open(0);
    if (!opened) return opened.error();
    const Backing::Reports reports{.loaded =
                                       [this](std::uint64_t id, service::LoadResult result, std::uint64_t checksum) {
                                         const MutexLock lock(mutex_);
                                         loaded_[id] = {result, checksum};
                                         changed_.NotifyAll();
                                       },
                                   .saved =
                                       [this](std::uint64_t id, service::SaveResult result) {
                                         const MutexLock lock(mutex_);
                                         saved_[id] = result;
                                         changed_.NotifyAll();
                                       }};
    const Status started = backing_->Start(pool_fd_.get(), kSlots * kStride, reports);
    return started ? "" : ToString(started.error());
  }

  std::span<std::byte> Slot(std::uint64_t slot) { return pool_.bytes().subspan(slot * kStride, kStride); }
  static service::ComponentKey KeyOf(std::uint64_t block) {
    service::ComponentKey key;
    Prng prng(block);
    for (std::byte& byte : key.hash.bytes) byte = static_cast<std::byte>(prng.Next());
    key.slot_bytes = kSlotBytes;
    return key;
  }
  // Fills the slot; returns its checksum.
  std::uint64_t Fill(std::uint64_t block, std::span<std::byte> slot) {
    Prng prng(block + 1'000'000);
    for (std::uint64_t at = 0; at < kPages * kPageBytes; at += 8) {
      const std::uint64_t word = prng.Next();
      std::memcpy(slot.data() + at, &word, sizeof word);
    }
    std::vector<std::uint64_t> hashes;
    for (std::uint32_t page = 0; page < kPages; ++page) {
      hashes.push_back(copy::HashOnly(slot.data() + page * kPageBytes, kPageBytes));
    }
    copy::WriteList(slot.data(), kPageBytes, hashes);
    return copy::SlotChecksum({{}, KeyOf(block).hash, 0, 0}, kPages * kPageBytes, hashes);
  }
  service::SaveResult Save(std::uint64_t block, std::uint64_t slot = 0) {
    service::SaveRequest request;
    request.id = next_id_++;
    request.key = KeyOf(block);
    request.record = {KeyOf(block + 1).hash, 5, Fill(block, Slot(slot))};
    request.shape = {kPages, kPageBytes};
    request.offset = slot * kStride;
    backing_->Save(request);
    const MutexLock lock(mutex_);
    const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
    while (!saved_.contains(request.id) && os::MonotonicNs() < deadline) WaitABit();
    return saved_.contains(request.id) ? saved_[request.id] : service::SaveResult::kFailed;
  }
  // Whether the block came back as it was.
  bool Load(std::uint64_t block, std::uint64_t slot = 1) {
    std::memset(Slot(slot).data(), 0, kStride);
    service::LoadRequest request;
    request.id = next_id_++;
    request.key = KeyOf(block);
    request.shape = {kPages, kPageBytes};
    request.offset = slot * kStride;
    backing_->Submit(request);
    const MutexLock lock(mutex_);
    const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
    while (!loaded_.contains(request.id) && os::MonotonicNs() < deadline) WaitABit();
    std::vector<std::byte> expected(kStride);
    const std::uint64_t checksum = Fill(block, expected);
    return loaded_[request.id].first == service::LoadResult::kOk && loaded_[request.id].second == checksum &&
           std::memcmp(Slot(slot).data(), expected.data(), kSlotBytes) == 0;
  }
  void WaitABit() ORBITKV_REQUIRES(mutex_) {
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  }

  const ::orbitkv::testing::TemporaryDirectory directory_;
  SsdBacking::Options options_;
  os::UniqueFd pool_fd_;
  os::Mapping pool_;
  std::unique_ptr<SsdBacking> backing_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::pair<service::LoadResult, std::uint64_t>> loaded_;
  std::map<std::uint64_t, service::SaveResult> saved_;
  std::uint64_t next_id_ = 1;
};

INSTANTIATE_TEST_SUITE_P(, SsdTest, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "ring" : "threads"; });

TEST_P(SsdTest, BlocksOutliveTheBacking) {
  ASSERT_EQ(Open(), "");
  for (std::uint64_t block = 0; block < 100; ++block) ASSERT_EQ(Save(block), service::SaveResult::kSaved);
  for (std::uint64_t block = 0; block < 100; ++block) ASSERT_TRUE(Load(block)) << block;
  ASSERT_EQ(Open(), "");
  for (std::uint64_t block = 0; block < 100; ++block) {
    const auto record = backing_->Locate(KeyOf(block));
    ASSERT_TRUE(record) << block;
    EXPECT_EQ(record->parent, KeyOf(block + 1).hash);
    EXPECT_EQ(record->depth, 5U);
    ASSERT_TRUE(Load(block)) << block;
  }
  EXPECT_FALSE(backing_->Locate(KeyOf(100)));
  EXPECT_FALSE(Load(100));
  service::ComponentKey other = KeyOf(1);
  other.slot_bytes += 8;
  EXPECT_FALSE(backing_->Locate(other)) << "a slot of another size is another block";
}

TEST_P(SsdTest, SeveralStoresShareTheBlocksAndAreFoundInAnyOrder) {
  options_.paths.push_back(directory_ / "b");
  ASSERT_EQ(Open(), "");
  for (std::uint64_t block = 0; block < 60; ++block) ASSERT_EQ(Save(block), service::SaveResult::kSaved);
  std::swap(options_.paths[0], options_.paths[1]);
  ASSERT_EQ(Open(), "");
  for (std::uint64_t block = 0; block < 60; ++block) ASSERT_TRUE(Load(block)) << block;
  options_.paths.pop_back();
  ASSERT_EQ(Open(), "");
  std::size_t found = 0;
  for (std::uint64_t block = 0; block < 60; ++block) found += backing_->Locate(KeyOf(block)) ? 1 : 0;
  EXPECT_GT(found, 10U);
  EXPECT_LT(found, 50U);
}

TEST_P(SsdTest, NeverGrowsBeyondItsSize) {
  ASSERT_EQ(Open(), "");
  for (std::uint64_t block = 0; block < 600; ++block) ASSERT_EQ(Save(block), service::SaveResult::kSaved);
  EXPECT_EQ(std::filesystem::file_size(options_.paths[0]), kFileBytes);
  EXPECT_FALSE(backing_->Locate(KeyOf(0)));
  EXPECT_TRUE(Load(599));
}

TEST_P(SsdTest, RefusalsNameTheRemedy) {
  ASSERT_EQ(Open(), "");
  SsdBacking second(options_);
  EXPECT_THAT(second.Open(0).error(), HasSubstr("in use"));
  backing_.reset();

  options_.bytes = 2 * kFileBytes;
  EXPECT_THAT(Open(), HasSubstr("give --ssd-bytes 16777216"));
  options_.bytes = 0;
  EXPECT_EQ(Open(), "") << "a store knows its size";
  backing_.reset();

  options_.paths = {directory_ / "new"};
  EXPECT_THAT(Open(), HasSubstr("give its size"));
  EXPECT_FALSE(std::filesystem::exists(options_.paths[0]));
  options_.bytes = kFileBytes;
  options_.paths = {directory_ / "none/a"};
  EXPECT_THAT(Open(), HasSubstr("directory does not exist"));
  options_.paths = {directory_.path()};
  EXPECT_THAT(Open(), HasSubstr(directory_.path()));
  options_.paths = {"/dev/null"};
  EXPECT_THAT(Open(), HasSubstr("neither a regular file nor a block device"));
  options_.paths = {directory_ / "large"};
  options_.bytes = std::uint64_t{1} << 60U;
  EXPECT_THAT(Open(), HasSubstr("--ssd-bytes"));

  const std::string notes = directory_ / "notes";
  std::ofstream(notes) << std::string(1 << 20U, 'x');
  options_.paths = {notes};
  options_.bytes = 1 << 20U;
  EXPECT_THAT(Open(), HasSubstr("left as it is"));
  EXPECT_EQ(std::filesystem::file_size(notes), 1U << 20U);
}

// As a first start leaves it that was killed in the middle of reserving.
TEST_P(SsdTest, AFileThatWasOnlyBegunIsMadeWhole) {
  {
    auto file = os::DirectFile::Open(options_.paths[0], os::DirectFile::Use::kCreateIfAbsent).value();
    ASSERT_TRUE(file.Reserve(kFileBytes / 4));
  }
  ASSERT_EQ(Open(), "");
  EXPECT_EQ(std::filesystem::file_size(options_.paths[0]), kFileBytes);
  ASSERT_EQ(Save(1), service::SaveResult::kSaved);
  ASSERT_EQ(Open(), "");
  EXPECT_TRUE(Load(1));
  backing_.reset();
  // It starts like one, but something is in it.
  const std::string notes = directory_ / "notes";
  std::ofstream(notes) << std::string(8192, '\0') << "x";
  options_.paths = {notes};
  EXPECT_THAT(Open(), HasSubstr("has 8193 bytes"));
  EXPECT_EQ(std::filesystem::file_size(notes), 8193U);
  // One that is larger was meant so.
  options_.paths = {directory_ / "larger"};
  std::ofstream(options_.paths[0]).close();
  std::filesystem::resize_file(options_.paths[0], 2 * kFileBytes);
  EXPECT_THAT(Open(), HasSubstr("give --ssd-bytes"));
  EXPECT_EQ(std::filesystem::file_size(options_.paths[0]), 2 * kFileBytes);
}

TEST_P(SsdTest, FiguresNameTheStore) {
  ASSERT_EQ(Open(), "");
  ASSERT_EQ(Save(1), service::SaveResult::kSaved);
  Metrics metrics;
  backing_->AddFigures(metrics);
  double written = 0;
  double records = 0;
  for (const MetricSample& sample : metrics.Collect()) {
    ASSERT_EQ(sample.labels.front().second, options_.paths[0]);
    if (sample.name == "orbitkv_ssd_written_bytes_total") written = sample.value;
    if (sample.name == "orbitkv_ssd_records") records = sample.value;
  }
  EXPECT_GE(written, kSlotBytes);
  EXPECT_EQ(records, 1);
}

}  // namespace
}  // namespace orbitkv::manager
