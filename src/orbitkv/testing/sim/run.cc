#include "orbitkv/testing/sim/run.h"

#include <fmt/format.h>

namespace orbitkv::sim {
namespace {

constexpr std::size_t kExplainedLines = 400;

}  // namespace

Outcome RunSeed(std::uint64_t seed, std::size_t history_lines) {
  World world(seed, history_lines);
  world.Run();
  return {.violation = world.history().violation().value_or(""),
          .history_hash = world.history().hash(),
          .history = world.history().text(),
          .coverage = world.coverage()};
}

std::string Explain(std::uint64_t seed, const Outcome& outcome) {
  const Outcome again = RunSeed(seed, kExplainedLines);
  const bool same = again.history_hash == outcome.history_hash && !again.violation.empty();
  return fmt::format(
      "{}seed {} broke a promise: {}\nhistory {:016x}; {} when run again; to replay it: ./dev sim 1 {}\n",
      again.history, seed, outcome.violation, outcome.history_hash, same ? "the same" : "NOT THE SAME", seed);
}

}  // namespace orbitkv::sim
