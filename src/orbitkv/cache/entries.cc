// The cache's entries: their life, their place in the tree of prefixes, and the slots that hang on them.
//
// An entry lives while it has a slot (present, suspect or draining), a child or a pin. Settle is called after anything
// of that was taken away: it removes the entry, and then its parents as far as they lived for this child alone.
#include <algorithm>
#include <array>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {

std::uint32_t BlockCache::NewEntry(NamespaceRow row, const state::BlockHash& hash, std::uint32_t depth) {
  if (free_entries_ == kNone && !MakeEntryRoom()) return kNone;
  const std::uint32_t index = free_entries_;
  Entry& entry = entries_[index];
  free_entries_ = entry.next_waiting;
  const std::uint32_t generation = entry.generation;
  entry = Entry{};
  entry.hash = hash;
  entry.row = row;
  entry.generation = generation;
  entry.depth = depth;
  entry.last_use_ns = now_ns_;
  entry.used = true;
  entry.lacking = 1;
  Recount(index);
  index_.Insert(HashOf(row, hash), index);
  ++gauges_.entries;
  ++row_users_[row.value()];
  return index;
}

void BlockCache::Settle(std::uint32_t index) {
  while (index != kNone) {
    Entry& entry = entries_[index];
    if (entry.first_slot != kNone || entry.children != 0 || entry.found != 0 || entry.granted != 0) {
      UpdateCandidate(index);
      return;
    }
    ORBITKV_CHECK(!entry.candidate && !entry.sparse_candidate && entry.lateness == Lateness::kNotWaiting);
    const std::uint32_t parent = entry.parent;
    index_.Erase(HashOf(entry.row, entry.hash), index);
    entry.used = false;
    ++entry.generation;
    entry.next_waiting = free_entries_;
    free_entries_ = index;
    --gauges_.entries;
    --row_users_[entry.row.value()];
    if (parent != kNone) --entries_[parent].children;
    index = parent;
  }
}

void BlockCache::UpdateCandidate(std::uint32_t index) {
  Entry& entry = entries_[index];
  const bool evictable = IsEvictable(entry);
  const auto update = [index](bool& was, bool is, EvictionPolicy* policy) {
    if (was == is) return;
    was = is;
    if (is) {
      policy->OnCandidate(index);
    } else {
      policy->OnNoCandidate(index);
    }
  };
  const bool has_dense = entry.present > entry.sparse_present;
  update(entry.candidate, evictable && has_dense && entry.children == 0, policy_.get());
  update(entry.sparse_candidate, evictable && entry.sparse_present > 0, sparse_policy_.get());
}

// Links the entry below its parent. A parent that is not there gets an entry without slots. Depths that contradict
// each other are left unlinked, so that no input can make a cycle, whose blocks would never be leaves. Groups with
// longer blocks name a parent further up: the nearest one stays.
void BlockCache::SetParent(std::uint32_t index, const state::BlockHash& parent_hash, std::uint32_t parent_depth) {
  const std::uint32_t known = entries_[index].parent;
  if (known != kNone && entries_[known].depth >= parent_depth) return;
  std::uint32_t parent = Lookup(entries_[index].row, parent_hash);
  if (parent == kNone) {
    // Making room must not take this entry, nor its last child and the entry with it.
    ++entries_[index].found;
    UpdateCandidate(index);
    parent = NewEntry(entries_[index].row, parent_hash, parent_depth);
    --entries_[index].found;
    if (parent == kNone) return;
  }
  if (entries_[parent].depth != parent_depth) return;
  entries_[index].parent = parent;
  ++entries_[parent].children;
  UpdateCandidate(parent);
  if (known != kNone) {
    --entries_[known].children;
    Settle(known);
  }
}

std::uint32_t BlockCache::FindComponent(const Entry& entry, std::uint32_t component) const {
  for (std::uint32_t slot = entry.first_slot; slot != kNone; slot = nodes_[slot].next) {
    if (nodes_[slot].component == component && nodes_[slot].use != SlotUse::kDraining) return slot;
  }
  return kNone;
}

