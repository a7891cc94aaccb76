// The waiting protocol across processes: what a sanitizer cannot see. A litmus test counts lost wake-ups with and
// without each fence, then a real client and Manager that never spin exchange requests and must never miss one.
#include "orbitkv/channel/waiting.h"

#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>
#include <iostream>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/base/check.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/testing/effort.h"
#include "orbitkv/testing/fake_manager.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ORBITKV_TEST_UNDER_TSAN 1
#endif
#endif

namespace orbitkv::channel {
namespace {

using testing::FakeManager;

// The mutation: the compiler keeps the order, the processor need not.
struct NoFence {
  void operator()() const { std::atomic_signal_fence(std::memory_order_seq_cst); }
};

// Many independent places to wait at, so that both sides pass each other often without a meeting before each.
constexpr std::size_t kCells = 2048;
struct Cell {
  alignas(64) std::atomic<std::uint32_t> asleep;
  alignas(64) std::atomic<std::uint32_t> work;
};
struct Shared {
  alignas(64) std::atomic<std::uint32_t> arrived[2];
  alignas(64) std::atomic<std::uint32_t> stop;
  Cell cells[kCells];
  std::uint32_t saw_sleeper[kCells];  // the poster's; read by the sleeper after a meeting
};

struct Counts {
  std::uint64_t tries = 0;
  std::uint64_t lost = 0;
};

void Meet(Shared& shared, std::size_t side, std::uint32_t round) {
  shared.arrived[side].store(round, std::memory_order_release);
  for (std::uint32_t looks = 0; shared.arrived[1 - side].load(std::memory_order_acquire) < round; ++looks) {
    if (shared.stop.load(std::memory_order_relaxed) != 0) return;
    // On a busy processor the other side may need ours.
    if (looks % 4096 == 4095) std::this_thread::yield();
  }
}

void Jitter(Prng& prng) {
  for (std::uint64_t i = prng.Below(200); i > 0; --i) SpinPause();
}

template <typename Fence>
[[noreturn]] void RunPoster(Shared& shared) {
  static_cast<void>(os::PinThread(1));
  Prng prng(1);
  for (std::uint32_t round = 1; shared.stop.load(std::memory_order_relaxed) == 0; ++round) {
    Meet(shared, 1, 2 * round - 1);
    Jitter(prng);
    for (std::size_t i = 0; i < kCells; ++i) {
      shared.cells[i].work.store(1, std::memory_order_release);
      shared.saw_sleeper[i] = SleeperAnnounced<Fence>(shared.cells[i].asleep) ? 1 : 0;
    }
    Meet(shared, 1, 2 * round);
  }
  ::_exit(0);
}

// A wake-up is lost when, at one cell, the sleeper sees no work and the poster sees no sleeper. Ends after `tries`, at
// the first loss if wanted, or at the deadline.
template <typename SleeperFence, typename PosterFence>
Counts RunLitmus(std::uint64_t tries, bool until_lost, std::uint64_t deadline_ns) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ORBITKV_CHECK(memory != MAP_FAILED);
  auto& shared = *new (memory) Shared{};
  const pid_t poster = ::fork();
  if (poster == 0) RunPoster<PosterFence>(shared);
  Prng prng(2);
  Counts counts;
  std::vector<std::uint32_t> saw_work(kCells);
  for (std::uint32_t round = 1;
       counts.tries < tries && os::MonotonicNs() < deadline_ns && !(until_lost && counts.lost > 0); ++round) {
    Meet(shared, 0, 2 * round - 1);
    Jitter(prng);
    for (std::size_t i = 0; i < kCells; ++i) {
      AnnounceSleep<SleeperFence>(shared.cells[i].asleep);
      saw_work[i] = shared.cells[i].work.load(std::memory_order_acquire);
    }
    Meet(shared, 0, 2 * round);
    for (std::size_t i = 0; i < kCells; ++i) {
      counts.lost += saw_work[i] == 0 && shared.saw_sleeper[i] == 0 ? 1 : 0;
      shared.cells[i].asleep.store(0, std::memory_order_relaxed);
      shared.cells[i].work.store(0, std::memory_order_relaxed);
    }
    counts.tries += kCells;
  }
  shared.stop.store(1, std::memory_order_relaxed);
  ::waitpid(poster, nullptr, 0);
  ::munmap(memory, sizeof(Shared));
  return counts;
}

// On another thread, so that only it is tied to a processor.
template <typename SleeperFence, typename PosterFence>
Counts Litmus(std::uint64_t tries, bool until_lost, std::uint64_t time_ns) {
  Counts counts;
  std::thread([&] {
    static_cast<void>(os::PinThread(0));
    counts = RunLitmus<SleeperFence, PosterFence>(tries, until_lost, os::DeadlineAfter(time_ns));
  }).join();
  return counts;
}

TEST(WaitingProtocol, LosesNoWakeUpAndTheTestWouldNoticeEachMissingFence) {
#ifdef ORBITKV_TEST_UNDER_TSAN
  GTEST_SKIP() << "the sanitizer's own atomics are fences";
#endif
  if (os::CpuCount() < 2) GTEST_SKIP() << "needs two processors to reorder anything";
  constexpr std::uint64_t kSecond = 1'000'000'000U;
  const auto both =
      Litmus<FullFence, FullFence>(testing::Effort(20'000'000, ~0ULL), false, testing::Effort(2, 60) * kSecond);
  EXPECT_EQ(both.lost, 0U) << "of " << both.tries;
  const auto sleeper = Litmus<NoFence, FullFence>(~0ULL, true, 30 * kSecond);
  EXPECT_GT(sleeper.lost, 0U) << "of " << sleeper.tries;
  const auto poster = Litmus<FullFence, NoFence>(~0ULL, true, 30 * kSecond);
  EXPECT_GT(poster.lost, 0U) << "of " << poster.tries;
  std::cout << "with both fences 0 lost of " << both.tries << "; without the sleeper's " << sleeper.lost << " of "
            << sleeper.tries << "; without the poster's " << poster.lost << " of " << poster.tries << "\n";
}

TEST(WaitingProtocol, ClientAndManagerThatNeverSpinMissNothing) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    FakeManager manager({.echo = true});
    if (!manager.Start()) ::_exit(1);
    const std::string path = manager.socket_path();
    if (::write(ends[1], path.data(), path.size()) < 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char path[256] = {};
  ASSERT_GT(::read(ends[0], path, sizeof path - 1), 0);
  const auto client =
      ClientSession::Connect(
          {.socket_path = path, .name = "stress", .deadline_ns = os::DeadlineAfter(10'000'000'000U), .spin_ns = 0})
          .value();
  const std::uint64_t end = os::DeadlineAfter(testing::Effort(4, 120) * 1'000'000'000U);
  const std::uint64_t rounds = testing::Effort(20'000, ~0ULL);
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> missed{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      Prng prng(testing::Seed() + t);
      for (std::uint64_t i = 0; i < rounds && os::MonotonicNs() < end && missed == 0; ++i) {
        // Answers in flight and pauses of every length around the time that the other side needs to fall asleep.
        const auto first = client->Post({.scalar0 = i, .deadline_ns = os::kNoDeadline});
        for (std::uint64_t n = prng.Below(400); n > 0; --n) SpinPause();
        const auto second = client->Post({.scalar0 = i + 1, .deadline_ns = os::kNoDeadline});
        for (const auto& id : {first, second}) {
          if (!id || !client->Wait(*id, os::DeadlineAfter(20'000'000'000U))) ++missed;
        }
        calls += 2;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(missed, 0U) << "after calls: " << calls;
  EXPECT_GT(calls, 100U);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
}

}  // namespace
}  // namespace orbitkv::channel
