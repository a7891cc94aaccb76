#include "ssd_beside.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kPatienceNs = 60'000 * kMs;
// With its checksum, and the head of its record in the store, a block of just below 1 MiB.
constexpr std::uint64_t kPageBytes = (std::uint64_t{1} << 20U) - 4096;
constexpr std::uint32_t kRestored = 256;  // blocks
constexpr std::size_t kWritten = 512;     // blocks, in each round
constexpr int kFirstRounds = 4;           // until every place of the store was written once
constexpr int kRounds = 6;
constexpr std::size_t kSamples = 8;  // of each kind in a round, at most

double Gbps(std::uint64_t ns) { return static_cast<double>(kRestored * kPageBytes) / static_cast<double>(ns); }

struct Progress {
  bool writing = false;
  double written_bytes = 0;
  std::uint64_t at_ns = 0;
};

class Observer {
 public:
  explicit Observer(const std::string& socket_path) {
    channel::ConnectOptions options;
    options.socket_path = socket_path;
    options.name = "orbitkv-bench";
    options.deadline_ns = os::DeadlineAfter(kPatienceNs);
    session_ = channel::ClientSession::Connect(options).value();
  }
  Progress Look() {
    const auto reply =
        session_->Exchange(wire::FRAME_HEALTH, manager::EncodeHealthRequest(), os::DeadlineAfter(kPatienceNs));
    ORBITKV_CHECK(reply.has_value() && !reply->refused);
    Progress progress;
    progress.at_ns = os::MonotonicNs();
    const auto health = manager::DecodeHealth(reply->payload);
    ORBITKV_CHECK(health.has_value());
    for (const auto& sample : health->samples) {
      const bool waits = sample.name == "orbitkv_saves" || sample.name == "orbitkv_saves_in_line";
      if (waits && sample.value > 0) progress.writing = true;
      if (sample.name == "orbitkv_ssd_written_bytes_total") progress.written_bytes += sample.value;
    }
    return progress;
  }
  void WaitWritten() {
    const std::uint64_t deadline_ns = os::DeadlineAfter(kPatienceNs);
    while (Look().writing) {
      ORBITKV_CHECK(os::MonotonicNs() < deadline_ns);
      os::WaitReadable(-1, os::DeadlineAfter(5 * kMs));
    }
  }

 private:
  std::unique_ptr<channel::ClientSession> session_;
};

}  // namespace

void MeasureRestoreBesideSsdWrites(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/beside.sock";
  const std::string store = scratch + "/beside-store";
  {
    const Child manager =
        Child::Exec(-1,
                    {manager_program, "--socket", socket_path, "--pool-bytes", "2GiB", "--ssd-path", store,
                     "--ssd-bytes", "2GiB", "--eviction-policy", "lru", "--log-level", "error"},
                    "ready");
    BenchClient client(socket_path, "bench-beside", {.blocks = kRestored, .page_bytes = kPageBytes});
    Observer observer(socket_path);
    const auto kept = MakeHashes(31, kRestored);
    client.Publish(kept);
    std::vector<double> beside;
    std::vector<double> undisturbed;
    std::vector<double> written;
    for (int round = -kFirstRounds; round < kRounds; ++round) {
      client.Publish(MakeHashes(1000 + static_cast<std::uint64_t>(round + kFirstRounds), kWritten));
      const Progress first = observer.Look();
      Progress last = first;
      std::size_t taken = 0;
      while (last.writing && taken < kSamples) {
        const std::uint64_t ns = client.Restore(kept);
        const Progress now = observer.Look();
        if (!now.writing) break;  // it may have ended half way
        last = now;
        ++taken;
        if (round >= 0) beside.push_back(Gbps(ns));
      }
      if (round >= 0 && taken > 0) {
        written.push_back((last.written_bytes - first.written_bytes) / static_cast<double>(last.at_ns - first.at_ns));
      }
      observer.WaitWritten();
      for (std::size_t i = 0; i < kSamples; ++i) {
        const std::uint64_t ns = client.Restore(kept);
        if (round >= 0) undisturbed.push_back(Gbps(ns));
      }
    }
    ORBITKV_CHECK(!beside.empty());
    report.Add({"restore.gbps.1MiB.beside_ssd_writes", Quantile(beside, 0.5), "GB/s", "the same, nothing written",
                Quantile(undisturbed, 0.5), beside.size()});
    report.Add({"ssd.write_gbps.beside_restores", Quantile(written, 0.5), "GB/s", "", 0, written.size()});
  }
  std::filesystem::remove(store);
}

}  // namespace orbitkv::bench
