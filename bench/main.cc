// orbitkv-bench: native benchmarks, each figure beside its baseline. Rows go to standard error as they come and to
// standard output as JSON. orbitkv-bench replay: a request trace against an eviction policy.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include "clients.h"
#include "copy_rates.h"
#include "long_query.h"
#include "lookup.h"
#include "manager_steps.h"
#include "ping.h"
#include "policy_cost.h"
#include "recovery.h"
#include "replay_command.h"
#include "report.h"
#include "ssd_beside.h"
#include "ssd_rates.h"
#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  using namespace orbitkv::bench;
  if (argc > 1 && std::string_view(argv[1]) == "replay") return RunReplay(argc - 1, argv + 1);
  CLI::App app("OrbitKV's native benchmarks");
  std::string manager;
  std::vector<std::string> only;
  app.add_option("--manager", manager, "path of orbitkv-manager")->required()->check(CLI::ExistingFile);
  app.add_option("--only", only,
                 "groups to run: copy, lookup, clients, long, ssd, beside, steps, policy, recovery, ping");
  CLI11_PARSE(app, argc, argv);

  std::string scratch = std::filesystem::temp_directory_path() / "orbitkv-bench-XXXXXX";
  if (mkdtemp(scratch.data()) == nullptr) {
    std::perror("orbitkv-bench: cannot make a scratch folder");
    return 1;
  }
  Report report;
  // Ping is last: its gRPC baseline leaves threads in this process, and children are forked before.
  const std::vector<std::pair<std::string, std::function<void()>>> groups{
      {"copy", [&] { MeasureCopyRates(report); }},
      {"lookup", [&] { MeasureLookup(manager, scratch, report); }},
      {"clients", [&] { MeasureClients(manager, scratch, report); }},
      {"long", [&] { MeasureLongQueries(manager, scratch, report); }},
      {"ssd", [&] { MeasureSsdRates(scratch, report); }},
      {"beside", [&] { MeasureRestoreBesideSsdWrites(manager, scratch, report); }},
      {"steps", [&] { MeasureManagerSteps(manager, scratch, report); }},
      {"policy", [&] { MeasurePolicyCost(report); }},
      {"recovery", [&] { MeasureRecovery(manager, report); }},
      {"ping", [&] { MeasurePing(manager, scratch, report); }},
  };
  for (const auto& [name, run] : groups) {
    if (only.empty() || std::find(only.begin(), only.end(), name) != only.end()) run();
  }
  std::cout << report.ToJson() << '\n';
  std::filesystem::remove_all(scratch);
  return 0;
}
