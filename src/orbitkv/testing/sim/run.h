// Runs simulated lives by their seeds and judges them.
// Owns: nothing that outlasts a call. Threads: one. Blocks: for as long as the lives take.
// Errors: a life that breaks a promise is an outcome, not an error.
// Invariant: the outcome of a seed is the same every time.
#pragma once

#include <cstdint>
#include <string>

#include "orbitkv/testing/sim/world.h"

namespace orbitkv::sim {

struct Outcome {
  std::string violation;  // empty when every promise was kept
  std::uint64_t history_hash = 0;
  std::string history;  // with history_lines
  Coverage coverage;
};

// history_lines: how many of the newest steps to keep as text.
Outcome RunSeed(std::uint64_t seed, std::size_t history_lines = 0);

// What to say about a life that broke a promise: runs it again, says whether it came out the same, with its history.
std::string Explain(std::uint64_t seed, const Outcome& outcome);

}  // namespace orbitkv::sim
