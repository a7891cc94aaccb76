// Where the bytes of a KV block are: in the engine's pages, one for each layer, and in a slot of the pool.
//
// A slot holds the block's pages in layer order, then the checksum list, one little-endian XXH3-64 for each page, at
// the next multiple of 8. The slot's checksum is the XXH3-64 of (namespace digest, block hash, group, shard, payload
// bytes, page count, list), so it binds the bytes to the identity they were saved under.
//
// Owns: nothing; base pointers belong to the engine, slots to the pool.
// Threads: values and pure functions. Blocks: no.
// Units: bytes. Limits: 4,096 layers, 1 GiB per page; a slot's start is 8-byte aligned, 64 for non-temporal stores.
// Errors: Validate kInvalid; CheckSlot kInvalid for a span of the wrong size, kCorrupt with the page's index (or
//         kListPage) when a checksum does not match.
// Invariant: what is read for a decision is copied first: a list that another process rewrites is checked and used as
//            one value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::copy {

inline constexpr std::uint32_t kMaxLayers = 4096;
inline constexpr std::uint64_t kMaxPageBytes = 1ULL << 30U;
// The "page" that CheckSlot names when the list itself does not match.
inline constexpr std::uint64_t kListPage = ~0ULL;

struct LayerView {
  std::byte* base = nullptr;             // the page of block 0
  std::uint64_t block_stride_bytes = 0;  // from one block's page to the next one's
};

struct PageLayout {
  std::vector<LayerView> layers;
  std::uint64_t page_bytes = 0;
  std::uint32_t block_count = 0;

  Status Validate() const;
  std::uint32_t layer_count() const { return static_cast<std::uint32_t>(layers.size()); }
  std::byte* page(std::uint32_t layer, std::uint32_t block) const {
    return layers[layer].base + layers[layer].block_stride_bytes * block;
  }
};

constexpr std::uint64_t PayloadBytes(std::uint32_t layer_count, std::uint64_t page_bytes) {
  return layer_count * page_bytes;
}
constexpr std::uint64_t ListOffset(std::uint32_t layer_count, std::uint64_t page_bytes) {
  return (PayloadBytes(layer_count, page_bytes) + 7) / 8 * 8;
}
constexpr std::uint64_t SlotBytes(std::uint32_t layer_count, std::uint64_t page_bytes) {
  return ListOffset(layer_count, page_bytes) + std::uint64_t{layer_count} * sizeof(std::uint64_t);
}

// Binds the bytes and what they are stored as.
std::uint64_t SlotChecksum(const state::StateKey& identity, std::uint64_t payload_bytes,
                           std::span<const std::uint64_t> page_hashes);

// The list to and from its place in the slot.
void WriteList(std::byte* slot, std::uint64_t page_bytes, std::span<const std::uint64_t> page_hashes);
void ReadList(const std::byte* slot, std::uint64_t page_bytes, std::span<std::uint64_t> page_hashes);

struct SlotShape {
  std::uint32_t layer_count = 0;
  std::uint64_t page_bytes = 0;
};
// Hashes a whole slot where it lies: the list against the checksum, each page against the list.
Status CheckSlot(std::span<const std::byte> slot, SlotShape shape, const state::StateKey& identity,
                 std::uint64_t slot_checksum);

}  // namespace orbitkv::copy
