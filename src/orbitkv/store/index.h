// Which records a store has: 64 bytes of memory for each, and four for its place in the table.
//
// An entry knows 52 bits of its key's hash; the whole key is compared when the record is read. So a look-up may very
// rarely name a record of another key, which then fails to load.
//
// Owns: its memory, reserved at Create and touched as entries come. Threads: any; nothing is held long.
// Blocks: for its mutex, some microseconds at most. Units: bytes. Limits: 2^20 segments, 2^21 sectors in each.
// Errors: Create kExhausted without address space. Put false when all entries are in use.
// Invariants: no two entries have the same hash. An EntryId is used again after its entry was erased.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/store/facts.h"

namespace orbitkv::store {

using EntryId = StrongId<struct EntryIdTag, std::uint32_t>;

class Index {
 public:
  static constexpr std::uint32_t kMostUses = 3;
  struct Found {
    Facts facts;
    Location location;
    std::uint32_t uses = 0;  // since it was written; counts to kMostUses
  };

  // seed: random, so that nobody can aim at one bucket.
  static Result<std::unique_ptr<Index>> Create(std::uint32_t max_entries, std::uint64_t seed);

  std::optional<Found> Find(const state::StateKey& key) const ORBITKV_EXCLUDES(mutex_);
  // What Find says, and counts a use.
  std::optional<Found> Use(const state::StateKey& key) ORBITKV_EXCLUDES(mutex_);
  // In place of what was there under this key.
  std::optional<EntryId> Put(const state::StateKey& key, const Facts& facts, Location location)
      ORBITKV_EXCLUDES(mutex_);
  std::optional<EntryId> PutIfAbsent(const state::StateKey& key, const Facts& facts, Location location)
      ORBITKV_EXCLUDES(mutex_);
  // Only where it lies here.
  bool Erase(const state::StateKey& key, Location location) ORBITKV_EXCLUDES(mutex_);

  // For who goes through a segment by its entries; what has left the segment is passed over.
  std::optional<Found> InSegment(EntryId id, std::uint32_t segment) const ORBITKV_EXCLUDES(mutex_);
  // Returns how many of them were there.
  std::size_t EraseFromSegment(std::span<const EntryId> ids, std::uint32_t segment) ORBITKV_EXCLUDES(mutex_);

  std::uint32_t size() const ORBITKV_EXCLUDES(mutex_);
  std::uint64_t bytes() const ORBITKV_EXCLUDES(mutex_);  // touched at most
  std::uint32_t max_entries() const { return max_entries_; }

 private:
  struct Entry {
    state::BlockHash parent;
    std::uint64_t checksum;
    std::uint64_t place;  // segment, sector, high bits of the hash, flags
    std::uint32_t depth;
    std::uint32_t payload_bytes;
    std::uint32_t hash;  // its low bits are the bucket
    std::uint32_t next;  // in its bucket, or among the free ones; 0 ends
  };
  static_assert(sizeof(Entry) == 64);
  struct Spot {
    std::uint32_t hash = 0;
    std::uint64_t high = 0;
  };

  Index(std::uint32_t max_entries, std::uint64_t seed) : max_entries_(max_entries), seed_(seed) {}
  Spot SpotOf(const state::StateKey& key) const;
  Entry& At(std::uint32_t number) const { return reinterpret_cast<Entry*>(entries_.data())[number]; }
  // Of the bucket that this hash belongs to.
  std::uint32_t& Head(std::uint32_t hash) const {
    return reinterpret_cast<std::uint32_t*>(heads_.data())[hash & bucket_mask_];
  }
  std::uint32_t NumberOf(Spot spot) const ORBITKV_REQUIRES(mutex_);
  std::optional<EntryId> Store(Spot spot, const Facts& facts, Location location) ORBITKV_REQUIRES(mutex_);
  void Unlink(std::uint32_t number) ORBITKV_REQUIRES(mutex_);
  static Found Describe(const Entry& entry);

  const std::uint32_t max_entries_;
  const std::uint64_t seed_;
  std::uint32_t bucket_mask_ = 0;
  os::Mapping entries_;
  os::Mapping heads_;

  mutable Mutex mutex_;
  std::uint32_t free_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint32_t touched_ ORBITKV_GUARDED_BY(mutex_) = 1;  // entry 0 is none
  std::uint32_t size_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

}  // namespace orbitkv::store
