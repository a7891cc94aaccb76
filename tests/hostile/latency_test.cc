// What a hostile client costs the others, beside what a program that only computes costs them.
#include <algorithm>
#include <csignal>
#include <vector>

#include "hostile_world.h"
#include "noise.h"

#include "orbitkv/os/clock.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;

constexpr int kRounds = 8;
constexpr int kCallsPerRound = 400;
constexpr std::uint64_t kNoisePerSession = 100'000'000;
constexpr int kTries = 3;  // of the whole comparison: other programs of the machine may disturb one
constexpr double kMostTimes = 3;

class HostileLatency : public HostileWorld {
 protected:
  // Times look-ups of 256 blocks; the samples are added to `ns`.
  void Measure(std::vector<std::uint64_t>& ns) {
    for (int i = 0; i < kCallsPerRound; ++i) {
      const std::uint64_t began = os::MonotonicNs();
      const auto query = neighbour_->Query(1'000'000, hashes_);
      ns.push_back(os::MonotonicNs() - began);
      ASSERT_TRUE(query) << ToString(query.error());
      ASSERT_EQ(query->found, hashes_.size());
    }
  }
  static double Percentile99(std::vector<std::uint64_t>& ns) {
    const auto at = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() * 99 / 100);
    std::ranges::nth_element(ns, at);
    return static_cast<double>(*at);
  }
  // Both loads in turn, so that what else the machine does falls upon both.
  double Ratio() {
    std::vector<std::uint64_t> beside_hog;
    std::vector<std::uint64_t> beside_hostile;
    for (int round = 0; round < kRounds && !HasFailure(); ++round) {
      {
        const Attacker hog([](const auto& ready) {
          ready();
          for (;;) asm volatile("");
        });
        Measure(beside_hog);
      }
      const Attacker hostile(
          [&](const auto& ready) { SpeakNoise(socket_, static_cast<std::uint64_t>(round), ready, kNoisePerSession); });
      Measure(beside_hostile);
    }
    const double hog = Percentile99(beside_hog);
    const double hostile = Percentile99(beside_hostile);
    printf("p99 beside a hog %.1f us, beside a hostile client %.1f us: %.2f times\n", hog / 1e3, hostile / 1e3,
           hostile / hog);
    return hostile / hog;
  }

  std::vector<state::BlockHash> hashes_ = Chain(950, 256);
};

TEST_F(HostileLatency, OthersWaitAtMostThreeTimesAsLongAsBesideAHog) {
  ASSERT_EQ(neighbour_->Publish(hashes_).value(), hashes_.size());
  double best = Ratio();
  for (int i = 1; i < kTries && best > kMostTimes; ++i) best = std::min(best, Ratio());
  EXPECT_LE(best, kMostTimes);
}

}  // namespace
}  // namespace orbitkv::hostile
