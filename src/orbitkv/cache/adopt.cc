// Taking over what an earlier Manager stored.
//
// Components come in the order of their last use, each at its own time, so that the policy sees them as it would have
// seen their last touches. Their place in the tree comes from the records: a parent that has not come yet gets its
// entry from its first child, as at a commit. When two slots hold one component (the older one was on its way out), the
// younger one stays.
#include <algorithm>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {

AdoptOutcome BlockCache::Adopt(std::vector<pool::RecoveredSlot> slots, std::uint64_t now_ns) {
  AdoptOutcome outcome;
  const CacheCounters before = counters_;
  for (pool::RecoveredSlot& slot : slots) slot.last_use_ns = std::min(slot.last_use_ns, now_ns);
  std::ranges::sort(slots, [](const pool::RecoveredSlot& a, const pool::RecoveredSlot& b) {
    if (a.last_use_ns != b.last_use_ns) return a.last_use_ns < b.last_use_ns;
    return a.generation < b.generation;
  });
  for (const pool::RecoveredSlot& slot : slots) {
    AdvanceClock(slot.last_use_ns);
    const BlockRef ref = slot.sealed ? AdoptOne(slot) : BlockRef{};
    if (slot.sealed) ++(ref.is_none() ? outcome.discarded : outcome.adopted);
    if (!ref.is_none()) outcome.adopted_bytes += pool_.Locate(slot.index, slot.generation)->slot_bytes;
    if (slot.held) {
      outcome.held.push_back({slot.index, slot.generation, ref});
      if (!ref.is_none()) Pin(ref, true);
    }
    if (!ref.is_none()) continue;
    SlotNode& node = nodes_[slot.index.value()];
    if (slot.held) {
      // What it holds is never served; it must not be taken for a block by the next life either.
      if (slot.sealed) ORBITKV_CHECK(pool_.Unseal(slot.index, slot.generation));
      node = SlotNode{.generation = slot.generation, .use = SlotUse::kHeld};
    } else {
      ORBITKV_CHECK(pool_.Free(slot.index, slot.generation));
    }
  }
  AdvanceClock(now_ns);
  counters_ = before;
  counters_.adopted += outcome.adopted;
  return outcome;
}

// The block that the slot has become a part of, or none: the slot is still the pool's then.
BlockRef BlockCache::AdoptOne(const pool::RecoveredSlot& slot) {
  const auto record = pool_.Read(slot.index, slot.generation);
  if (!record) return {};
  const auto request = RequestOf(*record);
  if (!request) return {};
  const Namespace& space = namespaces_[request->row.value()];
  const std::uint32_t known = Lookup(request->row, request->hash);
  const std::uint32_t other = known == kNone ? kNone : FindComponent(entries_[known], request->component);
  if (other != kNone) {
    // A held one stays, whichever is younger: its bytes are being read.
    if (nodes_[other].generation > slot.generation || entries_[known].granted > 0) return {};
    Detach(known, other);
    Settle(known);
  }
  const auto index = EntryFor(*request, space);
  if (!index) return {};
  nodes_[slot.index.value()] = SlotNode{.generation = slot.generation,
                                        .owner = request->row.value(),
                                        .component = request->component,
                                        .use = SlotUse::kReserved};
  ++gauges_.reserved_slots;
  ++row_users_[request->row.value()];
  Enter(*index, slot.index.value(), *request, space.groups[record->group].spec);
  return RefOf(*index);
}

// The commit that the record came from; none when no namespace has such a component.
std::optional<CommitRequest> BlockCache::RequestOf(const wire::SlotRecord& record) const {
  const NamespaceRow row(record.namespace_row);
  const Namespace* space = FindNamespace(row);
  if (space == nullptr) return std::nullopt;
  const ComponentSpec wanted{.group = record.group, .shard = record.shard, .slot_bytes = record.payload_bytes};
  const auto component = std::ranges::find(space->components, wanted);
  if (component == space->components.end()) return std::nullopt;
  CommitRequest request;
  request.row = row;
  request.hash = record.hash;
  request.depth = record.depth;
  if (record.depth >= space->groups[record.group].spec.ratio) request.parent = record.parent;
  request.component = static_cast<std::uint32_t>(component - space->components.begin());
  request.checksum = record.checksum;
  return request;
}

std::optional<SlotContent> BlockCache::InSlot(pool::SlotIndex slot) const {
  if (slot.value() >= nodes_.size() || nodes_[slot.value()].use != SlotUse::kPresent) return std::nullopt;
  const SlotNode& node = nodes_[slot.value()];
  const Entry& entry = entries_[node.owner];
  return SlotContent{.ref = RefOf(node.owner),
                     .row = entry.row,
                     .hash = entry.hash,
                     .component = node.component,
                     .generation = node.generation,
                     .save = node.save,
                     .used = node.used};
}

void BlockCache::LetGo(const HeldSlot& held) {
  if (!held.ref.is_none()) {
    UnpinGranted(held.ref);
    return;
  }
  ORBITKV_CHECK(nodes_[held.slot.value()].use == SlotUse::kHeld);
  FreeSlot(held.slot.value());
}

}  // namespace orbitkv::cache
