// The eviction policies that there are, by name.
//
// Owns: nothing. Threads: any. Blocks: no. Units: max_blocks as in BlockCache. Errors: an unknown name is null.
// Invariant: every policy here passes the conformance suite; leaves of the prefix tree go first under all of them,
// because only leaves are candidates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "orbitkv/cache/eviction.h"

namespace orbitkv::cache {

using PolicyMaker = std::unique_ptr<EvictionPolicy> (*)(std::uint32_t max_blocks);

// Least recently used first; of blocks used at the same time, the deepest first. O(log n) per call.
std::unique_ptr<EvictionPolicy> MakeLruPolicy(std::uint32_t max_blocks);
// Segmented LRU: blocks that were used again are protected, up to 80 % of the lane.
std::unique_ptr<EvictionPolicy> MakeSlruPolicy(std::uint32_t max_blocks);
// A small queue that most blocks leave unused, a main one, and the keys of those that left.
std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy(std::uint32_t max_blocks);
// A small LRU window before a segmented LRU; the sketched frequency decides which of their victims goes.
std::unique_ptr<EvictionPolicy> MakeTinyLfuPolicy(std::uint32_t max_blocks);
// Adaptive replacement: recency and frequency lists that share the lane as their ghosts say.
std::unique_ptr<EvictionPolicy> MakeArcPolicy(std::uint32_t max_blocks);

// The default: blocks go whose kind and age promise the least use for the room, as learned while it runs.
std::unique_ptr<EvictionPolicy> MakeReusePolicy(std::uint32_t max_blocks);

struct NamedPolicy {
  std::string_view name;
  PolicyMaker make;
};

inline constexpr std::string_view kDefaultPolicy = "reuse";

std::span<const NamedPolicy> Policies();
PolicyMaker FindPolicy(std::string_view name);  // null for an unknown name; "default" is kDefaultPolicy

}  // namespace orbitkv::cache
