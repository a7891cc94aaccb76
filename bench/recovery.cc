#include "recovery.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kStoredBytes = std::uint64_t{3800} << 20U;  // of 4 GiB
constexpr std::size_t kChain = 512;
// One second for 16 GiB.
constexpr double kTargetMs = 250;

void MeasureOne(const std::string& manager_program, const std::string& directory, std::uint64_t block_bytes,
                const std::string& name, Report& report) {
  const std::string socket = directory + "/m.sock";
  const std::vector<std::string> command = {manager_program, "--socket", socket,        "--pool-bytes", "4GiB",
                                            "--pool-path",   directory,  "--log-level", "error"};
  auto manager = std::make_unique<Child>(Child::Exec(1, command, "ready"));
  std::vector<std::vector<state::BlockHash>> chains;
  {
    BenchClient client(socket, "bench-recovery", {.blocks = 32, .page_bytes = block_bytes});
    for (std::uint64_t done = 0; done < kStoredBytes; done += kChain * block_bytes) {
      chains.push_back(MakeHashes(9'000 + chains.size(), std::min(kChain, (kStoredBytes - done) / block_bytes)));
      client.Publish(chains.back());
    }
  }
  std::vector<double> ready_ms;
  for (int life = 0; life < 3; ++life) {
    ORBITKV_CHECK(::kill(manager->pid(), SIGKILL) == 0);
    manager.reset();  // its lock is free from here on
    const std::uint64_t began_ns = os::MonotonicNs();
    manager = std::make_unique<Child>(Child::Exec(1, command, "ready"));
    ready_ms.push_back(static_cast<double>(os::MonotonicNs() - began_ns) / 1e6);
  }
  // Every block is found: Query ends the program otherwise.
  BenchClient client(socket, "bench-recovery", {.blocks = 32, .page_bytes = block_bytes});
  for (const auto& chain : chains) client.Query(chain);
  report.Add({"recovery.4gib_" + name + "_ms", Quantile(ready_ms, 0.5), "ms", "target", kTargetMs, ready_ms.size()});
}

}  // namespace

void MeasureRecovery(const std::string& manager_program, Report& report) {
  for (const auto& [bytes, name] : {std::pair{std::uint64_t{1} << 20U, "1mib"}, {std::uint64_t{64} << 10U, "64kib"}}) {
    std::string directory = "/dev/shm/orbitkv-bench-XXXXXX";
    ORBITKV_CHECK(mkdtemp(directory.data()) != nullptr);
    MeasureOne(manager_program, directory, bytes, name, report);
    std::filesystem::remove_all(directory);
  }
}

}  // namespace orbitkv::bench
