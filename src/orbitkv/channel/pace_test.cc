#include "orbitkv/channel/pace.h"

#include <gtest/gtest.h>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/channel/bootstrap_server.h"

namespace orbitkv::channel {
namespace {

TEST(Pace, ABurstAtOnceThenOneInEachInterval) {
  Pace pace({.burst = 3, .interval_ns = 100});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pace.Take(1000), 1000U) << i;
  EXPECT_EQ(pace.When(1000), 1100U);
  EXPECT_EQ(pace.When(1000), 1100U) << "asking costs nothing";
  EXPECT_EQ(pace.Take(1000), 1100U);
  EXPECT_EQ(pace.Take(1000), 1200U) << "turns are in the order they were asked for";
  EXPECT_EQ(pace.Take(1300), 1300U);
  EXPECT_EQ(pace.Take(1300), 1400U);
  EXPECT_EQ(pace.Take(9000), 9000U);
  EXPECT_EQ(pace.Take(9000), 9000U);
  EXPECT_EQ(pace.Take(9000), 9000U) << "after a rest the burst is whole again";
  EXPECT_EQ(pace.Take(9000), 9100U);
}

TEST(Pace, HoweverOftenItIsAskedNoMoreThanItsRateGetsThrough) {
  constexpr std::uint32_t kBurst = 8;
  constexpr std::uint64_t kIntervalNs = 50;
  Pace pace({.burst = kBurst, .interval_ns = kIntervalNs});
  Prng prng(3);
  std::vector<std::uint64_t> through;
  for (std::uint64_t now = 0; now < 20'000; now += prng.Below(20)) {
    if (prng.Below(500) == 0) now += 1000;
    if (pace.When(now) > now) continue;
    pace.Take(now);
    through.push_back(now);
  }
  ASSERT_GT(through.size(), 20'000 / kIntervalNs / 2) << "and what is within the rate does get through";
  for (std::size_t from = 0; from < through.size(); ++from) {
    for (std::size_t to = from; to < through.size(); ++to) {
      ASSERT_LE(to - from + 1, kBurst + (through[to] - through[from]) / kIntervalNs);
    }
  }
}

// Sixteen engines of nine processes, two sessions each, that all crash and start again every five seconds, and each
// time register both.
TEST(Pace, ACrashLoopOfEnginesNeverWaits) {
  constexpr std::uint64_t kMs = 1'000'000;
  Pace accepts(BootstrapOptions{}.accept_pace);
  Pace frames(BootstrapOptions{}.frame_pace);
  for (std::uint64_t start = 0; start < 600'000 * kMs; start += 5000 * kMs) {
    for (int session = 0; session < 16 * 9 * 2; ++session) {
      ASSERT_EQ(accepts.Take(start), start);
      ASSERT_EQ(frames.Take(start), start);
    }
  }
}

}  // namespace
}  // namespace orbitkv::channel
