#include "replay_command.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "replay.h"
#include "workloads.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace orbitkv::bench {
namespace {

constexpr const char* kBelady = "belady";

struct Options {
  std::string trace;
  std::string workload;
  std::vector<std::string> policies{"default"};
  std::vector<std::uint32_t> blocks;
  bool through_cache = false;
  bool json = false;
};

Trace TraceOf(const Options& options) {
  if (!options.trace.empty()) return LoadTrace(options.trace);
  for (const Workload& workload : Workloads()) {
    if (workload.name == options.workload) return workload.make();
  }
  throw std::runtime_error("no workload '" + options.workload + "'; there are flood, shift, prompts, agents");
}

ReplayResult RunOne(const Options& options, const Trace& trace, const std::string& name, std::uint32_t blocks) {
  if (name == kBelady) return ReplayBelady(trace, blocks);
  const cache::PolicyMaker policy = cache::FindPolicy(name);
  if (policy == nullptr) throw std::runtime_error("no policy '" + name + "'");
  return options.through_cache ? ReplayThroughCache(trace, policy, blocks) : Replay(trace, policy, blocks);
}

void RunAll(const Options& options) {
  const Trace trace = TraceOf(options);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& name : options.policies) {
    for (const std::uint32_t blocks : options.blocks) {
      const ReplayResult result = RunOne(options, trace, name, blocks);
      rows.push_back({{"trace", trace.name},
                      {"blocks", blocks},
                      {"policy", name},
                      {"hit_ratio", result.hit_ratio},
                      {"saved_flops_ratio", result.saved_flops_ratio},
                      {"us_per_block", result.us_per_block}});
      if (!options.json) {
        std::printf("%-14s %8u blocks  %-10s hit ratio %.4f  saved FLOPs %.4f  %.3f us per block\n", trace.name.c_str(),
                    blocks, name.c_str(), result.hit_ratio, result.saved_flops_ratio, result.us_per_block);
      }
    }
  }
  if (options.json) std::cout << (rows.size() == 1 ? rows.front() : rows).dump(1) << '\n';
}

}  // namespace

int RunReplay(int argc, char** argv) {
  CLI::App app("replays a request trace against eviction policies");
  Options options;
  auto* trace = app.add_option("--trace", options.trace, "file: JSON lines or the compact form");
  app.add_option("--workload", options.workload, "made from a seed: flood, shift, prompts or agents")->excludes(trace);
  app.add_option("--policy", options.policies,
                 "one or more of reuse (default), lru, slru, s3-fifo, w-tinylfu, arc, belady");
  app.add_option("--blocks", options.blocks, "one or more sizes of the cache")->required()->check(CLI::PositiveNumber);
  app.add_flag("--through-cache", options.through_cache, "drive the block cache instead of the policy alone");
  app.add_flag("--json", options.json, "print JSON: one object, or an array of several");
  CLI11_PARSE(app, argc, argv);
  try {
    RunAll(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "orbitkv-bench replay: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace orbitkv::bench
