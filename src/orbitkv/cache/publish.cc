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
  const auto give_back = [&](CommitOutcome outcome) {
    FreeSlot(slot);
    --gauges_.reserved_slots;
    --row_users_[request.row.value()];
    ++(outcome == CommitOutcome::kAlreadyThere ? counters_.already_there : counters_.lost_commits);
    return outcome;
  };
  const ComponentSpec& component = space->components[request.component];
  const GroupSpec& group = space->groups[component.group].spec;
  if ((std::uint64_t{request.depth} + 1) % group.ratio != 0) return give_back(CommitOutcome::kLost);
  if (request.parent.has_value() != (request.depth >= group.ratio)) return give_back(CommitOutcome::kLost);
  std::uint32_t index = Lookup(request.row, request.hash);
  if (index != kNone) {
    if (entries_[index].depth != request.depth) return give_back(CommitOutcome::kLost);
    const std::uint32_t other = FindComponent(entries_[index], request.component);
    if (other != kNone) {
      // A suspect one may be dropped yet, so nothing can be promised about it.
      const bool readable = nodes_[other].use == SlotUse::kPresent;
      return give_back(readable ? CommitOutcome::kAlreadyThere : CommitOutcome::kLost);
    }
  } else {
    index = NewEntry(request.row, request.hash, request.depth);
    if (index == kNone) return give_back(CommitOutcome::kLost);
  }
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
  Attach(index, slot, request);
  const bool links = group.dense && request.parent.has_value();
  if (links) SetParent(index, *request.parent, request.depth - group.ratio);
  UpdateCandidate(index);
  return CommitOutcome::kStored;
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
