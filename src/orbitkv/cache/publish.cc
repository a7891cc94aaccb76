// Publishing into the cache: reserve, commit, abort.
#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {
namespace {

// Evictions that one reservation may cause. More than one is needed only when victims lack the wanted component.
constexpr int kMaxEvictionsPerReserve = 64;

}  // namespace

ReserveOutcome BlockCache::Reserve(NamespaceRow row, const state::BlockHash& hash, std::uint32_t component,
                                   std::uint64_t now_ns) {
  AdvanceClock(now_ns);
  const Namespace* space = FindNamespace(row);
  if (space == nullptr || component >= space->components.size()) {
    ++counters_.not_now;
    return {};
  }
  if (const std::uint32_t entry = Lookup(row, hash); entry != kNone) {
    const std::uint32_t slot = FindComponent(entries_[entry], component);
    if (slot != kNone && nodes_[slot].use == SlotUse::kPresent) {
      TouchEntry(entry, 1U << space->components[component].group);
      return {.status = ReserveStatus::kHaveIt};
    }
    if (slot != kNone) {
      ++counters_.not_now;
      return {};
    }
  }
  const std::uint64_t slot_bytes = pool::Pool::SlotBytes(space->components[component].slot_bytes);
  std::uint32_t revokes = config_.max_revokes;
  for (int evictions = 0; evictions < kMaxEvictionsPerReserve;) {
    if (const auto slot = pool_.Allocate(slot_bytes)) {
      nodes_[slot->index.value()] = SlotNode{
          .generation = slot->generation, .owner = row.value(), .component = component, .use = SlotUse::kReserved};
      ++gauges_.reserved_slots;
      ++row_users_[row.value()];
      return {.status = ReserveStatus::kSlot, .slot = *slot};
    }
    if (MakeRoom(slot_bytes)) {
      ++evictions;
    } else if (!Revoke(revokes)) {
      break;
    }
  }
  ++counters_.not_now;
  return {};
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
  const auto index = EntryFor(request, *space);
  if (!index) {
    FreeSlot(slot);
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

Status BlockCache::AbortReserved(pool::SlotIndex slot, std::uint64_t generation) {
  if (slot.value() >= nodes_.size() || nodes_[slot.value()].use != SlotUse::kReserved ||
      nodes_[slot.value()].generation != generation) {
    return Fail(Code::kStale, "the slot is not reserved under that generation", slot.value(), generation);
  }
  --row_users_[nodes_[slot.value()].owner];
  FreeSlot(slot.value());
  --gauges_.reserved_slots;
  ++counters_.aborted;
  return {};
}

}  // namespace orbitkv::cache
