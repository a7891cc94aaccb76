// What a hostile client costs the others, beside what a program that only computes costs them.
#include <algorithm>
#include <csignal>
#include <vector>

#include "hostile_world.h"
#include "noise.h"

#include "orbitkv/channel/server_session.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;

constexpr int kRounds = 12;
constexpr int kCallsPerRound = 400;
constexpr std::uint64_t kNoisePerSession = 100'000'000;
constexpr int kTries = 6;  // of the whole comparison: other programs of the machine may disturb one
constexpr double kMostTimes = 3;

class HostileLatency : public HostileWorld {
 protected:
  using Load = std::function<void(std::uint64_t round, const std::function<void()>& ready)>;

  // Times look-ups of 256 blocks; their 99th percentile is added to `p99s`.
  void Measure(std::vector<double>& p99s) {
    std::vector<std::uint64_t> ns;
    for (int i = 0; i < kCallsPerRound; ++i) {
      const std::uint64_t began = os::MonotonicNs();
      const auto query = neighbour_->Query(1'000'000, hashes_);
      ns.push_back(os::MonotonicNs() - began);
      ASSERT_TRUE(query) << ToString(query.error());
      ASSERT_EQ(query->found, hashes_.size());
    }
    const auto at = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() * 99 / 100);
    std::ranges::nth_element(ns, at);
    p99s.push_back(static_cast<double>(*at));
  }
  static double Median(std::vector<double>& values) {
    if (values.empty()) return 0;
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, at);
    return *at;
  }
  // Both loads in turn, so that what else the machine does falls upon both; of the rounds, the median, so that what
  // falls upon few of them does not count.
  double Ratio(const std::string& name, const Load& load) {
    std::vector<double> beside_hog;
    std::vector<double> beside_hostile;
    for (int round = 0; round < kRounds && !HasFailure(); ++round) {
      {
        const Attacker hog([](const auto& ready) {
          ready();
          for (;;) asm volatile("");
        });
        Measure(beside_hog);
      }
      const Attacker hostile([&](const auto& ready) { load(static_cast<std::uint64_t>(round), ready); });
      Measure(beside_hostile);
    }
    const double hog = Median(beside_hog);
    const double hostile = Median(beside_hostile);
    printf("p99 beside a hog %.1f us, beside a client that %s %.1f us: %.2f times\n", hog / 1e3, name.c_str(),
           hostile / 1e3, hostile / hog);
    return hostile / hog;
  }

  void SetUp() override {
    HostileWorld::SetUp();
    ASSERT_EQ(neighbour_->Publish(hashes_).value(), hashes_.size());
  }
  void ExpectBounded(const std::string& name, const Load& load) {
    double best = Ratio(name, load);
    for (int i = 1; i < kTries && best > kMostTimes; ++i) best = std::min(best, Ratio(name, load));
    EXPECT_LE(best, kMostTimes);
  }

  std::vector<state::BlockHash> hashes_ = Chain(950, 256);
};

TEST_F(HostileLatency, OthersWaitAtMostThreeTimesAsLongAsBesideAHog) {
  ExpectBounded("speaks noise", [this](std::uint64_t round, const auto& ready) {
    SpeakNoise(socket_, round, ready, kNoisePerSession);
  });
}

// What the next two do to the Manager is bounded by counts, which say more than times do; the times are for reading.

TEST_F(HostileLatency, ADoorbellThatIsRungForNothingWakesItSeldom) {
  const auto before = neighbour_->Figures().value();
  static_cast<void>(
      Ratio("rings for nothing", [this](std::uint64_t, const auto& ready) { RingForNothing(socket_, ready); }));
  const auto after = neighbour_->Figures().value();
  const auto growth = [&](const std::string& name) { return after.at(name) - before.at(name); };
  EXPECT_LE(growth("orbitkv_idle_rings_total"),
            kRounds * channel::ServerSession::kMostIdleRings + growth("orbitkv_requests_total") +
                channel::ServerSession::kIdleRingsAfterMute * growth("orbitkv_doorbells_muted_total"));
}

TEST_F(HostileLatency, AProcessThatReconnectsAllTheTimeOpensFewSessions) {
  const double opened = Figure("orbitkv_sessions_opened_total");
  const std::uint64_t began = os::MonotonicNs();
  static_cast<void>(Ratio("reconnects", [this](std::uint64_t, const auto& ready) { Reconnect(socket_, ready); }));
  EXPECT_LE(Growth("orbitkv_sessions_opened_total", opened),
            kRounds * 257 + 20 * static_cast<double>(os::MonotonicNs() - began) / 1e9);
}

}  // namespace
}  // namespace orbitkv::hostile
