#include "orbitkv/service/verifications.h"

#include "orbitkv/base/check.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::service {

// The key may have been dropped, for another reader's report, and stored again while this reader's grant kept the old
// slot.
bool Verifications::IsStale(cache::BlockRef ref, std::uint32_t component, std::uint64_t generation) {
  if (generation == wire::kNoGeneration) return false;
  const Result<cache::PlanSlot> there = cache_.PlanSuspect(ref, component);
  return !there || there->generation != generation;
}

void Verifications::Report(const Namespace& space, const Doubt& doubt) {
  const auto& [by, hash, ref, group, shard, generation] = doubt;
  const std::uint32_t component = space.ComponentOf(group, shard);
  if (IsStale(ref, component, generation)) {
    ++counters_.mismatches_stale;
    return;
  }
  if (by_component_.contains({ref, component})) return;
  if (open_.size() >= limits_.verifications || !Hold({ref, 1U << group})) {
    // Not there any more is as good as dropped.
    static_cast<void>(cache_.Drop(ref, component, cache::DropReason::kWithdrawn));
    return;
  }
  const Status marked = cache_.MarkSuspect(ref, component);
  const Result<cache::PlanSlot> slot =
      marked ? cache_.PlanSuspect(ref, component) : Result<cache::PlanSlot>(std::unexpected(marked.error()));
  if (!slot) {
    LetGo(ref);
    return;
  }
  Send(space, hash, {by, ref, component}, 0, *slot);
}

std::uint64_t Verifications::Check(const Namespace& space, const state::BlockHash& hash, cache::BlockRef ref,
                                   std::uint32_t group, std::uint32_t shard) {
  const std::uint32_t component = space.ComponentOf(group, shard);
  // Reports come first: half of the places are theirs alone.
  if (by_component_.contains({ref, component}) || open_.size() >= limits_.verifications / 2) return 0;
  if (!Hold({ref, 1U << group})) return 0;
  const Result<cache::PlanSlot> slot = cache_.Plan(ref, component);
  if (!slot) {
    LetGo(ref);
    return 0;
  }
  Send(space, hash, {SessionId(), ref, component}, kScrubBit, *slot);
  return slot->payload_bytes;
}

void Verifications::Send(const Namespace& space, const state::BlockHash& hash, const Open& open, std::uint64_t id_bits,
                         const cache::PlanSlot& slot) {
  VerifyRequest request;
  request.id = next_id_++ | id_bits;
  request.key = space.KeyOf(hash, open.component);
  request.page_count = space.groups[request.key.group].page_count;
  request.page_bytes = space.groups[request.key.group].page_bytes;
  request.offset = slot.offset;
  request.generation = slot.generation;
  request.slot_checksum = slot.checksum;
  request.slot_bytes = slot.payload_bytes;
  open_.emplace(request.id, open);
  by_component_.emplace(std::pair(open.ref, open.component), request.id);
  untaken_.push_back(request);
}

std::optional<SessionId> Verifications::Done(std::uint64_t request_id, bool equal) {
  const auto found = open_.find(request_id);
  if (found == open_.end()) return std::nullopt;
  const Open done = found->second;
  open_.erase(found);
  by_component_.erase({done.ref, done.component});
  const bool scrub = IsScrub(request_id);
  if (scrub) {
    ++(equal ? counters_.scrubbed_right : counters_.scrubbed_wrong);
  } else {
    ++(equal ? counters_.verified_equal : counters_.verified_different);
  }
  if (equal) {
    static_cast<void>(cache_.ClearSuspect(done.ref, done.component));  // may have been dropped meanwhile
  } else {
    static_cast<void>(cache_.Drop(done.ref, done.component, cache::DropReason::kChecksum));
  }
  LetGo(done.ref);
  return equal && !scrub ? std::optional(done.by) : std::nullopt;
}

// A group with a suspect component cannot be pinned again, so all requests of one block share one pin.
bool Verifications::Hold(const cache::BlockUse& use) {
  const auto held = held_.find(use.ref);
  if (held != held_.end()) {
    ++held->second;
    return true;
  }
  if (!cache_.PinGranted(use)) return false;
  held_.emplace(use.ref, 1);
  return true;
}

void Verifications::LetGo(cache::BlockRef ref) {
  const auto held = held_.find(ref);
  ORBITKV_CHECK(held != held_.end());
  if (--held->second > 0) return;
  held_.erase(held);
  cache_.UnpinGranted(ref);
}

}  // namespace orbitkv::service
