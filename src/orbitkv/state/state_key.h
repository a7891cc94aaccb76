// What a stored block is called. A StateKey names one component of one KV block: the namespace (model computation and
// representation), the block's prefix hash, the cache group and the shard.
// Threads: values.
// Invariant: a BlockHash is compared as 32 bytes; an engine whose hashes are shorter pads them with zero bytes at the
// end (the hash algorithm is part of the computation digest, so lengths never mix within a namespace).
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace orbitkv::state {

inline constexpr std::size_t kDigestBytes = 32;

using Digest = std::array<std::byte, kDigestBytes>;

struct BlockHash {
  Digest bytes{};

  auto operator<=>(const BlockHash&) const = default;
  // Every look-up compares: std::array would do it byte by byte.
  bool operator==(const BlockHash& other) const {
    return std::memcmp(bytes.data(), other.bytes.data(), kDigestBytes) == 0;
  }

  // Block hashes are already uniformly distributed, so any eight of their bytes are a hash-table hash.
  std::uint64_t Prefix64() const {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  template <typename H>
  friend H AbslHashValue(H h, const BlockHash& hash) {
    return H::combine(std::move(h), hash.Prefix64());
  }
  // Takes up to 32 bytes; shorter input is padded with zeros, longer input is cut by the caller's validation.
  static BlockHash From(std::span<const std::byte> source) {
    BlockHash hash;
    std::memcpy(hash.bytes.data(), source.data(), std::min(source.size(), kDigestBytes));
    return hash;
  }
};
static_assert(sizeof(BlockHash) == kDigestBytes);

struct StateKey {
  Digest namespace_digest{};
  BlockHash hash{};
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  auto operator<=>(const StateKey&) const = default;
};

}  // namespace orbitkv::state
