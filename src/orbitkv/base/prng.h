// SplitMix64: a small deterministic generator for tests, jitter and simulation. Not for secrets (os/random.h is).
// Threads: one. Invariant: the same seed gives the same sequence on every machine.
#pragma once

#include <cstdint>

namespace orbitkv {

class Prng {
 public:
  explicit Prng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  // Uniform in [0, bound); bound > 0. The bias of the modulo is below 2^-32 for bounds below 2^32.
  std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace orbitkv
