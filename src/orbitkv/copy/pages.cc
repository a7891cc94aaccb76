#include "orbitkv/copy/pages.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#define XXH_INLINE_ALL  // a hash state on the stack has a layout of its own version only
#include <xxhash.h>

#include "orbitkv/copy/copy_hash.h"

namespace orbitkv::copy {

static_assert(std::endian::native == std::endian::little, "slots are little-endian and are read without conversion");

namespace {

struct ChecksumHeader {
  state::Digest namespace_digest;
  state::Digest block_hash;
  std::uint32_t group;
  std::uint32_t shard;
  std::uint64_t payload_bytes;
  std::uint32_t page_count;
};
constexpr std::size_t kChecksumHeaderBytes = 84;
static_assert(offsetof(ChecksumHeader, page_count) + sizeof(std::uint32_t) == kChecksumHeaderBytes,
              "no padding before the end: the bytes up to there are what is hashed");

}  // namespace

Status PageLayout::Validate() const {
  if (layers.empty() || layers.size() > kMaxLayers) {
    return Fail(Code::kInvalid, "a page layout needs 1 to 4096 layers", layers.size());
  }
  if (page_bytes == 0 || page_bytes > kMaxPageBytes) {
    return Fail(Code::kInvalid, "a page has 1 byte to 1 GiB", page_bytes);
  }
  if (block_count == 0) return Fail(Code::kInvalid, "a page layout needs at least one block");
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerView& layer = layers[i];
    if (layer.base == nullptr) return Fail(Code::kInvalid, "a layer has no memory", i);
    if (block_count == 1) continue;
    if (layer.block_stride_bytes < page_bytes) {
      return Fail(Code::kInvalid, "pages of a layer overlap: the block stride is smaller than a page", i,
                  layer.block_stride_bytes);
    }
    const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - std::bit_cast<std::uint64_t>(layer.base);
    if (page_bytes > room || layer.block_stride_bytes > (room - page_bytes) / (block_count - 1)) {
      return Fail(Code::kInvalid, "a layer reaches beyond the address space", i, layer.block_stride_bytes);
    }
  }
  return {};
}

std::uint64_t SlotChecksum(const state::StateKey& identity, std::uint64_t payload_bytes,
                           std::span<const std::uint64_t> page_hashes) {
  const ChecksumHeader header{identity.namespace_digest,
                              identity.hash.bytes,
                              identity.group,
                              identity.shard,
                              payload_bytes,
                              static_cast<std::uint32_t>(page_hashes.size())};
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, &header, kChecksumHeaderBytes);
  XXH3_64bits_update(&state, page_hashes.data(), page_hashes.size_bytes());
  return XXH3_64bits_digest(&state);
}

void WriteList(std::byte* slot, std::uint64_t page_bytes, std::span<const std::uint64_t> page_hashes) {
  const auto layer_count = static_cast<std::uint32_t>(page_hashes.size());
  const std::uint64_t payload = PayloadBytes(layer_count, page_bytes);
  const std::uint64_t offset = ListOffset(layer_count, page_bytes);
  std::memset(slot + payload, 0, offset - payload);
  std::memcpy(slot + offset, page_hashes.data(), page_hashes.size_bytes());
}

void ReadList(const std::byte* slot, std::uint64_t page_bytes, std::span<std::uint64_t> page_hashes) {
  const auto layer_count = static_cast<std::uint32_t>(page_hashes.size());
  std::memcpy(page_hashes.data(), slot + ListOffset(layer_count, page_bytes), page_hashes.size_bytes());
}

Status CheckSlot(std::span<const std::byte> slot, SlotShape shape, const state::StateKey& identity,
                 std::uint64_t slot_checksum) {
  if (shape.layer_count == 0 || shape.layer_count > kMaxLayers || shape.page_bytes == 0 ||
      shape.page_bytes > kMaxPageBytes || slot.size() < SlotBytes(shape.layer_count, shape.page_bytes)) {
    return Fail(Code::kInvalid, "the slot is too small for its pages", slot.size());
  }
  std::vector<std::uint64_t> hashes(shape.layer_count);
  ReadList(slot.data(), shape.page_bytes, hashes);
  if (SlotChecksum(identity, PayloadBytes(shape.layer_count, shape.page_bytes), hashes) != slot_checksum) {
    return Fail(Code::kCorrupt, "the slot's checksum list or identity does not match", kListPage);
  }
  for (std::uint32_t layer = 0; layer < shape.layer_count; ++layer) {
    if (HashOnly(slot.data() + layer * shape.page_bytes, shape.page_bytes) != hashes[layer]) {
      return Fail(Code::kCorrupt, "a page does not match its checksum", layer);
    }
  }
  return {};
}

}  // namespace orbitkv::copy
