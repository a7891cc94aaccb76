// The hash table of the block cache: from a key's hash to the number of an entry, whose key the caller compares.
//
// Open addressing with linear probing, at most half full, and removal by shifting back: no tombstones, so that neither
// growth nor clean-up ever happens after construction. A bucket is eight bytes (hash and entry), so that a probe is
// one cache line. The order of buckets is random: there is no way to iterate.
// Owns: its buckets. Threads: one. Never blocks or allocates after construction.
// Invariant: size() <= max_entries, kept by the caller.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "orbitkv/base/check.h"

namespace orbitkv::cache {

class BlockIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  explicit BlockIndex(std::uint32_t max_entries)
      : mask_(std::bit_ceil(2 * std::uint64_t{max_entries}) - 1), buckets_(mask_ + 1) {}

  void Prefetch(std::uint32_t hash) const { __builtin_prefetch(&buckets_[hash & mask_]); }

  // same(entry) -> bool compares the key.
  template <typename Same>
  std::uint32_t Find(std::uint32_t hash, Same&& same) const {
    for (std::uint64_t at = hash & mask_; buckets_[at].entry != kNone; at = (at + 1) & mask_) {
      if (buckets_[at].hash == hash && same(buckets_[at].entry)) return buckets_[at].entry;
    }
    return kNone;
  }

  // The first entry whose hash is equal, unchecked: what a look-up ahead may prefetch.
  std::uint32_t Guess(std::uint32_t hash) const {
    return Find(hash, [](std::uint32_t) { return true; });
  }

  // The key is not there.
  void Insert(std::uint32_t hash, std::uint32_t entry) {
    ORBITKV_CHECK(size_ <= mask_ / 2);
    std::uint64_t at = hash & mask_;
    while (buckets_[at].entry != kNone) at = (at + 1) & mask_;
    buckets_[at] = Bucket{hash, entry};
    ++size_;
  }

  // The entry is there.
  void Erase(std::uint32_t hash, std::uint32_t entry) {
    std::uint64_t hole = hash & mask_;
    while (buckets_[hole].entry != entry) {
      ORBITKV_CHECK(buckets_[hole].entry != kNone);
      hole = (hole + 1) & mask_;
    }
    // A later bucket of the run moves into the hole when its home is not between the hole and itself.
    for (std::uint64_t at = (hole + 1) & mask_; buckets_[at].entry != kNone; at = (at + 1) & mask_) {
      const std::uint64_t home = buckets_[at].hash & mask_;
      if (((at - home) & mask_) >= ((at - hole) & mask_)) {
        buckets_[hole] = buckets_[at];
        hole = at;
      }
    }
    buckets_[hole].entry = kNone;
    --size_;
  }

  std::uint32_t size() const { return size_; }

 private:
  struct Bucket {
    std::uint32_t hash = 0;
    std::uint32_t entry = kNone;
  };
  std::uint64_t mask_;
  std::vector<Bucket> buckets_;
  std::uint32_t size_ = 0;
};

}  // namespace orbitkv::cache