// A reserved slot becomes the entry's component.
void BlockCache::Attach(std::uint32_t index, std::uint32_t slot, const CommitRequest& request) {
  Entry& entry = entries_[index];
  SlotNode& node = nodes_[slot];
  node.owner = index;
  node.use = SlotUse::kPresent;
  node.save = request.saved ? SaveState::kSaved : SaveState::kNot;
  node.used = false;
  node.next = entry.first_slot;
  entry.first_slot = slot;
  --gauges_.reserved_slots;
  --row_users_[request.row.value()];
  const Namespace& space = namespaces_[entry.row.value()];
  const Part part = PartOf(space, node.component);
  const bool first = part == Part::kSparse ? entry.sparse_present == 0 : entry.present == entry.sparse_present;
  ++entry.present;
  if (part == Part::kSparse) ++entry.sparse_present;
  if (first) {
    const std::uint32_t lane = part == Part::kSparse ? space.sparse_lane : space.lane;
    PolicyOf(part).OnInsert(index, BlockFacts{.key = KeyOf(request.row, request.hash),
                                              .last_use_ns = now_ns_,
                                              .lane = lanes_[lane].policy_lane,
                                              .depth = entry.depth,
                                              .parent_key = request.parent ? KeyOf(request.row, *request.parent) : 0,
                                              .prompt_tokens = request.prompt_tokens,
                                              .answer_tokens = request.answer_tokens,
                                              .awaited = request.saved});
  }
  ++counters_.commits;
  const bool served = entry.lacking == 0;
  Recount(index);
  if (!served && entry.lacking == 0) ++counters_.inserts;
  UpdateWaiting(index);
  // To the policy the parts of a block that come one after another are not uses of it.
  (part == Part::kSparse ? entry.sparse_use_ns : entry.last_use_ns) = now_ns_;
}

// A component's slot leaves the index; it is freed now, or when the last granted pin is gone. The caller settles.
void BlockCache::Detach(std::uint32_t index, std::uint32_t slot) {
  Entry& entry = entries_[index];
  SlotNode& node = nodes_[slot];
  ORBITKV_CHECK(node.owner == index);
  if (node.use == SlotUse::kSuspect) {
    --entry.suspects;
    --gauges_.suspect;
  } else {
    ORBITKV_CHECK(node.use == SlotUse::kPresent);
  }
  const Part part = PartOf(namespaces_[entry.row.value()], node.component);
  if (entry.granted > 0) {
    node.use = SlotUse::kDraining;
    ++gauges_.draining;
  } else {
    UnlinkSlot(index, slot);
    FreeSlot(slot);
  }
  --entry.present;
  if (part == Part::kSparse) --entry.sparse_present;
  if (part == Part::kSparse ? entry.sparse_present == 0 : entry.present == entry.sparse_present) {
    (part == Part::kSparse ? entry.sparse_candidate : entry.candidate) = false;
    PolicyOf(part).OnRemove(index);
  }
  Recount(index);
  UpdateWaiting(index);
}

void BlockCache::UnlinkSlot(std::uint32_t index, std::uint32_t slot) {
  std::uint32_t* link = &entries_[index].first_slot;
  while (*link != slot) {
    ORBITKV_CHECK(*link != kNone);
    link = &nodes_[*link].next;
  }
  *link = nodes_[slot].next;
}

void BlockCache::FreeSlot(std::uint32_t slot) {
  SlotNode& node = nodes_[slot];
  ORBITKV_CHECK(pool_.Free(pool::SlotIndex(slot), node.generation));
  node = SlotNode{};
}

void BlockCache::FreeDraining(std::uint32_t index) {
  for (std::uint32_t slot = entries_[index].first_slot; slot != kNone;) {
    const std::uint32_t next = nodes_[slot].next;
    if (nodes_[slot].use == SlotUse::kDraining) {
      UnlinkSlot(index, slot);
      FreeSlot(slot);
      --gauges_.draining;
    }
    slot = next;
  }
}

