// The distinct blocks that one instance holds by leases and grants, so that its budget counts a shared prefix once.
// Owns: one counter per entry of the cache's index that it has seen, in chunks made when they are first needed.
// Threads: one. Blocks: no. Units: blocks; all blocks of an instance have one size.
// Errors: none; removing what was not added breaks the caller's invariant.
// Invariant: distinct() is the number of entries whose counter is not zero.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::service {

class BlockAccount {
 public:
  bool Holds(cache::BlockRef ref) const {
    const std::uint32_t chunk = ref.index / kChunk;
    return chunk < chunks_.size() && chunks_[chunk] != nullptr && (*chunks_[chunk])[ref.index % kChunk] > 0;
  }
  void Add(cache::BlockRef ref) {
    if (Counter(ref)++ == 0) ++distinct_;
  }
  void Remove(cache::BlockRef ref) {
    ORBITKV_CHECK(Holds(ref));
    if (--Counter(ref) == 0) --distinct_;
  }
  std::uint64_t distinct() const { return distinct_; }

 private:
  static constexpr std::uint32_t kChunk = 4096;

  std::uint32_t& Counter(cache::BlockRef ref) {
    const std::uint32_t chunk = ref.index / kChunk;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (chunks_[chunk] == nullptr) chunks_[chunk] = std::make_unique<std::array<std::uint32_t, kChunk>>();
    return (*chunks_[chunk])[ref.index % kChunk];
  }

  std::vector<std::unique_ptr<std::array<std::uint32_t, kChunk>>> chunks_;
  std::uint64_t distinct_ = 0;
};

}  // namespace orbitkv::service
