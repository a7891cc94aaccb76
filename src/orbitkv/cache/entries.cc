// The cache's entries: their life, their place in the tree of prefixes, and the slots that hang on them.
//
// An entry lives while it has a slot (present, suspect or draining), a child or a pin. Settle is called after anything
// of that was taken away: it removes the entry, and then its parents as far as they lived for this child alone.
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
  entry.lacking = ComponentCount(row);
  entry.last_use_ns = now_ns_;
  entry.used = true;
  index_.Insert(HashOf(row, hash), index);
  ++gauges_.entries;
  return index;
}

void BlockCache::Settle(std::uint32_t index) {
  while (index != kNone) {
    Entry& entry = entries_[index];
    if (entry.first_slot != kNone || entry.children != 0 || entry.found != 0 || entry.granted != 0) {
      UpdateCandidate(index);
      return;
    }
    ORBITKV_CHECK(!entry.candidate && entry.lateness == Lateness::kNotWaiting);
    const std::uint32_t parent = entry.parent;
    index_.Erase(HashOf(entry.row, entry.hash), index);
    entry.used = false;
    ++entry.generation;
    entry.next_waiting = free_entries_;
    free_entries_ = index;
    --gauges_.entries;
    if (parent != kNone) --entries_[parent].children;
    index = parent;
  }
}

void BlockCache::UpdateCandidate(std::uint32_t index) {
  Entry& entry = entries_[index];
  const bool candidate = entry.present > 0 && entry.children == 0 && IsEvictable(entry);
  if (candidate == entry.candidate) return;
  entry.candidate = candidate;
  if (candidate) {
    policy_->OnCandidate(index);
  } else {
    policy_->OnNoCandidate(index);
  }
}

// Links the entry below its parent. A parent that is not there gets an entry without slots. Depths that do not follow
// each other are left unlinked, so that no input can make a cycle, whose blocks would never be leaves.
void BlockCache::SetParent(std::uint32_t index, const state::BlockHash& parent_hash) {
  if (entries_[index].parent != kNone) return;
  std::uint32_t parent = Lookup(entries_[index].row, parent_hash);
  if (parent == kNone) {
    // Making room must not take this entry, nor its last child and the entry with it.
    ++entries_[index].found;
    UpdateCandidate(index);
    parent = NewEntry(entries_[index].row, parent_hash, entries_[index].depth - 1);
    --entries_[index].found;
    if (parent == kNone) return;
  }
  if (entries_[parent].depth + 1 != entries_[index].depth) return;
  entries_[index].parent = parent;
  ++entries_[parent].children;
  UpdateCandidate(parent);
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
  node.next = entry.first_slot;
  entry.first_slot = slot;
  --gauges_.reserved_slots;
  if (entry.present++ == 0) {
    policy_->OnInsert(index, BlockFacts{.last_use_ns = now_ns_,
                                        .lane = namespaces_[entry.row.value()].lane,
                                        .depth = entry.depth,
                                        .prompt_tokens = request.prompt_tokens,
                                        .answer_tokens = request.answer_tokens});
  }
  ++counters_.commits;
  SetLacking(index, entry.lacking - 1);
  if (entry.lacking == 0) {
    ++counters_.inserts;
  } else if (entry.lateness == Lateness::kNotWaiting) {
    SetLateness(index, Lateness::kWaiting);
  }
  TouchEntry(index);
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
    SetLacking(index, entry.lacking + 1);
  }
  if (entry.granted > 0) {
    node.use = SlotUse::kDraining;
    ++gauges_.draining;
  } else {
    UnlinkSlot(index, slot);
    FreeSlot(slot);
  }
  if (--entry.present == 0) {
    entry.candidate = false;
    policy_->OnRemove(index);
    SetLateness(index, Lateness::kNotWaiting);
  } else if (entry.lateness == Lateness::kNotWaiting) {
    SetLateness(index, Lateness::kWaiting);
  }
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

void BlockCache::SetLacking(std::uint32_t index, std::uint32_t lacking) {
  Entry& entry = entries_[index];
  if (entry.lacking == 0) --gauges_.complete;
  entry.lacking = lacking;
  if (lacking == 0) {
    ++gauges_.complete;
    SetLateness(index, Lateness::kNotWaiting);
  }
}

BlockCache::List& BlockCache::ListOf(const Entry& entry) {
  return entry.lateness == Lateness::kWaiting ? waiting_ : lanes_[namespaces_[entry.row.value()].lane].late;
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
  List& list = ListOf(entry);
  entry.prev_waiting = list.tail;
  (list.tail == kNone ? list.head : entries_[list.tail].next_waiting) = index;
  list.tail = index;
}

}  // namespace orbitkv::cache
