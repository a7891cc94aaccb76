// orbitkv-sim N [SEED [first]]: N simulated lives from SEED (1) on; with `first` only up to the first violation. Ends
// with "seeds N, violations V"; exit status 1 when there is a violation. With N = 1 it prints the life's history.
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <unistd.h>

#include "orbitkv/testing/sim/run.h"

namespace {

constexpr std::size_t kShownLines = 1U << 20U;
constexpr std::uint64_t kMaxExplained = 3;

// Written by the one thread before each life, read by the signal handler.
char crash_note[160];

// A broken invariant of the core ends the program: the last words say how to get there again.
void SayCrash(int signal) {
  const ssize_t said = ::write(STDERR_FILENO, crash_note, std::strlen(crash_note));
  std::signal(signal, SIG_DFL);
  std::raise(said < 0 ? SIGKILL : signal);
}

bool ParseNumber(const char* text, std::uint64_t* value) {
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  return error == std::errc() && stop == end;
}

void PrintCoverage(const orbitkv::sim::Coverage& all) {
  fmt::print(
      "steps {}, stored {}, already there {}, not now {}, evicted {}, granted {}, restored {}, late grants {}, revoked "
      "{}, over budget {}\n",
      all.steps, all.stored, all.already_there, all.not_now, all.evictions, all.grants, all.restored, all.late_grants,
      all.revoked, all.over_budget);
  fmt::print("tickets {}, loads {}, bad loads {}, too late {}, claims {}, by other processes {}\n", all.loading,
             all.loads_ok, all.loads_bad, all.too_late, all.claims, all.claims_by_others);
  fmt::print(
      "saved {}, not saved {}, evicted unsaved {}, restored with several groups {}, registered anew {}, connections "
      "lost by who may copy {}, reported drained {}\n",
      all.saves_ok, all.saves_bad, all.evicted_unsaved, all.restored_groups, all.unregistered, all.detached_holding,
      all.drained);
  fmt::print(
      "taken over {} times, died storing {}, died recovering {}, components adopted {}, unfinished {}, torn {}, held "
      "{}, "
      "earlier sessions that died {}, drained {}, restored from earlier lives {}\n",
      all.recoveries, all.died_storing, all.died_recovering, all.adopted, all.unfinished, all.torn, all.held,
      all.earlier_died, all.earlier_drained, all.restored_earlier);
  fmt::print("power losses {}, sectors not synced then {}\n", all.power_losses, all.lost_sectors);
  fmt::print(
      "process crashes {}, Manager crashes {}, lost connections {}, damaged slots {}, mismatches {}, false alarms {}, "
      "dropped {}, given up {}, late answers {}\n",
      all.process_crashes, all.manager_crashes, all.disconnects, all.damages, all.mismatched, all.false_alarms,
      all.verified_different, all.given_up, all.late_answers);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t count = 0;
  std::uint64_t first = 1;
  const bool only_first = argc == 4 && std::strcmp(argv[3], "first") == 0;
  if (argc < 2 || argc > 4 || (argc == 4 && !only_first) || !ParseNumber(argv[1], &count) || count == 0 ||
      (argc >= 3 && !ParseNumber(argv[2], &first))) {
    fmt::print(stderr, "usage: orbitkv-sim N [SEED [first]]: runs N simulated lives from SEED (default 1) on\n");
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS}) std::signal(signal, SayCrash);
  orbitkv::sim::Coverage all;
  std::uint64_t violations = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::snprintf(crash_note, sizeof(crash_note), "seed %llu ended the program; to replay it: ./dev sim 1 %llu\n",
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(seed));
    const orbitkv::sim::Outcome outcome = orbitkv::sim::RunSeed(seed, count == 1 ? kShownLines : 0);
    all.Add(outcome.coverage);
    if (count == 1) fmt::print("{}history {:016x}\n", outcome.history, outcome.history_hash);
    if (outcome.violation.empty()) continue;
    ++violations;
    if (count > 1 && !only_first && violations <= kMaxExplained) {
      fmt::print("{}", orbitkv::sim::Explain(seed, outcome));
    } else {
      fmt::print("seed {} broke a promise: {}\n", seed, outcome.violation);
    }
    std::fflush(stdout);
    if (only_first) break;
  }
  PrintCoverage(all);
  fmt::print("seeds {}, violations {}\n", count, violations);
  return violations == 0 ? 0 : 1;
}
