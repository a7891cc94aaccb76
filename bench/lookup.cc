#include "lookup.h"

#include <cstddef>
#include <unistd.h>
#include <vector>

#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::bench {

void MeasureLookup(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/manager.sock";
  const Child manager = Child::Exec(
      1, {manager_program, "--socket", socket_path, "--pool-bytes", "256MiB", "--log-level", "error"}, "ready");
  ORBITKV_CHECK(os::PinThread(0).has_value());
  constexpr std::size_t kBlocks = 256;
  const std::vector<state::BlockHash> hashes = MakeHashes(11, kBlocks);
  BenchClient client(socket_path, "bench-lookup", {});
  client.Publish(hashes);
  std::vector<double> hot;
  std::vector<double> asleep;
  for (int call = -200; call < 10'000; ++call) {
    const double sample = client.Query(hashes);
    if (call >= 0) hot.push_back(sample);
  }
  for (int call = 0; call < 2000; ++call) {
    usleep(300);
    asleep.push_back(client.Query(hashes));
  }
  report.Add({"query.256_hot_p50_us", Quantile(hot, 0.5), "us", "target", 20, hot.size()});
  report.Add({"query.256_asleep_p50_us", Quantile(asleep, 0.5), "us", "", 0, asleep.size()});
}

}  // namespace orbitkv::bench
