#include "orbitkv/store/index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "orbitkv/base/check.h"

namespace orbitkv::store {
namespace {

// An entry's place: 20 bits of segment, 21 of sector, 20 of the key's hash, then whether it has a parent and its uses.
constexpr unsigned kSegmentShift = 44;
constexpr unsigned kSectorShift = 23;
constexpr unsigned kHighShift = 3;
constexpr std::uint64_t kSectorMask = 0x1fffff;
constexpr std::uint64_t kHighMask = 0xfffffULL << kHighShift;
constexpr std::uint64_t kHasParent = 4;
constexpr std::uint64_t kUsesMask = Index::kMostUses;

std::uint64_t Mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31U);
}

std::uint64_t MixDigest(std::uint64_t value, const state::Digest& digest) {
  std::uint64_t words[state::kDigestBytes / sizeof(std::uint64_t)];
  std::memcpy(words, digest.data(), sizeof words);
  for (const std::uint64_t word : words) value = Mix(value + 0x9e3779b97f4a7c15ULL + word);
  return value;
}

std::uint64_t PlaceOf(Location location) {
  return (std::uint64_t{location.segment} << kSegmentShift) | (std::uint64_t{location.sector} << kSectorShift);
}
std::uint32_t SegmentOf(std::uint64_t place) { return static_cast<std::uint32_t>(place >> kSegmentShift); }

}  // namespace

Result<std::unique_ptr<Index>> Index::Create(std::uint32_t max_entries, std::uint64_t seed) {
  auto index = std::unique_ptr<Index>(new Index(max_entries, seed));
  const std::uint32_t buckets = std::bit_ceil(std::max(max_entries, 64U));
  index->bucket_mask_ = buckets - 1;
  ORBITKV_ASSIGN_OR_RETURN(index->entries_, os::Mapping::Anonymous((std::uint64_t{max_entries} + 1) * sizeof(Entry)));
  ORBITKV_ASSIGN_OR_RETURN(index->heads_, os::Mapping::Anonymous(std::uint64_t{buckets} * sizeof(std::uint32_t)));
  return index;
}

Index::Spot Index::SpotOf(const state::StateKey& key) const {
  std::uint64_t value = MixDigest(seed_, key.hash.bytes);
  value = MixDigest(value, key.namespace_digest);
  value = Mix(value + ((std::uint64_t{key.group} << 32U) | key.shard));
  return {static_cast<std::uint32_t>(value), (value >> 32U << kHighShift) & kHighMask};
}

Index::Found Index::Describe(const Entry& entry) {
  Found found;
  if ((entry.place & kHasParent) != 0) found.facts.parent = entry.parent;
  found.facts.depth = entry.depth;
  found.facts.payload_bytes = entry.payload_bytes;
  found.facts.checksum = entry.checksum;
  found.location = {SegmentOf(entry.place), static_cast<std::uint32_t>((entry.place >> kSectorShift) & kSectorMask)};
  found.uses = static_cast<std::uint32_t>(entry.place & kUsesMask);
  return found;
}

std::uint32_t Index::NumberOf(Spot spot) const {
  std::uint32_t number = Head(spot.hash);
  while (number != 0 && (At(number).hash != spot.hash || (At(number).place & kHighMask) != spot.high)) {
    number = At(number).next;
  }
  return number;
}

std::optional<Index::Found> Index::Find(const state::StateKey& key) const {
  const Spot spot = SpotOf(key);
  const MutexLock lock(mutex_);
  const std::uint32_t number = NumberOf(spot);
  return number == 0 ? std::nullopt : std::optional(Describe(At(number)));
}

std::optional<Index::Found> Index::Use(const state::StateKey& key) {
  const Spot spot = SpotOf(key);
  const MutexLock lock(mutex_);
  const std::uint32_t number = NumberOf(spot);
  if (number == 0) return std::nullopt;
  Entry& entry = At(number);
  if ((entry.place & kUsesMask) < kUsesMask) ++entry.place;
  return Describe(entry);
}

std::optional<EntryId> Index::Store(Spot spot, const Facts& facts, Location location) {
  std::uint32_t number = NumberOf(spot);
  if (number == 0) {
    if (size_ == max_entries_) return std::nullopt;
    if (free_ != 0) {
      number = free_;
      free_ = At(number).next;
    } else {
      number = touched_++;
    }
    At(number).hash = spot.hash;
    At(number).next = Head(spot.hash);
    Head(spot.hash) = number;
    ++size_;
  }
  Entry& entry = At(number);
  entry.parent = facts.parent.value_or(state::BlockHash{});
  entry.checksum = facts.checksum;
  entry.place = PlaceOf(location) | spot.high | (facts.parent ? kHasParent : 0);
  entry.depth = facts.depth;
  entry.payload_bytes = facts.payload_bytes;
  return EntryId(number);
}

std::optional<EntryId> Index::Put(const state::StateKey& key, const Facts& facts, Location location) {
  const Spot spot = SpotOf(key);
  const MutexLock lock(mutex_);
  return Store(spot, facts, location);
}

std::optional<EntryId> Index::PutIfAbsent(const state::StateKey& key, const Facts& facts, Location location) {
  const Spot spot = SpotOf(key);
  const MutexLock lock(mutex_);
  return NumberOf(spot) != 0 ? std::nullopt : Store(spot, facts, location);
}

void Index::Unlink(std::uint32_t number) {
  Entry& entry = At(number);
  std::uint32_t* link = &Head(entry.hash);
  while (*link != number) {
    ORBITKV_CHECK(*link != 0);
    link = &At(*link).next;
  }
  *link = entry.next;
  entry.next = free_;
  entry.place = ~std::uint64_t{0};  // no segment
  free_ = number;
  --size_;
}

bool Index::Erase(const state::StateKey& key, Location location) {
  const Spot spot = SpotOf(key);
  const MutexLock lock(mutex_);
  const std::uint32_t number = NumberOf(spot);
  if (number == 0 || Describe(At(number)).location != location) return false;
  Unlink(number);
  return true;
}

std::optional<Index::Found> Index::InSegment(EntryId id, std::uint32_t segment) const {
  const MutexLock lock(mutex_);
  if (id.value() >= touched_ || SegmentOf(At(id.value()).place) != segment) return std::nullopt;
  return Describe(At(id.value()));
}

std::size_t Index::EraseFromSegment(std::span<const EntryId> ids, std::uint32_t segment) {
  const MutexLock lock(mutex_);
  std::size_t erased = 0;
  for (const EntryId id : ids) {
    if (id.value() >= touched_ || SegmentOf(At(id.value()).place) != segment) continue;
    Unlink(id.value());
    ++erased;
  }
  return erased;
}

std::uint32_t Index::size() const {
  const MutexLock lock(mutex_);
  return size_;
}

std::uint64_t Index::bytes() const {
  const MutexLock lock(mutex_);
  return std::uint64_t{touched_} * sizeof(Entry) + heads_.size();
}

}  // namespace orbitkv::store
