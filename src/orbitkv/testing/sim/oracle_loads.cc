// The oracle's view of what lies behind the pool: slots that a read fills, slots that are being saved.
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::sim {

void Oracle::Loading(const service::LoadRequest& request, const sim::Saved* saved) {
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

std::uint64_t Oracle::WriteOf(std::uint64_t checksum) const {
  const auto found = writes_.find(checksum);
  return found == writes_.end() ? 0 : found->second;
}

// What is saved is what was stored, under its own name.
void Oracle::Saving(const service::SaveRequest& request) {
  const auto found = slots_.find(request.generation);
  const auto space = spaces_.find(request.key.namespace_digest);
  if (found == slots_.end() || space == spaces_.end() || found->second.state != SlotState::kStored) {
    history_.Violation("a slot is saved that holds no block", {{"save", request.id}});
    return;
  }
  Slot& slot = found->second;
  const bool same = slot.key == BlockKey{space->second, request.key.hash, request.key.group, request.key.shard} &&
                    slot.offset == request.offset && slot.payload_bytes == request.key.slot_bytes &&
                    slot.checksum == request.record.checksum && slot.depth == request.record.depth &&
                    slot.parent == request.record.parent;
  Expect(same, "a block is saved as another one", {{"save", request.id}, {"generation", request.generation}});
  ++slot.saving;
  pinned_.insert(request.generation);
  const bool fresh = saves_.emplace(request.id, request.generation).second;
  Expect(fresh, "a save's id came twice", {{"save", request.id}});
}

void Oracle::Saved(std::uint64_t id) {
  const auto save = saves_.find(id);
  if (save == saves_.end()) return;
  Slot& slot = slots_.at(save->second);
  --slot.saving;
  if (!slot.read()) pinned_.erase(save->second);
  saves_.erase(save);
}

sim::Saved Oracle::Describe(std::uint64_t generation) const {
  const Slot& slot = slots_.at(generation);
  sim::Saved saved;
  saved.key = {{.namespace_digest = space_of_[slot.key.space].digest,
                .hash = slot.key.hash,
                .group = slot.key.group,
                .shard = slot.key.shard},
               slot.payload_bytes};
  saved.record = {.parent = slot.parent, .depth = slot.depth, .checksum = slot.checksum};
  saved.write = slot.write;
  return saved;
}

state::GroupShape Oracle::GroupOf(std::uint64_t generation) const {
  const BlockKey& key = slots_.at(generation).key;
  return space_of_[key.space].rules.groups()[key.group];
}

}  // namespace orbitkv::sim
