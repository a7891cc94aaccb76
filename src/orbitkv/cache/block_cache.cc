#include "orbitkv/cache/block_cache.h"

#include <array>

#include "orbitkv/base/check.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kMaxBlocks = 1U << 30U;
constexpr std::uint32_t kMaxComponents = 1U << 16U;
constexpr std::uint32_t kMaxLanes = 64;
// How far MatchPrefix looks ahead: first the bucket, then the entry that it names.
constexpr std::size_t kBucketsAhead = 24;
constexpr std::size_t kEntriesAhead = 12;

}  // namespace

Result<std::unique_ptr<BlockCache>> BlockCache::Create(const CacheConfig& config, pool::Pool& pool,
                                                       const PolicyFactory& policy) {
  if (config.max_blocks == 0 || config.max_blocks > kMaxBlocks) {
    return Fail(Code::kInvalid, "max_blocks is out of range", config.max_blocks, kMaxBlocks);
  }
  if (config.max_namespaces == 0) return Fail(Code::kInvalid, "max_namespaces is zero");
  auto made = policy ? policy(config.max_blocks) : MakeLruPolicy(config.max_blocks);
  if (made == nullptr) return Fail(Code::kInvalid, "no eviction policy");
  return std::unique_ptr<BlockCache>(new BlockCache(config, pool, std::move(made)));
}

BlockCache::BlockCache(const CacheConfig& config, pool::Pool& pool, std::unique_ptr<EvictionPolicy> policy)
    : config_(config),
      pool_(pool),
      policy_(std::move(policy)),
      index_(config.max_blocks),
      entries_(config.max_blocks),
      nodes_(std::size_t{pool.max_slots()} + 1),
      namespaces_(std::size_t{config.max_namespaces} + 1) {
  for (std::uint32_t entry = 0; entry + 1 < config.max_blocks; ++entry) entries_[entry].next_waiting = entry + 1;
  lanes_.reserve(kMaxLanes);
}

Status BlockCache::AddNamespace(NamespaceRow row, std::span<const ComponentSpec> components) {
  if (row.is_none() || row.value() > config_.max_namespaces) {
    return Fail(Code::kInvalid, "namespace row is out of range", row.value(), config_.max_namespaces);
  }
  if (components.empty() || components.size() > kMaxComponents) {
    return Fail(Code::kInvalid, "number of components is out of range", components.size(), kMaxComponents);
  }
  Namespace& known = namespaces_[row.value()];
  if (!known.components.empty()) {
    if (std::ranges::equal(known.components, components)) return {};
    return Fail(Code::kRefused, "the namespace has other components already", row.value());
  }
  std::uint64_t block_bytes = 0;
  for (const ComponentSpec& component : components) {
    const std::uint64_t slot_bytes = pool::Pool::SlotBytes(component.slot_bytes);
    if (pool_.SlabUnits(slot_bytes) == 0) {
      return Fail(Code::kInvalid, "a block does not fit into the pool; make the pool larger", component.slot_bytes,
                  pool_.gauges().pool_bytes);
    }
    block_bytes += slot_bytes;
  }
  ORBITKV_ASSIGN_OR_RETURN(known.lane, LaneFor(components));
  known.components.assign(components.begin(), components.end());
  known.block_bytes = block_bytes;
  return {};
}

Result<std::uint32_t> BlockCache::LaneFor(std::span<const ComponentSpec> components) {
  std::vector<std::uint64_t> sizes;
  for (const ComponentSpec& component : components) sizes.push_back(pool::Pool::SlotBytes(component.slot_bytes));
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].slot_sizes == sizes) return lane;
  }
  if (lanes_.size() == kMaxLanes) return Fail(Code::kBusy, "too many different block sizes", kMaxLanes);
  lanes_.emplace_back().slot_sizes = std::move(sizes);
  policy_->AddLane();
  return static_cast<std::uint32_t>(lanes_.size()) - 1;
}

bool BlockCache::Lane::Has(std::uint64_t slot_bytes) const {
  return std::ranges::find(slot_sizes, slot_bytes) != slot_sizes.end();
}

const BlockCache::Namespace* BlockCache::FindNamespace(NamespaceRow row) const {
  if (row.is_none() || row.value() > config_.max_namespaces) return nullptr;
  const Namespace& found = namespaces_[row.value()];
  return found.components.empty() ? nullptr : &found;
}

