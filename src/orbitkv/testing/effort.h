// How much a test does: little in an ordinary run, much in a long one (ORBITKV_TEST_LONG=1, which ./dev test-long
// sets), and from which seed it draws (ORBITKV_TEST_SEED, else a fixed one). Owns: nothing. Threads: any. Blocks: no.
// Units: whatever the test counts. Errors: none; a seed that is no number is 0.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace orbitkv::testing {

inline bool LongRun() { return std::getenv("ORBITKV_TEST_LONG") != nullptr; }

inline std::uint64_t Effort(std::uint64_t ordinary, std::uint64_t in_a_long_run) {
  return LongRun() ? in_a_long_run : ordinary;
}

inline std::uint64_t Seed(std::uint64_t fixed = 1) {
  const char* const given = std::getenv("ORBITKV_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : fixed;
}

}  // namespace orbitkv::testing
