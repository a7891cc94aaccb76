#include "orbitkv/service/scrub.h"

#include <algorithm>

namespace orbitkv::service {

std::uint64_t Scrub::Step() {
  for (std::uint32_t looked = 0; running() && looked < kSlotsPerStep; ++looked) {
    const pool::SlotIndex slot(next_slot_);
    next_slot_ = next_slot_ == cache_.pool().max_slots() ? 0 : next_slot_ + 1;
    const auto held = cache_.InSlot(slot);
    if (!held || held->generation >= below_generation_) continue;
    const Namespace* const space = registry_.OfRow(held->row);
    if (space == nullptr) continue;
    const std::uint32_t group = held->component / space->shard_count;
    const std::uint32_t shard = held->component % space->shard_count;
    const std::uint64_t bytes = verifications_.Check(*space, held->hash, held->ref, group, shard);
    if (bytes > 0) return bytes;
  }
  return 0;
}

}  // namespace orbitkv::service
