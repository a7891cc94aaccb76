// What a store keeps its records under, and what it remembers of them in memory.
// Owns: nothing. Threads: values. Blocks: no. Units: bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "orbitkv/state/state_key.h"

namespace orbitkv::store {

// One component of a block.
struct Key {
  state::Digest namespace_digest{};
  state::BlockHash hash{};
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  bool operator==(const Key&) const = default;
};

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