// Works out anew which groups are complete and what is lacking.
void BlockCache::Recount(std::uint32_t index) {
  Entry& entry = entries_[index];
  const Namespace& space = namespaces_[entry.row.value()];
  const bool served = entry.lacking == 0;
  if (space.simple) {
    entry.lacking = static_cast<std::uint32_t>(space.components.size()) - (entry.present - entry.suspects);
    entry.complete = entry.lacking == 0 ? space.dense_groups : 0;
  } else {
    RecountGroups(index, space);
  }
  if (served == (entry.lacking == 0)) return;
  if (served) {
    --gauges_.complete;
  } else {
    ++gauges_.complete;
  }
}

void BlockCache::RecountGroups(std::uint32_t index, const Namespace& space) {
  Entry& entry = entries_[index];
  std::array<std::uint32_t, kMaxGroups> readable{};
  std::array<std::uint32_t, kMaxGroups> present{};
  for (std::uint32_t slot = entry.first_slot; slot != kNone; slot = nodes_[slot].next) {
    const std::uint32_t group = space.components[nodes_[slot].component].group;
    if (nodes_[slot].use == SlotUse::kPresent) ++readable[group];
    if (nodes_[slot].use != SlotUse::kDraining) ++present[group];
  }
  entry.complete = 0;
  entry.lacking = 0;
  entry.partial = false;
  for (std::uint32_t group = 0; group < space.groups.size(); ++group) {
    const Group& one = space.groups[group];
    if (one.shards == 0) continue;
    if (readable[group] == one.shards) {
      entry.complete |= 1U << group;
    } else if (!one.spec.dense) {
      entry.partial |= present[group] > 0;
    } else if ((std::uint64_t{entry.depth} + 1) % one.spec.ratio == 0) {
      entry.lacking += one.shards - readable[group];
    }
  }
  if (entry.complete == 0) entry.lacking = std::max(entry.lacking, 1U);
}

// A block whose components are not all there waits for them.
void BlockCache::UpdateWaiting(std::uint32_t index) {
  const Entry& entry = entries_[index];
  if (entry.present == 0 || (entry.lacking == 0 && !entry.partial)) {
    SetLateness(index, Lateness::kNotWaiting);
  } else if (entry.lateness == Lateness::kNotWaiting) {
    SetLateness(index, Lateness::kWaiting);
  }
}

BlockCache::List& BlockCache::ListOf(const Entry& entry) {
  return entry.lateness == Lateness::kWaiting ? waiting_ : lanes_[entry.late_lane].late;
}

void BlockCache::SetLateness(std::uint32_t index, Lateness lateness) {
  Entry& entry = entries_[index];
  if (entry.lateness == lateness) return;
  if (entry.lateness != Lateness::kNotWaiting) {
    List& list = ListOf(entry);
    (entry.prev_waiting == kNone ? list.head : entries_[entry.prev_waiting].next_waiting) = entry.next_waiting;
    (entry.next_waiting == kNone ? list.tail : entries_[entry.next_waiting].prev_waiting) = entry.prev_waiting;
    entry.prev_waiting = kNone;
    entry.next_waiting = kNone;
  }
  entry.lateness = lateness;
  if (lateness == Lateness::kNotWaiting) return;
  if (lateness == Lateness::kWaiting) entry.waiting_since_ns = now_ns_;
  if (lateness == Lateness::kLate) {
    const Namespace& space = namespaces_[entry.row.value()];
    const bool sparse = entry.present == entry.sparse_present || entry.lacking == 0;
    entry.late_lane = sparse ? space.sparse_lane : space.lane;
  }
  List& list = ListOf(entry);
  entry.prev_waiting = list.tail;
  (list.tail == kNone ? list.head : entries_[list.tail].next_waiting) = index;
  list.tail = index;
}

}  // namespace orbitkv::cache
