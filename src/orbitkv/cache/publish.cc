// Publishing into the cache: reserve, commit, abort.
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {
namespace {

// Evictions that one reservation may cause. More than one is needed only when victims lack the wanted component.
constexpr int kMaxEvictionsPerReserve = 64;

}  // namespace

ReserveOutcome BlockCache::Reserve(const ReserveRequest& request, std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  const Namespace* space = FindNamespace(request.row);
  if (space == nullptr || request.component >= space->components.size()) {
    ++counters_.not_now;
    return {};
  }
  const ComponentSpec& component = space->components[request.component];
  if (const std::uint32_t entry = Lookup(request.row, request.hash); entry != kNone) {
    const std::uint32_t slot = FindComponent(entries_[entry], request.component);
    if (slot != kNone && nodes_[slot].use == SlotUse::kPresent) {
      TouchEntry(entry, 1U << component.group);
      return {.status = ReserveStatus::kHaveIt};
    }
    if (slot != kNone) {
      ++counters_.not_now;
      return {};
    }
  }
  const GroupSpec& group = space->groups[component.group].spec;
  std::uint32_t parent = FindParent(request, group, false);
  HoldParent(parent);
  const std::uint64_t slot_bytes = pool::Pool::SlotBytes(component.slot_bytes);
  std::uint32_t revokes = config_.max_revokes;
  for (int evictions = 0; evictions < kMaxEvictionsPerReserve;) {
    if (const auto slot = pool_.Allocate(slot_bytes)) {
      SlotNode& node = nodes_[slot->index.value()];
      node = SlotNode{.generation = slot->generation,
                      .owner = request.row.value(),
                      .component = request.component,
                      .use = SlotUse::kReserved};
      ++gauges_.reserved_slots;
      ++row_users_[request.row.value()];
      if (parent == kNone) HoldParent(parent = FindParent(request, group, true));
      node.next = parent;
      return {.status = ReserveStatus::kSlot, .slot = *slot};
    }
    if (MakeRoom(slot_bytes)) {
      ++evictions;
    } else if (!Revoke(revokes)) {
      break;
    }
  }
  ReleaseParent(parent);
  ++counters_.not_now;
  return {};
}

// The entry that the block will continue, kNone when there is none or its depth contradicts. Its parent may be on its
// way in, too: make gives it an entry ahead of its bytes, if one is free, so that it is held once they come.
std::uint32_t BlockCache::FindParent(const ReserveRequest& request, const GroupSpec& group, bool make) {
  if (!group.dense || !request.parent || request.depth < group.ratio) return kNone;
  const std::uint32_t depth = request.depth - group.ratio;
  const std::uint32_t parent = Lookup(request.row, *request.parent);
  if (parent == kNone) return make && free_entries_ != kNone ? NewEntry(request.row, *request.parent, depth) : kNone;
  return entries_[parent].depth == depth ? parent : kNone;
}

void BlockCache::HoldParent(std::uint32_t parent) {
  if (parent == kNone) return;
  ++entries_[parent].children;
  UpdateCandidate(parent);
}

void BlockCache::ReleaseParent(std::uint32_t parent) {
  if (parent == kNone) return;
  --entries_[parent].children;
  Settle(parent);
}

CommitOutcome BlockCache::Commit(const CommitRequest& request, std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  const Namespace* space = FindNamespace(request.row);
  const std::uint32_t slot = request.slot.value();
  if (space == nullptr || slot >= nodes_.size() || nodes_[slot].use != SlotUse::kReserved ||
      nodes_[slot].generation != request.generation || nodes_[slot].owner != request.row.value() ||
      nodes_[slot].component != request.component) {
    ++counters_.lost_commits;
    return CommitOutcome::kLost;
  }
  std::uint32_t held = nodes_[slot].next;
  auto index = EntryFor(request, *space);
  if (!index && index.error() == CommitOutcome::kLost && held != kNone) {
    // The parent's entry, where it was made ahead of the parent, may be the one that is lacking.
    ReleaseParent(std::exchange(held, kNone));
    index = EntryFor(request, *space);
  }
  if (!index) {
    FreeSlot(slot);
    ReleaseParent(held);
    --gauges_.reserved_slots;
    --row_users_[request.row.value()];
    ++(index.error() == CommitOutcome::kAlreadyThere ? counters_.already_there : counters_.lost_commits);
    return index.error();
  }
  const ComponentSpec& component = space->components[request.component];
  ORBITKV_CHECK(pool_.Seal(request.slot, request.generation,
                           pool::SlotIdentity{.row = request.row,
                                              .hash = request.hash,
                                              .parent = request.parent.value_or(state::BlockHash{}),
                                              .group = component.group,
                                              .shard = component.shard,
                                              .depth = request.depth,
                                              .payload_bytes = component.slot_bytes,
                                              .last_use_ns = now_ns_,
                                              .checksum = request.checksum}));
  Enter(*index, slot, request, space->groups[component.group].spec);
  ReleaseParent(held);  // the entry does what the reservation did
  return CommitOutcome::kStored;
}

// The entry that the component may become a part of, a new one if need be; else why not.
std::expected<std::uint32_t, CommitOutcome> BlockCache::EntryFor(const CommitRequest& request, const Namespace& space) {
  const GroupSpec& group = space.groups[space.components[request.component].group].spec;
  const bool at_its_depth = (std::uint64_t{request.depth} + 1) % group.ratio == 0;
  if (!at_its_depth || request.parent.has_value() != (request.depth >= group.ratio)) {
    return std::unexpected(CommitOutcome::kLost);
  }
  std::uint32_t index = Lookup(request.row, request.hash);
  if (index == kNone) {
    index = NewEntry(request.row, request.hash, request.depth);
    if (index == kNone) return std::unexpected(CommitOutcome::kLost);
    return index;
  }
  if (entries_[index].depth != request.depth) return std::unexpected(CommitOutcome::kLost);
  const std::uint32_t other = FindComponent(entries_[index], request.component);
  if (other != kNone) {
    // A suspect one may be dropped yet, so nothing can be promised about it.
    const bool readable = nodes_[other].use == SlotUse::kPresent;
    return std::unexpected(readable ? CommitOutcome::kAlreadyThere : CommitOutcome::kLost);
  }
  return index;
}

// A reserved slot, sealed by now, takes its place in the entry and the tree.
void BlockCache::Enter(std::uint32_t index, std::uint32_t slot, const CommitRequest& request, const GroupSpec& group) {
  Attach(index, slot, request);
  const bool links = group.dense && request.parent.has_value();
  if (links) SetParent(index, *request.parent, request.depth - group.ratio);
  UpdateCandidate(index);
}

void BlockCache::LetParentGo(pool::SlotIndex slot, std::uint64_t generation) {
  if (slot.value() >= nodes_.size()) return;
  SlotNode& node = nodes_[slot.value()];
  if (node.use != SlotUse::kReserved || node.generation != generation) return;
  ReleaseParent(std::exchange(node.next, kNone));
}

Status BlockCache::AbortReserved(pool::SlotIndex slot, std::uint64_t generation) {
  if (slot.value() >= nodes_.size() || nodes_[slot.value()].use != SlotUse::kReserved ||
      nodes_[slot.value()].generation != generation) {
    return Fail(Code::kStale, "the slot is not reserved under that generation", slot.value(), generation);
  }
  const std::uint32_t held = nodes_[slot.value()].next;
  --row_users_[nodes_[slot.value()].owner];
  FreeSlot(slot.value());
  --gauges_.reserved_slots;
  ReleaseParent(held);
  ++counters_.aborted;
  return {};
}

}  // namespace orbitkv::cache
