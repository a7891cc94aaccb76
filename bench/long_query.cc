#include "long_query.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::bench {
namespace {

constexpr std::size_t kLong = 100'000;
constexpr std::size_t kMiddle = 10'000;
constexpr std::size_t kShort = 256;
constexpr int kRounds = 20;
constexpr int kShortCalls = 500;  // in one round
constexpr BenchClient::Shape kShape{.blocks = 4096, .page_bytes = 512, .query_deadline_ms = 10'000};

struct Samples {
  std::vector<double> alone;
  std::vector<double> beside;
};

// The short prompt's look-up again and again, in turn without and with a long one of another client under way. One
// thread moves both, so that the clients do not take the cpu from each other: what is left is the Manager's share.
Samples MeasureFairness(BenchClient& short_client, BenchClient& long_client, std::span<const state::BlockHash> hashes,
                        useconds_t gap_us) {
  Samples samples;
  const auto prompt = hashes.first(kShort);
  const int calls = gap_us == 0 ? kShortCalls : kShortCalls / 10;
  for (int round = 0; round < kRounds; ++round) {
    for (int call = 0; call < calls; ++call) {
      if (gap_us != 0) usleep(gap_us);
      samples.alone.push_back(short_client.Query(prompt));
    }
    for (int call = 0; call < calls; ++call) {
      if (gap_us != 0) usleep(gap_us);
      long_client.Advance(hashes);
      samples.beside.push_back(short_client.Query(prompt));
    }
    long_client.Finish(hashes);
  }
  return samples;
}

}  // namespace

void MeasureLongQueries(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/long.sock";
  const Child manager = Child::Exec(1,
                                    {manager_program, "--socket", socket_path, "--pool-bytes", "512MiB", "--max-slots",
                                     "200000", "--log-level", "error"},
                                    "ready");
  ORBITKV_CHECK(os::PinThread(0).has_value());
  const auto hashes = MakeHashes(23, kLong);
  BenchClient client(socket_path, "bench-long", kShape);
  client.Publish(hashes);

  std::vector<double> long_ns;
  std::vector<double> middle_ns;
  for (int round = -1; round < kRounds; ++round) {
    const double all = client.Query(hashes) * 1e3 / kLong;
    const double tenth = client.Query(std::span(hashes).first(kMiddle)) * 1e3 / kMiddle;
    if (round < 0) continue;
    long_ns.push_back(all);
    middle_ns.push_back(tenth);
  }
  report.Add({"query.100000_per_hash_ns", Quantile(long_ns, 0.5), "ns", "a query of 10,000", Quantile(middle_ns, 0.5),
              long_ns.size()});

  BenchClient other(socket_path, "bench-short", kShape);
  for (const auto& [label, gap_us] : {std::pair{"hot", useconds_t{0}}, std::pair{"asleep", useconds_t{300}}}) {
    Samples samples = MeasureFairness(other, client, hashes, gap_us);
    report.Add({std::string("query.256_") + label + "_beside_100000_p50_us", Quantile(samples.beside, 0.5), "us",
                "undisturbed", Quantile(samples.alone, 0.5), samples.beside.size()});
  }
}

}  // namespace orbitkv::bench
