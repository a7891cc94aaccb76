// Making room in the cache.
//
// In this order: blocks that stayed incomplete; the coldest leaf whose slots have the wanted size; when there is none,
// a whole slab of other sizes; at last leases are revoked. A size that evicts its own blocks while colder ones of other
// sizes lie in the pool takes a slab from those now and then, so that the pool follows the load.
#include <array>
#include <limits>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kLateTries = 4;      // late blocks looked at: pinned ones are passed over
constexpr std::uint32_t kWindowTries = 8;    // windows looked at for one reservation
constexpr std::uint32_t kEntryTries = 64;    // evictions for one entry of the index
constexpr std::size_t kSaveTries = 8;        // victims passed over because they wait to be saved
constexpr std::uint32_t kReclaimEvery = 32;  // own evictions between two slabs taken from colder sizes

}  // namespace

// Takes all of the block, or its sparse part alone.
void BlockCache::Evict(std::uint32_t index, Part part) {
  const Entry& entry = entries_[index];
  ORBITKV_CHECK(IsEvictable(entry));
  ++counters_.evictions;
  if (entry.awaits_save) ++counters_.evicted_unsaved;
  if (entry.lacking == 0) evicted_.Add(KeyOfLife(entry.row, entry.hash));
  if (part == Part::kWhole) {
    while (entry.present > 0) Detach(index, entry.first_slot);
  } else {
    while (entry.sparse_present > 0) Detach(index, SlotOf(index, Part::kSparse).value());
  }
  Settle(index);
}

// What is left of a block whose dense part is there: the sparse groups that lack shards go.
void BlockCache::DropPartialGroups(std::uint32_t index) {
  const Entry& entry = entries_[index];
  ORBITKV_CHECK(IsEvictable(entry));
  const Namespace& space = namespaces_[entry.row.value()];
  ++counters_.evictions;
  for (std::uint32_t slot = entry.first_slot; slot != kNone;) {
    const std::uint32_t next = nodes_[slot].next;
    const std::uint32_t group = space.components[nodes_[slot].component].group;
    if (!space.groups[group].spec.dense && ((entry.complete >> group) & 1U) == 0) Detach(index, slot);
    slot = next;
  }
  Settle(index);
}

std::optional<std::uint32_t> BlockCache::Victim(const Lane& lane) const {
  return (lane.part == Part::kWhole ? policy_ : sparse_policy_)->Victim(lane.policy_lane);
}

// The lane has a victim. Among the next few, which are about as cold, one that does not wait to be saved is taken: what
// waits will be found behind the pool soon. Nothing ever waits for it.
std::uint32_t BlockCache::CheapVictim(const Lane& lane) {
  EvictionPolicy& policy = PolicyOf(lane.part);
  std::array<std::uint32_t, kSaveTries> passed{};
  std::size_t count = 0;
  auto victim = Victim(lane);
  for (; victim && entries_[*victim].awaits_save && count < kSaveTries; victim = Victim(lane)) {
    policy.OnNoCandidate(*victim);
    passed[count++] = *victim;
  }
  for (std::size_t i = 0; i < count; ++i) policy.OnCandidate(passed[i]);
  return count > 0 && (!victim || entries_[*victim].awaits_save) ? passed[0] : victim.value();
}

std::uint64_t BlockCache::LastUse(std::uint32_t index, Part part) const {
  return part == Part::kWhole ? entries_[index].last_use_ns : entries_[index].sparse_use_ns;
}

BlockCache::Part BlockCache::PartOfSlot(std::uint32_t slot) const {
  return PartOf(namespaces_[entries_[nodes_[slot].owner].row.value()], nodes_[slot].component);
}

// A slot of that part, which has one.
pool::SlotIndex BlockCache::SlotOf(std::uint32_t index, Part part) const {
  std::uint32_t slot = entries_[index].first_slot;
  while (PartOfSlot(slot) != part) slot = nodes_[slot].next;
  return pool::SlotIndex(slot);
}

// The lane whose victim was used longest ago, among those that have the size or among those that have not.
std::uint32_t BlockCache::ColdestLane(std::uint64_t slot_bytes, bool with_that_size) const {
  std::uint32_t coldest = kNone;
  std::uint64_t last_use_ns = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].Has(slot_bytes) != with_that_size) continue;
    const auto victim = Victim(lanes_[lane]);
    if (!victim || LastUse(*victim, lanes_[lane].part) >= last_use_ns) continue;
    coldest = lane;
    last_use_ns = LastUse(*victim, lanes_[lane].part);
  }
  return coldest;
}

std::uint32_t BlockCache::ColdestLaneOf(Part part) const {
  std::uint32_t coldest = kNone;
  std::uint64_t last_use_ns = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].part != part) continue;
    const auto victim = Victim(lanes_[lane]);
    if (!victim || LastUse(*victim, part) >= last_use_ns) continue;
    coldest = lane;
    last_use_ns = LastUse(*victim, part);
  }
  return coldest;
}

