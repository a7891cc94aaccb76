#include "clients.h"

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "baselines.h"
#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::bench {
namespace {

constexpr int kClientCpu = 0;
constexpr int kPeerCpu = 1;
constexpr std::array kClientCounts = {1, 2, 8, 32};
constexpr std::size_t kMostClients = 32;
constexpr std::size_t kHashes = 256;
constexpr int kRounds = 5;
constexpr std::uint64_t kRoundNs = 150'000'000;
constexpr useconds_t kAsleepGapUs = 300;
constexpr unsigned kIdleSeconds = 10;

using Trips = std::vector<std::unique_ptr<RoundTrip>>;

struct Load {
  std::vector<double> us{};
  double seconds = 0;

  double kcalls() const { return static_cast<double>(us.size()) / seconds / 1e3; }
};

// The first `count` trips call at the same time, each on a thread of its own, for one round.
void RunRound(const Trips& trips, std::size_t count, useconds_t gap_us, Load& load) {
  std::vector<std::vector<double>> samples(count);
  std::vector<std::unique_ptr<os::Thread>> threads;
  std::barrier start(static_cast<std::ptrdiff_t>(count) + 1);
  for (std::size_t i = 0; i < count; ++i) {
    threads.push_back(std::make_unique<os::Thread>());
    ORBITKV_CHECK(threads.back()->Start("bench-client", [&, i] {
      ORBITKV_CHECK(os::PinThread(kClientCpu).has_value());
      samples[i].reserve(1 << 16U);
      start.arrive_and_wait();
      const std::uint64_t end = os::MonotonicNs() + kRoundNs;
      for (std::uint64_t now = 0; now < end;) {
        if (gap_us != 0) usleep(gap_us);
        const std::uint64_t from = os::MonotonicNs();
        trips[i]->Call();
        now = os::MonotonicNs();
        samples[i].push_back(static_cast<double>(now - from) / 1e3);
      }
    }));
  }
  start.arrive_and_wait();
  const std::uint64_t from = os::MonotonicNs();
  for (auto& thread : threads) thread->Join();
  load.seconds += static_cast<double>(os::MonotonicNs() - from) / 1e9;
  for (const auto& part : samples) load.us.insert(load.us.end(), part.begin(), part.end());
}

std::pair<Load, Load> Compare(const Trips& ours, const Trips& sockets, std::size_t count, useconds_t gap_us) {
  std::pair<Load, Load> loads;
  for (int round = -1; round < kRounds; ++round) {
    if (round == 0) loads = {};
    RunRound(ours, count, gap_us, loads.first);
    RunRound(sockets, count, gap_us, loads.second);
  }
  return loads;
}

void AddQuantiles(Report& report, const std::string& prefix, const char* baseline, std::pair<Load, Load>& loads) {
  for (const auto& [name, q] : {std::pair{"p50_us", 0.5}, std::pair{"p99_us", 0.99}}) {
    report.Add({prefix + name, Quantile(loads.first.us, q), "us", baseline, Quantile(loads.second.us, q),
                loads.first.us.size()});
  }
}

void MeasureCounts(Report& report, const std::string& subject, const Trips& ours, const Trips& sockets) {
  for (const int count : kClientCounts) {
    const std::string prefix = subject + ".clients_" + std::to_string(count) + "_";
    const std::string baseline = std::to_string(count) + " on a Unix socket";
    auto hot = Compare(ours, sockets, static_cast<std::size_t>(count), 0);
    AddQuantiles(report, prefix, baseline.c_str(), hot);
    report.Add({prefix + "kcalls", hot.first.kcalls(), "k/s", baseline, hot.second.kcalls(), hot.first.us.size()});
    auto asleep = Compare(ours, sockets, static_cast<std::size_t>(count), kAsleepGapUs);
    AddQuantiles(report, prefix + "asleep_", baseline.c_str(), asleep);
  }
}

void Spin() {
  for (std::atomic<std::uint64_t> turns{0};;) turns.fetch_add(1, std::memory_order_relaxed);
}

void MeasureBesideHogs(Report& report, const Trips& ours, const Trips& sockets) {
  const Child first = Child::Fork(kClientCpu, Spin);
  const Child second = Child::Fork(kPeerCpu, Spin);
  const char* baseline = "Unix socket beside the same hogs";
  auto hot = Compare(ours, sockets, 1, 0);
  AddQuantiles(report, "ping.two_hogs_hot_", baseline, hot);
  auto asleep = Compare(ours, sockets, 1, kAsleepGapUs);
  AddQuantiles(report, "ping.two_hogs_asleep_", baseline, asleep);
}

}  // namespace

void MeasureClients(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/clients.sock";
  const std::string echo_path = scratch + "/clients-echo.sock";
  const Child manager = Child::Exec(
      kPeerCpu, {manager_program, "--socket", socket_path, "--pool-bytes", "256MiB", "--log-level", "error"}, "ready");
  const Child echo = StartSocketEcho(kPeerCpu, echo_path);

  Trips pings;
  Trips small_sockets;
  const std::uint64_t before_kib = manager.MemoryKib();
  for (std::size_t i = 0; i < kMostClients; ++i) pings.push_back(MakePing(socket_path));
  for (const auto& ping : pings) ping->Call();
  const double session_kib = static_cast<double>(manager.MemoryKib() - before_kib) / kMostClients;
  for (std::size_t i = 0; i < kMostClients; ++i) small_sockets.push_back(MakeSocketTrip(echo_path, 64));
  MeasureBesideHogs(report, pings, small_sockets);
  MeasureCounts(report, "ping", pings, small_sockets);
  pings.clear();

  const auto hashes = MakeHashes(17, kHashes);
  Trips queries;
  Trips large_sockets;
  for (std::size_t i = 0; i < kMostClients; ++i) {
    auto trip = std::make_unique<QueryTrip>(socket_path, "bench-" + std::to_string(i), hashes);
    if (i == 0) trip->client().Publish(hashes);
    queries.push_back(std::move(trip));
    large_sockets.push_back(MakeSocketTrip(echo_path, sizeof(wire::QueryHeader) + kHashes * sizeof(state::BlockHash)));
  }
  MeasureCounts(report, "query.256", queries, large_sockets);

  const double cpu_before = manager.CpuSeconds();
  sleep(kIdleSeconds);
  const double idle_percent = 100.0 * (manager.CpuSeconds() - cpu_before) / kIdleSeconds;
  report.Add({"manager.idle_32_clients_cpu_percent", idle_percent, "%", "target", 1, kIdleSeconds});
  report.Add({"manager.kib_per_session", session_kib, "KiB", "", 0, kMostClients});
}

}  // namespace orbitkv::bench
