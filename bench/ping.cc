#include "ping.h"

#include <unistd.h>
#include <vector>

#include "baselines.h"
#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::bench {
namespace {

constexpr int kRounds = 20;
constexpr int kClientCpu = 0;
constexpr int kPeerCpu = 1;
constexpr useconds_t kAsleepGapUs = 300;

double MicrosecondsOf(RoundTrip& trip) {
  const std::uint64_t start = os::MonotonicNs();
  trip.Call();
  return static_cast<double>(os::MonotonicNs() - start) / 1e3;
}

struct Subject {
  RoundTrip* trip;
  int calls_per_round;
  std::vector<double> samples{};
};

// Rounds over all subjects in turn; gap_us between calls puts both sides to sleep.
void Interleave(std::vector<Subject>& subjects, useconds_t gap_us) {
  for (int round = -1; round < kRounds; ++round) {
    for (Subject& subject : subjects) {
      for (int call = 0; call < subject.calls_per_round; ++call) {
        if (gap_us != 0) usleep(gap_us);
        const double sample = MicrosecondsOf(*subject.trip);
        if (round >= 0) subject.samples.push_back(sample);
      }
    }
  }
}

}  // namespace

void MeasurePing(const std::string& manager_program, const std::string& scratch, Report& report) {
  ORBITKV_CHECK(os::PinThread(kClientCpu).has_value());
  const std::string socket_path = scratch + "/manager.sock";
  const Child manager = Child::Exec(
      kPeerCpu, {manager_program, "--socket", socket_path, "--pool-bytes", "64MiB", "--log-level", "error"}, "ready");
  const auto ring = MakeBareRing(kPeerCpu);
  const auto eventfd = MakeEventFdPingPong(kPeerCpu);
  const auto grpc = MakeGrpcEcho(kPeerCpu, scratch + "/echo.sock");
  const auto ping = MakePing(socket_path);

  std::vector<Subject> asleep{{ping.get(), 100}, {eventfd.get(), 100}};
  Interleave(asleep, kAsleepGapUs);
  const double cpu_before = manager.CpuSeconds();
  constexpr unsigned kIdleSeconds = 10;
  sleep(kIdleSeconds);
  const double idle_percent = 100.0 * (manager.CpuSeconds() - cpu_before) / kIdleSeconds;

  std::vector<Subject> hot{{ping.get(), 5000}, {grpc.get(), 200}};
  Interleave(hot, 0);
  std::vector<Subject> bare{{ping.get(), 5000}, {ring.get(), 5000}};
  Interleave(bare, 0);

  const auto add = [&report](const char* name, Subject& value, const char* baseline, Subject& other) {
    report.Add(
        {name, Quantile(value.samples, 0.5), "us", baseline, Quantile(other.samples, 0.5), value.samples.size()});
  };
  add("ping.hot_p50_us", hot[0], "gRPC callback over a Unix socket", hot[1]);
  add("ping.hot_p50_us.bare", bare[0], "bare ring without protocol", bare[1]);
  add("ping.asleep_p50_us", asleep[0], "bare eventfd ping-pong", asleep[1]);
  report.Add({"manager.idle_cpu_percent", idle_percent, "%", "", 0, kIdleSeconds});
}

}  // namespace orbitkv::bench