std::uint32_t BlockCache::HashOf(NamespaceRow row, const state::BlockHash& hash) const {
  std::uint64_t mixed = hash.Prefix64() ^ config_.hash_seed;
  mixed = (mixed ^ (mixed >> 32U)) * 0x9e3779b97f4a7c15ULL + row.value();
  mixed = (mixed ^ (mixed >> 29U)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<std::uint32_t>(mixed >> 32U);
}

std::uint32_t BlockCache::Lookup(NamespaceRow row, const state::BlockHash& hash) const {
  return index_.Find(HashOf(row, hash),
                     [&](std::uint32_t entry) { return entries_[entry].row == row && entries_[entry].hash == hash; });
}

const BlockCache::Entry* BlockCache::Deref(BlockRef ref) const {
  if (ref.index >= entries_.size()) return nullptr;
  const Entry& entry = entries_[ref.index];
  return entry.used && entry.generation == ref.generation ? &entry : nullptr;
}

std::optional<BlockRef> BlockCache::Find(NamespaceRow row, const state::BlockHash& hash) {
  const std::uint32_t entry = Lookup(row, hash);
  if (entry == kNone || entries_[entry].lacking != 0) {
    ++counters_.misses;
    return std::nullopt;
  }
  ++counters_.hits;
  return RefOf(entry);
}

std::uint32_t BlockCache::MatchPrefix(NamespaceRow row, std::span<const state::BlockHash> hashes,
                                      std::vector<BlockRef>& out) {
  std::array<std::uint32_t, 32> ring{};
  static_assert(kBucketsAhead < ring.size() && kEntriesAhead < kBucketsAhead);
  const std::size_t count = hashes.size();
  const auto ask_bucket = [&](std::size_t i) {
    if (i >= count) return;
    ring[i % ring.size()] = HashOf(row, hashes[i]);
    index_.Prefetch(ring[i % ring.size()]);
  };
  const auto ask_entry = [&](std::size_t i) {
    if (i >= count) return;
    const std::uint32_t guess = index_.Guess(ring[i % ring.size()]);
    if (guess != kNone) __builtin_prefetch(&entries_[guess]);
  };
  for (std::size_t i = 0; i < kBucketsAhead; ++i) ask_bucket(i);
  for (std::size_t i = 0; i < kEntriesAhead; ++i) ask_entry(i);
  std::size_t matched = 0;
  for (; matched < count; ++matched) {
    ask_bucket(matched + kBucketsAhead);
    ask_entry(matched + kEntriesAhead);
    const std::uint32_t entry = index_.Find(ring[matched % ring.size()], [&](std::uint32_t candidate) {
      return entries_[candidate].row == row && entries_[candidate].hash == hashes[matched];
    });
    if (entry == kNone || entries_[entry].lacking != 0) break;
    out.push_back(RefOf(entry));
  }
  counters_.hits += matched;
  if (matched < count) ++counters_.misses;
  return static_cast<std::uint32_t>(matched);
}

bool BlockCache::IsServed(BlockRef ref) const {
  const Entry* entry = Deref(ref);
  return entry != nullptr && entry->lacking == 0;
}

std::uint64_t BlockCache::BytesOf(BlockRef ref) const {
  const Entry* entry = Deref(ref);
  return entry == nullptr ? 0 : BytesPerBlock(entry->row);
}

std::uint64_t BlockCache::BytesPerBlock(NamespaceRow row) const {
  const Namespace* found = FindNamespace(row);
  return found == nullptr ? 0 : found->block_bytes;
}

std::uint32_t BlockCache::ComponentCount(NamespaceRow row) const {
  const Namespace* found = FindNamespace(row);
  return found == nullptr ? 0 : static_cast<std::uint32_t>(found->components.size());
}

void BlockCache::TouchEntry(std::uint32_t entry) {
  entries_[entry].last_use_ns = now_ns_;
  if (entries_[entry].present > 0) policy_->OnTouch(entry, now_ns_);
}

void BlockCache::Touch(std::span<const BlockRef> refs, std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  for (const BlockRef& ref : refs) {
    if (Deref(ref) != nullptr) TouchEntry(ref.index);
  }
}

bool BlockCache::PinFound(BlockRef ref) {
  if (!IsServed(ref)) return false;
  ++entries_[ref.index].found;
  ++gauges_.found_pins;
  UpdateCandidate(ref.index);
  return true;
}

bool BlockCache::PinGranted(BlockRef ref) {
  if (!IsServed(ref)) return false;
  ++entries_[ref.index].granted;
  ++gauges_.granted_pins;
  UpdateCandidate(ref.index);
  return true;
}

void BlockCache::UnpinFound(BlockRef ref) {
  Entry* entry = Deref(ref);
  ORBITKV_CHECK(entry != nullptr && entry->found > 0);
  --entry->found;
  --gauges_.found_pins;
  Settle(ref.index);
}

void BlockCache::UnpinGranted(BlockRef ref) {
  Entry* entry = Deref(ref);
  ORBITKV_CHECK(entry != nullptr && entry->granted > 0);
  --gauges_.granted_pins;
  if (--entry->granted == 0) FreeDraining(ref.index);
  Settle(ref.index);
}

void BlockCache::WriterLost(NamespaceRow row, const state::BlockHash& hash) {
  const std::uint32_t entry = Lookup(row, hash);
  if (entry == kNone || entries_[entry].lateness != Lateness::kWaiting) return;
  ++counters_.incomplete;
  SetLateness(entry, Lateness::kLate);
}

void BlockCache::Tick(std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  while (waiting_.head != kNone) {
    const std::uint32_t entry = waiting_.head;
    if (now_ns_ - entries_[entry].waiting_since_ns < config_.incomplete_after_ns) return;
    ++counters_.incomplete;
    SetLateness(entry, Lateness::kLate);
  }
}

std::optional<std::uint64_t> BlockCache::next_deadline_ns() const {
  if (waiting_.head == kNone) return std::nullopt;
  return entries_[waiting_.head].waiting_since_ns + config_.incomplete_after_ns;
}

}  // namespace orbitkv::cache
