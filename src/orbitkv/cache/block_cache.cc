#include "orbitkv/cache/block_cache.h"

#include <array>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kMaxBlocks = 1U << 30U;
constexpr std::uint32_t kMaxComponents = 1U << 16U;
constexpr std::uint32_t kMaxLanes = 64;
constexpr unsigned kUseBits = 30;  // about a second in nanoseconds
// How far a look-up looks ahead: first the bucket, then the entry that it names.
constexpr std::size_t kBucketsAhead = 24;
constexpr std::size_t kEntriesAhead = 12;

std::unique_ptr<EvictionPolicy> MakePolicy(const BlockCache::PolicyFactory& policies, std::uint32_t max_blocks) {
  return policies ? policies(max_blocks) : MakeLruPolicy(max_blocks);
}

}  // namespace

Result<std::unique_ptr<BlockCache>> BlockCache::Create(const CacheConfig& config, pool::Pool& pool,
                                                       const PolicyFactory& policy) {
  if (config.max_blocks == 0 || config.max_blocks > kMaxBlocks) {
    return Fail(Code::kInvalid, "max_blocks is out of range", config.max_blocks, kMaxBlocks);
  }
  if (config.max_namespaces == 0) return Fail(Code::kInvalid, "max_namespaces is zero");
  auto made = MakePolicy(policy, config.max_blocks);
  if (made == nullptr) return Fail(Code::kInvalid, "no eviction policy");
  return std::unique_ptr<BlockCache>(new BlockCache(config, pool, policy, std::move(made)));
}

BlockCache::BlockCache(const CacheConfig& config, pool::Pool& pool, PolicyFactory policies,
                       std::unique_ptr<EvictionPolicy> policy)
    : config_(config),
      pool_(pool),
      policies_(std::move(policies)),
      policy_(std::move(policy)),
      index_(config.max_blocks),
      entries_(config.max_blocks),
      nodes_(std::size_t{pool.max_slots()} + 1),
      namespaces_(std::size_t{config.max_namespaces} + 1),
      row_users_(namespaces_.size()),
      row_lives_(namespaces_.size()),
      evicted_(std::min(config.max_blocks, kMostEvictedKept)) {
  for (std::uint32_t entry = 0; entry + 1 < config.max_blocks; ++entry) entries_[entry].next_waiting = entry + 1;
  lanes_.reserve(kMaxLanes);
}

Status BlockCache::AddNamespace(NamespaceRow row, std::span<const ComponentSpec> components,
                                std::span<const GroupSpec> groups) {
  if (row.is_none() || row.value() > config_.max_namespaces) {
    return Fail(Code::kInvalid, "namespace row is out of range", row.value(), config_.max_namespaces);
  }
  Namespace& known = namespaces_[row.value()];
  if (!known.components.empty()) {
    if (std::ranges::equal(known.components, components) && std::ranges::equal(known.specs, groups)) return {};
    return Fail(Code::kRefused, "the namespace has other components already", row.value());
  }
  ORBITKV_TRY(CheckNamespace(components, groups));
  ORBITKV_ASSIGN_OR_RETURN(Namespace space, Describe(components, groups));
  space.lane = LaneFor(space, Part::kWhole);
  space.sparse_lane = LaneFor(space, Part::kSparse);
  known = std::move(space);
  return {};
}

Status BlockCache::CheckNamespace(std::span<const ComponentSpec> components, std::span<const GroupSpec> groups) const {
  ORBITKV_ASSIGN_OR_RETURN(const Namespace space, Describe(components, groups));
  std::size_t lanes = lanes_.size();
  for (const Part part : {Part::kWhole, Part::kSparse}) {
    if (!SlotSizes(space, part).empty() && FindLane(space, part) == kNone) ++lanes;
  }
  if (lanes > kMaxLanes) return Fail(Code::kBusy, "too many different block sizes", kMaxLanes);
  return {};
}

Result<BlockCache::Namespace> BlockCache::Describe(std::span<const ComponentSpec> components,
                                                   std::span<const GroupSpec> groups) const {
  if (components.empty() || components.size() > kMaxComponents) {
    return Fail(Code::kInvalid, "number of components is out of range", components.size(), kMaxComponents);
  }
  Namespace space;
  space.components.assign(components.begin(), components.end());
  for (const ComponentSpec& component : components) {
    const std::uint64_t slot_bytes = pool::Pool::SlotBytes(component.slot_bytes);
    if (pool_.SlabUnits(slot_bytes) == 0) {
      return Fail(Code::kInvalid, "a block does not fit into the pool: start the Manager with a larger pool",
                  component.slot_bytes, pool_.gauges().pool_bytes);
    }
    space.block_bytes += slot_bytes;
  }
  ORBITKV_TRY(DescribeGroups(groups, space));
  return space;
}

