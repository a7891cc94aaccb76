#include "orbitkv/channel/session_pace.h"

#include <gtest/gtest.h>

namespace orbitkv::channel {
namespace {

constexpr std::uint64_t kNow = 1'000'000;

TEST(SessionPace, ABurstIsFreeThenOneSessionForEachInterval) {
  SessionPace pace({.burst = 3, .interval_ns = 100});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pace.Wait(7, kNow), 0U) << i;
    pace.Ended(7, kNow);
  }
  EXPECT_EQ(pace.Wait(7, kNow), 100U);
  EXPECT_EQ(pace.Wait(8, kNow), 0U) << "another process";
  EXPECT_EQ(pace.Wait(7, kNow + 100), 0U);
  pace.Ended(7, kNow + 100);
  EXPECT_EQ(pace.Wait(7, kNow + 100), 100U);
  EXPECT_EQ(pace.Wait(7, kNow + 1000), 0U);
}

TEST(SessionPace, ManyEndsAtOnceKeepAProcessWaitingForABurstAtMost) {
  SessionPace pace({.burst = 3, .interval_ns = 100});
  for (int i = 0; i < 1000; ++i) pace.Ended(7, kNow);
  EXPECT_LE(pace.Wait(7, kNow), 400U);
  EXPECT_GT(pace.Wait(7, kNow), 0U);
}

TEST(SessionPace, RemembersABoundedNumberOfProcessesAndTheWorstOfThem) {
  SessionPace pace({.burst = 2, .interval_ns = 100});
  for (int i = 0; i < 4; ++i) pace.Ended(1, kNow);
  for (std::int32_t pid = 2; pid < 3 * static_cast<std::int32_t>(SessionPace::kMostProcesses); ++pid) {
    pace.Ended(pid, kNow);
  }
  EXPECT_LE(pace.processes(), SessionPace::kMostProcesses);
  EXPECT_GT(pace.Wait(1, kNow), 0U);
}

}  // namespace
}  // namespace orbitkv::channel
