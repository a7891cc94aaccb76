// The distinct blocks that somebody holds by leases and grants, in bytes, so that a budget counts a shared prefix once.
// Owns: one counter per entry of the cache's index that it has seen, in chunks made when they are first needed.
// Threads: one. Blocks: no. Units: blocks, and bytes as they are told when a block comes in.
// Errors: none; removing what was not added breaks the caller's invariant.
// Invariant: distinct() is the number of entries whose counter is not zero, bytes() what they were said to take.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::service {

class BlockAccount {
 public:
  bool Holds(cache::BlockRef ref) const {
    const std::uint32_t chunk = ref.index / kChunk;
    return chunk < chunks_.size() && chunks_[chunk] != nullptr && chunks_[chunk]->counts[ref.index % kChunk] > 0;
  }
  // What a held block takes stays what it was when it came in.
  void Add(cache::BlockRef ref, std::uint64_t block_bytes) {
    Chunk& chunk = ChunkOf(ref);
    if (chunk.counts[ref.index % kChunk]++ > 0) return;
    chunk.bytes[ref.index % kChunk] = block_bytes;
    bytes_ += block_bytes;
    ++distinct_;
  }
  void Remove(cache::BlockRef ref) {
    ORBITKV_CHECK(Holds(ref));
    Chunk& chunk = ChunkOf(ref);
    if (--chunk.counts[ref.index % kChunk] > 0) return;
    bytes_ -= chunk.bytes[ref.index % kChunk];
    --distinct_;
  }
  // Whether the block may come in. One is always allowed: a budget below the size of a block would switch the cache off
  // silently.
  bool Fits(cache::BlockRef ref, std::uint64_t block_bytes, std::uint64_t budget_bytes) const {
    return distinct_ == 0 || bytes_ + block_bytes <= budget_bytes || Holds(ref);
  }
  std::uint64_t distinct() const { return distinct_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::uint32_t kChunk = 4096;

  struct Chunk {
    std::array<std::uint64_t, kChunk> bytes{};
    std::array<std::uint32_t, kChunk> counts{};
  };

  Chunk& ChunkOf(cache::BlockRef ref) {
    const std::uint32_t chunk = ref.index / kChunk;
    if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
    if (chunks_[chunk] == nullptr) chunks_[chunk] = std::make_unique<Chunk>();
    return *chunks_[chunk];
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::uint64_t distinct_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace orbitkv::service