Status BlockCache::DescribeGroups(std::span<const GroupSpec> groups, Namespace& space) {
  space.specs.assign(groups.begin(), groups.end());
  for (const GroupSpec& spec : groups) space.groups.push_back(Group{.spec = spec, .shards = 0});
  for (const ComponentSpec& component : space.components) {
    if (component.group >= (groups.empty() ? kMaxGroups : groups.size())) {
      return Fail(Code::kInvalid, "a component names a group out of range", component.group, groups.size());
    }
    if (component.group >= space.groups.size()) space.groups.resize(component.group + 1);
    ++space.groups[component.group].shards;
  }
  std::uint32_t used = 0;
  for (std::uint32_t group = 0; group < space.groups.size(); ++group) {
    const Group& one = space.groups[group];
    if (one.spec.ratio == 0 || space.groups.size() > kMaxGroups) {
      return Fail(Code::kInvalid, "a group without ratio, or too many groups", group, space.groups.size());
    }
    if (one.shards == 0) continue;
    ++used;
    if (one.spec.dense) space.dense_groups |= 1U << group;
    space.simple = one.spec.dense && one.spec.ratio == 1;
  }
  space.simple = space.simple && used == 1;
  return {};
}

// Ascending, each once; empty when no group belongs to the part.
std::vector<std::uint64_t> BlockCache::SlotSizes(const Namespace& space, Part part) {
  std::vector<std::uint64_t> sizes;
  for (std::uint32_t component = 0; component < space.components.size(); ++component) {
    if (PartOf(space, component) != part) continue;
    sizes.push_back(pool::Pool::SlotBytes(space.components[component].slot_bytes));
  }
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  return sizes;
}

std::uint32_t BlockCache::FindLane(const Namespace& space, Part part) const {
  const std::vector<std::uint64_t> sizes = SlotSizes(space, part);
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].part == part && lanes_[lane].slot_sizes == sizes) return lane;
  }
  return kNone;
}

// The lane of that part of the namespace's blocks, a new one where its sizes are new; CheckNamespace found room. kNone
// when no group belongs to the part.
std::uint32_t BlockCache::LaneFor(const Namespace& space, Part part) {
  std::vector<std::uint64_t> sizes = SlotSizes(space, part);
  if (sizes.empty()) return kNone;
  if (const std::uint32_t lane = FindLane(space, part); lane != kNone) return lane;
  if (part == Part::kSparse && sparse_policy_ == nullptr) sparse_policy_ = MakePolicy(policies_, config_.max_blocks);
  const auto others = std::ranges::count(lanes_, part, &Lane::part);
  Lane& added = lanes_.emplace_back();
  added.slot_sizes = std::move(sizes);
  added.part = part;
  added.policy_lane = static_cast<std::uint32_t>(others);
  PolicyOf(part).AddLane();
  return static_cast<std::uint32_t>(lanes_.size()) - 1;
}

bool BlockCache::Lane::Has(std::uint64_t slot_bytes) const {
  return std::ranges::find(slot_sizes, slot_bytes) != slot_sizes.end();
}

Status BlockCache::ForgetNamespace(NamespaceRow row) {
  if (FindNamespace(row) == nullptr) return {};
  if (row_users_[row.value()] != 0) {
    return Fail(Code::kBusy, "blocks of the namespace are in the pool", row_users_[row.value()]);
  }
  namespaces_[row.value()] = {};
  ++row_lives_[row.value()];
  return {};
}

