// What a store remembers of its records in memory.
// Owns: nothing. Threads: values. Blocks: no. Units: bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "orbitkv/state/state_key.h"

namespace orbitkv::store {

// Where a record lies.
struct Location {
  std::uint32_t segment = 0;
  std::uint32_t sector = 0;  // of 512 bytes, in the segment
  bool operator==(const Location&) const = default;
};

struct Facts {
  std::optional<state::BlockHash> parent{};  // none at depth 0
  std::uint32_t depth = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t checksum = 0;  // of the slot
};

}  // namespace orbitkv::store
