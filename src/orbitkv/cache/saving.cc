// What of the cache is kept behind the pool, too, and what waits for that.
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {

BlockUse BlockCache::Peek(NamespaceRow row, const state::BlockHash& hash) const {
  const std::uint32_t entry = Lookup(row, hash);
  if (entry == kNone || entries_[entry].complete == 0) return {};
  return {RefOf(entry), entries_[entry].complete};
}

bool BlockCache::Has(NamespaceRow row, const state::BlockHash& hash, std::uint32_t component) const {
  const std::uint32_t entry = Lookup(row, hash);
  if (entry == kNone) return false;
  const std::uint32_t slot = FindComponent(entries_[entry], component);
  return slot != kNone && nodes_[slot].use == SlotUse::kPresent;
}

bool BlockCache::AwaitSave(BlockRef ref) {
  Entry* entry = Deref(ref);
  return entry != nullptr && !std::exchange(entry->awaits_save, true);
}

void BlockCache::EndAwaitSave(BlockRef ref) {
  if (Entry* entry = Deref(ref); entry != nullptr) entry->awaits_save = false;
}

void BlockCache::Unsaved(const BlockUse& use, std::vector<std::uint32_t>& components) const {
  const Entry* entry = Deref(use.ref);
  if (entry == nullptr) return;
  const Namespace& space = namespaces_[entry->row.value()];
  for (std::uint32_t slot = entry->first_slot; slot != kNone; slot = nodes_[slot].next) {
    const SlotNode& node = nodes_[slot];
    if (node.use != SlotUse::kPresent || node.save != SaveState::kNot) continue;
    if (((use.groups >> space.components[node.component].group) & 1U) != 0) components.push_back(node.component);
  }
}

bool BlockCache::NoteSavedUse(const BlockUse& use) {
  const Entry* entry = Deref(use.ref);
  if (entry == nullptr) return false;
  const Namespace& space = namespaces_[entry->row.value()];
  bool unsaved = false;
  for (std::uint32_t slot = entry->first_slot; slot != kNone; slot = nodes_[slot].next) {
    SlotNode& node = nodes_[slot];
    if (node.use != SlotUse::kPresent || ((use.groups >> space.components[node.component].group) & 1U) == 0) continue;
    node.used = true;
    unsaved |= node.save == SaveState::kNot;
  }
  return unsaved;
}

void BlockCache::SetSaveState(BlockRef ref, std::uint32_t component, std::uint64_t generation, SaveState state) {
  const Entry* entry = Deref(ref);
  if (entry == nullptr) return;
  const std::uint32_t slot = FindComponent(*entry, component);
  if (slot == kNone || nodes_[slot].generation != generation) return;
  nodes_[slot].save = state;
  nodes_[slot].used = false;
}

}  // namespace orbitkv::cache