const BlockCache::Namespace* BlockCache::FindNamespace(NamespaceRow row) const {
  if (row.is_none() || row.value() > config_.max_namespaces) return nullptr;
  const Namespace& found = namespaces_[row.value()];
  return found.components.empty() ? nullptr : &found;
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

// Calls visit(position, entry or kNone) for each hash until it returns false.
template <typename Visit>
void BlockCache::Walk(NamespaceRow row, std::span<const state::BlockHash> hashes, Visit&& visit) const {
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
  for (std::size_t at = 0; at < count; ++at) {
    ask_bucket(at + kBucketsAhead);
    ask_entry(at + kEntriesAhead);
    const std::uint32_t entry = index_.Find(ring[at % ring.size()], [&](std::uint32_t candidate) {
      return entries_[candidate].row == row && entries_[candidate].hash == hashes[at];
    });
    if (!visit(entry)) return;
  }
}

std::uint32_t BlockCache::MatchPrefix(NamespaceRow row, std::span<const state::BlockHash> hashes,
                                      std::vector<BlockRef>& out) {
  std::uint32_t matched = 0;
  Walk(row, hashes, [&](std::uint32_t entry) {
    if (entry == kNone || entries_[entry].lacking != 0) return false;
    out.push_back(RefOf(entry));
    ++matched;
    return true;
  });
  counters_.hits += matched;
  if (matched < hashes.size()) ++counters_.misses;
  return matched;
}

void BlockCache::LookUp(NamespaceRow row, std::span<const state::BlockHash> hashes, std::vector<BlockUse>& out) {
  std::size_t found = 0;
  Walk(row, hashes, [&](std::uint32_t entry) {
    BlockUse& use = out.emplace_back();
    if (entry == kNone || entries_[entry].complete == 0) return true;
    use = BlockUse{RefOf(entry), entries_[entry].complete};
    ++found;
    return true;
  });
  counters_.hits += found;
  if (found < hashes.size()) ++counters_.misses;
}

bool BlockCache::IsServed(BlockRef ref) const {
  const Entry* entry = Deref(ref);
  return entry != nullptr && entry->lacking == 0;
}

Absence BlockCache::WhyAbsent(NamespaceRow row, const state::BlockHash& hash) const {
  if (FindNamespace(row) == nullptr) return Absence::kNeverSeen;
  const std::uint32_t entry = Lookup(row, hash);
  if (entry != kNone && entries_[entry].present > 0) return Absence::kIncomplete;
  return evicted_.Contains(KeyOfLife(row, hash)) ? Absence::kEvicted : Absence::kNeverSeen;
}

std::uint64_t BlockCache::BytesOf(BlockRef ref) const {
  const Entry* entry = Deref(ref);
  if (entry == nullptr) return 0;
  const Namespace& space = namespaces_[entry->row.value()];
  std::uint64_t bytes = 0;
  for (std::uint32_t slot = entry->first_slot; slot != kNone; slot = nodes_[slot].next) {
    bytes += pool::Pool::SlotBytes(space.components[nodes_[slot].component].slot_bytes);
  }
  return bytes;
}

std::uint64_t BlockCache::BytesPerBlock(NamespaceRow row) const {
  const Namespace* found = FindNamespace(row);
  return found == nullptr ? 0 : found->block_bytes;
}

std::uint32_t BlockCache::ComponentCount(NamespaceRow row) const {
  const Namespace* found = FindNamespace(row);
  return found == nullptr ? 0 : static_cast<std::uint32_t>(found->components.size());
}

void BlockCache::TouchEntry(std::uint32_t index, std::uint32_t groups) {
  Entry& entry = entries_[index];
  const std::uint32_t dense = namespaces_[entry.row.value()].dense_groups;
  NoteUse(entry);
  if ((groups & dense) != 0) {
    entry.last_use_ns = now_ns_;
    if (entry.present > entry.sparse_present) policy_->OnTouch(index, now_ns_);
  }
  if ((groups & ~dense) != 0 && entry.sparse_present > 0) {
    entry.sparse_use_ns = now_ns_;
    sparse_policy_->OnTouch(index, now_ns_);
  }
}

// For a later life, in whose order a second more or less does not matter: a store per slot and second at most.
void BlockCache::NoteUse(const Entry& entry) {
  const std::uint64_t last_ns = std::max(entry.last_use_ns, entry.sparse_use_ns);
  if (now_ns_ >> kUseBits == last_ns >> kUseBits) return;
  for (std::uint32_t slot = entry.first_slot; slot != kNone; slot = nodes_[slot].next) {
    if (nodes_[slot].use == SlotUse::kPresent) pool_.NoteUse(pool::SlotIndex(slot), nodes_[slot].generation, now_ns_);
  }
}

void BlockCache::Touch(std::span<const BlockRef> refs, std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  for (const BlockRef& ref : refs) {
    if (Deref(ref) != nullptr) TouchEntry(ref.index, ~std::uint32_t{0});
  }
}

void BlockCache::Touch(std::span<const BlockUse> uses, std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  for (const BlockUse& use : uses) {
    if (Deref(use.ref) != nullptr) TouchEntry(use.ref.index, use.groups);
  }
}

bool BlockCache::Pin(BlockRef ref, bool granted) {
  Entry* entry = Deref(ref);
  ++(granted ? entry->granted : entry->found);
  ++(granted ? gauges_.granted_pins : gauges_.found_pins);
  if (entry->candidate || entry->sparse_candidate) UpdateCandidate(ref.index);
  return true;
}

bool BlockCache::HasGroups(const BlockUse& use) const {
  const Entry* entry = Deref(use.ref);
  return entry != nullptr && (use.groups & ~entry->complete) == 0;
}

bool BlockCache::PinFound(BlockRef ref) { return IsServed(ref) && Pin(ref, false); }

bool BlockCache::PinGranted(BlockRef ref) { return IsServed(ref) && Pin(ref, true); }

bool BlockCache::PinFound(const BlockUse& use) { return HasGroups(use) && Pin(use.ref, false); }

bool BlockCache::PinGranted(const BlockUse& use) { return HasGroups(use) && Pin(use.ref, true); }

void BlockCache::UnpinFound(BlockRef ref) {
  Entry* entry = Deref(ref);
  ORBITKV_CHECK(entry != nullptr && entry->found > 0);
  --gauges_.found_pins;
  if (--entry->found == 0) Settle(ref.index);
}

void BlockCache::UnpinGranted(BlockRef ref) {
  Entry* entry = Deref(ref);
  ORBITKV_CHECK(entry != nullptr && entry->granted > 0);
  --gauges_.granted_pins;
  if (--entry->granted > 0) return;
  FreeDraining(ref.index);
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
