// Block hashes for the tests of payloads: the same ones in every run.
// Owns: nothing. Threads: any. Blocks: no. Units: hashes. Errors: none.
#pragma once

#include <cstddef>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::wire {

inline std::vector<state::BlockHash> MakeHashes(std::size_t count) {
  std::vector<state::BlockHash> hashes(count);
  Prng prng(7);
  for (auto& hash : hashes) {
    for (auto& byte : hash.bytes) byte = static_cast<std::byte>(prng.Next());
  }
  return hashes;
}

}  // namespace orbitkv::wire
