// Looks once through what was taken over from an earlier life: each slot is hashed again, a few at a time, when whoever
// drives it has time. What nobody asks for is thereby checked before it is old; what is asked for is checked anyway.
// Owns: where it is. Threads: one. Blocks: no. Units: bytes.
// Errors: none; a block that cannot be checked now is left to its readers.
// Invariant: a slot is handed out for checking once at most, and only while it holds what the earlier life sealed.
#pragma once

#include <cstdint>
#include <optional>

#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/verifications.h"

namespace orbitkv::service {

class Scrub {
 public:
  static constexpr std::uint32_t kSlotsPerStep = 64;  // looked at

  Scrub(cache::BlockCache& cache, const Registry& registry, Verifications& verifications)
      : cache_(cache), registry_(registry), verifications_(verifications) {}

  // Slots of a generation below that one.
  void Begin(std::uint64_t below_generation) {
    below_generation_ = below_generation;
    next_slot_ = 1;
  }
  bool running() const { return next_slot_ != 0; }
  // The bytes that one step gave to the verifier.
  std::uint64_t Step();

 private:
  cache::BlockCache& cache_;
  const Registry& registry_;
  Verifications& verifications_;
  std::uint64_t below_generation_ = 0;
  std::uint32_t next_slot_ = 0;  // 0: nothing is left
};

}  // namespace orbitkv::service
