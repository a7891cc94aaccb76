// The oracle's view of loading: slots that a read fills, and what may lie behind the pool.
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::sim {

void Oracle::Loading(const service::LoadRequest& request, const Saved* saved) {
  const auto space = spaces_.find(request.key.namespace_digest);
  if (space == spaces_.end() || saved == nullptr) {
    history_.Violation("a load was begun of what nobody saved", {{"load", request.id}});
    return;
  }
  Expect(request.key.slot_bytes == saved->key.slot_bytes, "a load has another size than what was saved");
  Slot& slot = TakeSlot({space->second, request.key.hash, request.key.group, request.key.shard}, request.offset,
                        request.key.slot_bytes, request.generation);
  slot.depth = saved->record.depth;
  slot.parent = saved->record.parent;
  slot.write = saved->write;
  slot.checksum = saved->record.checksum;
  life_->memory()->writes[request.generation] = saved->write;
  const bool fresh = loads_.emplace(request.id, request.generation).second;
  Expect(fresh, "a load's id came twice", {{"load", request.id}});
}

void Oracle::Loaded(std::uint64_t id, service::LoadResult result, std::uint64_t checksum) {
  const auto load = loads_.find(id);
  if (load == loads_.end()) return;
  const std::uint64_t generation = load->second;
  loads_.erase(load);
  pinned_.erase(generation);
  Slot& slot = slots_.at(generation);
  const auto record = wire::LoadSlotRecord(life_->table(), slot.record);
  const bool stored = record && record->generation == generation && record->state == wire::SlotState::kSealed;
  const bool good = result == service::LoadResult::kOk && checksum == slot.checksum;
  Expect(good || !stored, "bytes were stored that did not come as they were saved", {{"generation", generation}});
  Expect(stored || !good || present_.contains(slot.key) || IndexFull(), "a load that went well was lost",
         {{"generation", generation}});
  slot.state = stored ? SlotState::kStored : SlotState::kGone;
  if (stored) present_[slot.key] = generation;
}

Saved Oracle::Describe(std::uint64_t generation) const {
  const Slot& slot = slots_.at(generation);
  Saved saved;
  saved.key = {.namespace_digest = space_of_[slot.key.space].digest,
               .hash = slot.key.hash,
               .group = slot.key.group,
               .shard = slot.key.shard,
               .slot_bytes = slot.payload_bytes};
  saved.record = {.parent = slot.parent, .depth = slot.depth, .checksum = slot.checksum};
  saved.write = slot.write;
  return saved;
}

state::GroupShape Oracle::GroupOf(std::uint64_t generation) const {
  const BlockKey& key = slots_.at(generation).key;
  return space_of_[key.space].rules.groups()[key.group];
}

}  // namespace orbitkv::sim
