#include "orbitkv/manager/pool_memory.h"

#include <atomic>
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <vector>

#include "orbitkv/manager/core.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kFarNs = 30'000'000'000;

// A machine with as much room as the test says.
class FakeMachine {
 public:
  explicit FakeMachine(std::uint64_t room) : room_(room) {}
  PoolReserver::Options Options(std::uint64_t pool_bytes) {
    PoolReserver::Options options;
    options.pool_bytes = pool_bytes;
    options.step_bytes = 8 * kMiB;
    options.keep_free_bytes = 4 * kMiB;
    options.poll_ns = 1'000'000;
    options.room = [this]() -> Result<std::uint64_t> {
      MutexLock lock(mutex_);
      ++asked_;
      changed_.NotifyAll();
      return room_;
    };
    options.reserve = [this](int, std::uint64_t offset, std::uint64_t bytes) -> Status {
      MutexLock lock(mutex_);
      if (refuse_) return Fail(Code::kExhausted, "full");
      steps_.emplace_back(offset, bytes);
      room_ -= bytes;
      return {};
    };
    return options;
  }
  void Grow(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    room_ += bytes;
  }
  void Refuse(bool refuse) {
    MutexLock lock(mutex_);
    refuse_ = refuse;
  }
  // Until the reserver has looked at the room so many times more.
  bool WaitAsked(int times) {
    MutexLock lock(mutex_);
    const int target = asked_ + times;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (asked_ < target && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mutex_, deadline);
    return asked_ >= target;
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps() {
    MutexLock lock(mutex_);
    return steps_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t room_;
  bool refuse_ = false;
  int asked_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps_;
};

// Collects what the reserver reports.
class Total {
 public:
  void Add(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    bytes_ += bytes;
    changed_.NotifyAll();
  }
  bool WaitFor(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (bytes_ < bytes && std::chrono::steady_clock::now() < deadline) changed_.WaitUntil(mutex_, deadline);
    return bytes_ == bytes;
  }
  std::uint64_t bytes() {
    MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t bytes_ = 0;
};

TEST(PoolReserver, ReservesFromTheFrontInSteps) {
  FakeMachine machine(1024 * kMiB);
  PoolReserver reserver(machine.Options(20 * kMiB));
  EXPECT_EQ(reserver.ReserveFirst(0).value(), 8 * kMiB);
  Total total;
  ASSERT_TRUE(reserver.Start([&](std::uint64_t bytes) { total.Add(bytes); }));
  EXPECT_TRUE(total.WaitFor(12 * kMiB));
  reserver.Stop();
  EXPECT_THAT(machine.steps(), ElementsAre(std::pair(0 * kMiB, 8 * kMiB), std::pair(8 * kMiB, 8 * kMiB),
                                           std::pair(16 * kMiB, 4 * kMiB)));
}

TEST(PoolReserver, NeverTakesWhatIsToStayFreeAndGoesOnWhenMemoryAppears) {
  FakeMachine machine(21 * kMiB);
  PoolReserver reserver(machine.Options(24 * kMiB));
  EXPECT_EQ(reserver.ReserveFirst(0).value(), 8 * kMiB);
  Total total;
  ASSERT_TRUE(reserver.Start([&](std::uint64_t bytes) { total.Add(bytes); }));
  EXPECT_TRUE(total.WaitFor(8 * kMiB));
  EXPECT_TRUE(machine.WaitAsked(3));
  EXPECT_EQ(total.bytes(), 8 * kMiB);
  machine.Grow(7 * kMiB);
  EXPECT_TRUE(total.WaitFor(16 * kMiB));
}

TEST(PoolReserver, AKernelThatRefusesIsAskedAgain) {
  FakeMachine machine(1024 * kMiB);
  PoolReserver reserver(machine.Options(16 * kMiB));
  EXPECT_TRUE(reserver.ReserveFirst(0));
  machine.Refuse(true);
  Total total;
  ASSERT_TRUE(reserver.Start([&](std::uint64_t bytes) { total.Add(bytes); }));
  EXPECT_TRUE(machine.WaitAsked(3));
  EXPECT_EQ(total.bytes(), 0U);
  machine.Refuse(false);
  EXPECT_TRUE(total.WaitFor(8 * kMiB));
}

TEST(PoolReserver, FirstStepFailsAtItsDeadlineNamingBothNumbers) {
  FakeMachine machine(11 * kMiB);
  PoolReserver reserver(machine.Options(16 * kMiB));
  const auto first = reserver.ReserveFirst(os::DeadlineAfter(3'000'000));
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, Code::kExhausted);
  EXPECT_EQ(first.error().a, 11 * kMiB);
  EXPECT_EQ(first.error().b, 12 * kMiB);
}

TEST(PoolReserver, FirstStepWaitsForMemory) {
  FakeMachine machine(kMiB);
  PoolReserver reserver(machine.Options(16 * kMiB));
  os::Thread helper;
  ASSERT_TRUE(helper.Start("grow", [&] {
    EXPECT_TRUE(machine.WaitAsked(2));
    machine.Grow(100 * kMiB);
  }));
  EXPECT_EQ(reserver.ReserveFirst(os::DeadlineAfter(kFarNs)).value(), 8 * kMiB);
}

TEST(PoolReserver, StopEndsAWaitAndIsIdempotent) {
  FakeMachine machine(12 * kMiB);
  auto options = machine.Options(16 * kMiB);
  options.poll_ns = kFarNs;
  PoolReserver reserver(std::move(options));
  EXPECT_TRUE(reserver.ReserveFirst(0));
  ASSERT_TRUE(reserver.Start([](std::uint64_t) {}));
  const std::uint64_t began = os::MonotonicNs();
  reserver.Stop();
  reserver.Stop();
  EXPECT_LT(os::MonotonicNs() - began, kFarNs / 2);
}

TEST(PoolMemory, IsSealedBeforeAnybodyMapsItAndReservable) {
  const auto memory = PoolMemory::Create(4 * kMiB, HugePages::kAuto);
  ASSERT_TRUE(memory) << ToString(memory.error());
  EXPECT_EQ(memory->bytes(), 4 * kMiB);
  EXPECT_TRUE(os::HasSizeSeals(memory->fd()).value());
  Config config;
  config.keep_free_bytes = 0;
  PoolReserver reserver(PoolReserver::ForMachine(*memory, 0, config));
  EXPECT_EQ(reserver.ReserveFirst(0).value(), 4 * kMiB);
  EXPECT_EQ(memory->view()[4 * kMiB - 1], std::byte{0});
}

// Reading a page that nobody has touched takes a fault of its own; of cleared ones the kernel maps sixteen at once.
TEST(PoolMemory, IsClearedBeforeAnybodyWritesIt) {
  const auto memory = PoolMemory::Create(8 * kMiB, HugePages::kOff);
  ASSERT_TRUE(memory) << ToString(memory.error());
  Config config;
  config.keep_free_bytes = 0;
  PoolReserver reserver(PoolReserver::ForMachine(*memory, 0, config));
  ASSERT_EQ(reserver.ReserveFirst(0).value(), 8 * kMiB);
  auto mapping = os::Mapping::Map(memory->fd(), 8 * kMiB, os::Access::kReadWrite);
  ASSERT_TRUE(mapping);
  rusage before{};
  rusage after{};
  ASSERT_EQ(::getrusage(RUSAGE_THREAD, &before), 0);
  if (!mapping->Populate(0, 8 * kMiB, os::Access::kRead)) GTEST_SKIP() << "this kernel cannot populate mappings";
  ASSERT_EQ(::getrusage(RUSAGE_THREAD, &after), 0);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 8 * kMiB / 4096 / 2);
}

TEST(PoolTooLarge, NamesBothNumbers) {
  EXPECT_EQ(PoolTooLarge(100, 100, 0), "");
  EXPECT_THAT(PoolTooLarge(101, 100, 0), HasSubstr("101 bytes is larger than this machine's memory of 100 bytes"));
  EXPECT_THAT(PoolTooLarge(51, 100, 50), HasSubstr("51 bytes is larger than the memory limit of 50 bytes"));
  EXPECT_EQ(PoolTooLarge(50, 100, 50), "");
  EXPECT_THAT(PoolTooLarge(std::uint64_t{1} << 50), HasSubstr("smaller --pool-bytes"));
}

TEST(TablesTooLarge, MayTakeHalfOfTheMemory) {
  EXPECT_EQ(TablesTooLarge(50, 100, 0), "");
  EXPECT_THAT(TablesTooLarge(51, 100, 0), HasSubstr("51 bytes, more than half of the memory (50)"));
  EXPECT_EQ(TablesTooLarge(25, 100, 50), "");
  EXPECT_THAT(TablesTooLarge(26, 100, 50), HasSubstr("smaller --max-slots"));
  EXPECT_THAT(TablesTooLarge(std::uint64_t{1} << 50), HasSubstr("--max-blocks"));
}

TEST(TablesTooLarge, TheEstimateFollowsSlotsAndBlocks) {
  Config config;
  config.pool_bytes = std::uint64_t{64} << 30;
  const std::uint64_t by_default = Core::TableBytes(config);
  EXPECT_LT(by_default, config.pool_bytes / 100) << "of 64 KiB blocks, less than a hundredth";
  config.max_slots = 1U << 28U;
  EXPECT_GT(Core::TableBytes(config), std::uint64_t{64} << 30);
  config.max_slots = 1024;
  EXPECT_LT(Core::TableBytes(config), by_default / 100) << "as many blocks as slots";
  config.max_blocks = 1U << 28U;
  EXPECT_GT(Core::TableBytes(config), std::uint64_t{32} << 30);
}

}  // namespace
}  // namespace orbitkv::manager
