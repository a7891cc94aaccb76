// Restoring from the cache: where bytes lie, and what happens when somebody doubts them.
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {

Result<PlanSlot> BlockCache::Plan(BlockRef ref, std::uint32_t component) { return PlanAny(ref, component, false); }

Result<PlanSlot> BlockCache::PlanSuspect(BlockRef ref, std::uint32_t component) {
  return PlanAny(ref, component, true);
}

Result<PlanSlot> BlockCache::PlanAny(BlockRef ref, std::uint32_t component, bool suspect) {
  const Entry* entry = Deref(ref);
  if (entry == nullptr) return Fail(Code::kStale, "the block is gone", ref.index, ref.generation);
  const std::uint32_t slot = FindComponent(*entry, component);
  if (slot == kNone || (nodes_[slot].use == SlotUse::kSuspect && !suspect)) {
    return Fail(Code::kNotFound, "the component is not there", component);
  }
  const ComponentSpec& spec = namespaces_[entry->row.value()].components[component];
  const std::uint64_t generation = nodes_[slot].generation;
  const auto record = pool_.Read(pool::SlotIndex(slot), generation);
  if (!record || record->namespace_row != entry->row.value() || record->hash != entry->hash ||
      record->group != spec.group || record->shard != spec.shard || record->payload_bytes != spec.slot_bytes) {
    ++counters_.dropped_corrupt;
    DropSlot(ref.index, slot);
    return Fail(Code::kCorrupt, "the slot's record is damaged; the block was dropped", slot, generation);
  }
  ORBITKV_ASSIGN_OR_RETURN(const pool::Slot place, pool_.Locate(pool::SlotIndex(slot), generation));
  const bool first = record->depth < namespaces_[entry->row.value()].groups[spec.group].spec.ratio;
  return PlanSlot{.slot = place.index,
                  .offset = place.offset,
                  .generation = generation,
                  .checksum = record->checksum,
                  .payload_bytes = spec.slot_bytes,
                  .slab = place.slab.value(),
                  .parent = first ? std::nullopt : std::optional(record->parent),
                  .depth = record->depth};
}

Status BlockCache::MarkSuspect(BlockRef ref, std::uint32_t component) {
  Entry* entry = Deref(ref);
  if (entry == nullptr) return Fail(Code::kStale, "the block is gone", ref.index, ref.generation);
  const std::uint32_t slot = FindComponent(*entry, component);
  if (slot == kNone) return Fail(Code::kNotFound, "the component is not there", component);
  if (nodes_[slot].use == SlotUse::kSuspect) return {};
  nodes_[slot].use = SlotUse::kSuspect;
  ++entry->suspects;
  ++gauges_.suspect;
  Recount(ref.index);
  UpdateCandidate(ref.index);
  return {};
}

Status BlockCache::ClearSuspect(BlockRef ref, std::uint32_t component) {
  Entry* entry = Deref(ref);
  if (entry == nullptr) return Fail(Code::kStale, "the block is gone", ref.index, ref.generation);
  const std::uint32_t slot = FindComponent(*entry, component);
  if (slot == kNone || nodes_[slot].use != SlotUse::kSuspect) {
    return Fail(Code::kNotFound, "the component is not suspect", component);
  }
  nodes_[slot].use = SlotUse::kPresent;
  --entry->suspects;
  --gauges_.suspect;
  Recount(ref.index);
  if (entry->lacking == 0 && !entry->partial) SetLateness(ref.index, Lateness::kNotWaiting);
  UpdateCandidate(ref.index);
  return {};
}

Status BlockCache::Drop(BlockRef ref, std::uint32_t component, DropReason reason) {
  const Entry* entry = Deref(ref);
  if (entry == nullptr) return Fail(Code::kStale, "the block is gone", ref.index, ref.generation);
  const std::uint32_t slot = FindComponent(*entry, component);
  if (slot == kNone) return Fail(Code::kNotFound, "the component is not there", component);
  if (reason == DropReason::kChecksum) {
    ORBITKV_TRY(pool_.CountFailure(pool::SlotIndex(slot), nodes_[slot].generation));
    ++counters_.dropped_corrupt;
  }
  DropSlot(ref.index, slot);
  return {};
}

void BlockCache::DropSlot(std::uint32_t index, std::uint32_t slot) {
  ++counters_.dropped;
  Detach(index, slot);
  Settle(index);
}

}  // namespace orbitkv::cache