bool BlockCache::EvictLate(std::uint64_t slot_bytes) {
  for (const Lane& lane : lanes_) {
    if (!lane.Has(slot_bytes)) continue;
    std::uint32_t entry = lane.late.head;
    for (std::uint32_t tries = 0; tries < kLateTries && entry != kNone; ++tries) {
      if (IsEvictable(entries_[entry])) {
        if (entries_[entry].lacking == 0) {
          DropPartialGroups(entry);
        } else {
          Evict(entry, Part::kWhole);
        }
        return true;
      }
      entry = entries_[entry].next_waiting;
    }
  }
  return false;
}

// Evicts everything in the window if all of it may go and at most half of it was used since keep_since_ns.
bool BlockCache::Reclaim(std::optional<pool::Window> window, std::uint64_t keep_since_ns) {
  if (!window) return false;
  std::uint64_t total = 0;
  std::uint64_t kept_dear = 0;
  const bool all = pool_.ForEachSlot(*window, [&](pool::SlotIndex slot) {
    const SlotNode& node = nodes_[slot.value()];
    if (node.use != SlotUse::kPresent || !IsEvictable(entries_[node.owner])) return false;
    ++total;
    if (LastUse(node.owner, PartOfSlot(slot.value())) >= keep_since_ns) ++kept_dear;
    return true;
  });
  if (!all || total == 0 || kept_dear * 2 > total) return false;
  pool_.ForEachSlot(*window, [&](pool::SlotIndex slot) {
    Evict(nodes_[slot.value()].owner, PartOfSlot(slot.value()));
    return true;
  });
  ++counters_.reclaimed_slabs;
  return true;
}

bool BlockCache::ReclaimAny(std::uint64_t slot_bytes) {
  constexpr auto kAnyAge = std::numeric_limits<std::uint64_t>::max();
  if (const std::uint32_t lane = ColdestLane(slot_bytes, false); lane != kNone) {
    const std::uint32_t victim = Victim(lanes_[lane]).value();
    if (Reclaim(pool_.WindowAt(SlotOf(victim, lanes_[lane].part), slot_bytes), kAnyAge)) return true;
  }
  for (std::uint32_t tries = 0; tries < kWindowTries; ++tries) {
    const auto window = pool_.NextWindow(slot_bytes);
    if (!window) return false;
    if (Reclaim(window, kAnyAge)) return true;
  }
  return false;
}

bool BlockCache::ReclaimColder(std::uint64_t slot_bytes, std::uint32_t own_lane, std::uint64_t own_last_use_ns) {
  if (lanes_.size() == 1 || lanes_[own_lane].evictions_since_reclaim < kReclaimEvery) return false;
  const std::uint32_t other = ColdestLane(slot_bytes, false);
  if (other == kNone) return false;
  const Part part = lanes_[other].part;
  const std::uint32_t victim = Victim(lanes_[other]).value();
  if (LastUse(victim, part) >= own_last_use_ns) return false;
  lanes_[own_lane].evictions_since_reclaim = 0;
  return Reclaim(pool_.WindowAt(SlotOf(victim, part), slot_bytes), own_last_use_ns);
}

bool BlockCache::MakeRoom(std::uint64_t slot_bytes) {
  if (EvictLate(slot_bytes)) return true;
  const std::uint32_t lane = ColdestLane(slot_bytes, true);
  if (lane == kNone) return ReclaimAny(slot_bytes);
  const Part part = lanes_[lane].part;
  const std::uint32_t victim = Victim(lanes_[lane]).value();
  if (ReclaimColder(slot_bytes, lane, LastUse(victim, part))) return true;
  ++lanes_[lane].evictions_since_reclaim;
  Evict(CheapVictim(lanes_[lane]), part);
  return true;
}

// A free entry of the index, from the coldest leaf of all sizes; without one, from blocks that have a sparse part only.
bool BlockCache::MakeEntryRoom() {
  std::uint32_t revokes = config_.max_revokes;
  do {
    for (std::uint32_t tries = 0; tries < kEntryTries; ++tries) {
      std::uint32_t lane = ColdestLaneOf(Part::kWhole);
      if (lane == kNone) lane = ColdestLaneOf(Part::kSparse);
      if (lane == kNone) break;
      Evict(Victim(lanes_[lane]).value(), lanes_[lane].part);
      if (free_entries_ != kNone) return true;
    }
  } while (Revoke(revokes));
  return free_entries_ != kNone;
}

bool BlockCache::Revoke(std::uint32_t& budget) {
  if (revoker_ == nullptr || budget == 0 || !revoker_->RevokeOne()) return false;
  --budget;
  ++counters_.revoked;
  return true;
}

}  // namespace orbitkv::cache
