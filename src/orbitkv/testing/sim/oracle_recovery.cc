// The oracle's view of what outlives a Manager: what is there in the next life, and that what is there now would be.
#include <algorithm>
#include <cstring>

#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"

namespace orbitkv::sim {
namespace {

// The rows of namespaces in a life's tables, each searched for once.
class Rows {
 public:
  explicit Rows(const ManagerLife& life) : life_(life) {}
  // What a look-up in the cache would find of the block.
  std::uint32_t GroupsIn(const cache::BlockCache& cache, std::uint32_t space, const state::Digest& digest,
                         const state::BlockHash& hash) {
    const auto [row, added] = rows_.try_emplace(space);
    if (added) row->second = life_.RowOf(digest);
    return row->second ? cache.Peek(*row->second, hash).groups : 0;
  }

 private:
  const ManagerLife& life_;
  std::map<std::uint32_t, std::optional<NamespaceRow>> rows_;
};

}  // namespace

// The Manager may have died in the middle of a call: what it served then may be one block too many, the one that it was
// about to evict.
void Oracle::EndLife() {
  served_.clear();
  if (shape_.survives) {
    Rows rows(*life_);
    for (const auto& [key, generation] : present_) {
      if (!served_.empty() && served_.back() == std::pair(key.space, key.hash)) continue;
      if (rows.GroupsIn(life_->cache(), key.space, space_of_[key.space].digest, key.hash) != 0) {
        served_.emplace_back(key.space, key.hash);
      }
    }
    if (IndexFull() || life_->cache().gauges().suspect > 0) served_.clear();
  }
  life_ = nullptr;
}

// Whether the record is the slot's, sealed as it was filled.
bool Oracle::Holds(const wire::SlotRecord& record, const Slot& slot) const {
  const bool committed = slot.state == SlotState::kStored || slot.state == SlotState::kReserved;
  return committed && slot.write != 0 && record.offset == slot.offset && record.payload_bytes == slot.payload_bytes &&
         record.checksum == slot.checksum && record.hash == slot.key.hash && record.group == slot.key.group &&
         record.shard == slot.key.shard && record.depth == slot.depth &&
         record.parent == slot.parent.value_or(state::BlockHash{});
}

void Oracle::PowerLost() {
  slots_.clear();
  served_.clear();
}

void Oracle::TakeOver() {
  present_.clear();
  placed_.clear();
  if (!shape_.survives) slots_.clear();
  std::set<std::uint64_t> sealed;
  for (std::uint32_t index = 0; index < shape_.pool.max_slots; ++index) {
    const auto record = wire::LoadSlotRecord(life_->table(), index);
    if (!record || record->state != wire::SlotState::kSealed) continue;
    const auto found = slots_.find(record->generation);
    if (found == slots_.end() || !Holds(*record, found->second)) {
      history_.Violation("a slot has come back that nobody stored so", {{"generation", record->generation}});
      return;
    }
    Slot& slot = found->second;
    const Space& space = space_of_[slot.key.space];
    const state::GroupShape& group = space.rules.groups()[slot.key.group];
    const bool whole = copy::CheckSlot(life_->memory()->bytes().subspan(slot.offset, slot.payload_bytes),
                                       {group.page_count, group.page_bytes},
                                       {space.digest, slot.key.hash, slot.key.group, slot.key.shard}, slot.checksum)
                           .has_value();
    Expect(whole || life_->memory()->damaged.contains(record->generation), "a slot has come back half written",
           {{"generation", record->generation}});
    slot.state = SlotState::kStored;
    slot.record = index;
    sealed.insert(record->generation);
    placed_[slot.offset] = record->generation;
    std::uint64_t& present = present_[slot.key];
    present = std::max(present, record->generation);
  }
  for (auto& [generation, slot] : slots_) {
    slot.armed = slot.saving = 0;
    slot.doubted = false;
    if (sealed.contains(generation)) continue;
    slot.state = SlotState::kGone;
    // Somebody may still be writing there.
    if (life_->memory()->touched.contains(generation)) placed_[slot.offset] = generation;
  }
  Rows rows(*life_);
  const auto lost = std::ranges::count_if(served_, [&](const auto& block) {
    return rows.GroupsIn(life_->cache(), block.first, space_of_[block.first].digest, block.second) == 0;
  });
  Expect(lost <= 1, "blocks that were stored have not come back", {{"blocks", static_cast<std::uint64_t>(lost)}});
}

// What a process may be reading or writing, whatever life gave it out, is still where it was.
void Oracle::CheckTouched() {
  for (const auto& [generation, count] : life_->memory()->touched) {
    const auto slot = slots_.find(generation);
    if (slot == slots_.end()) continue;
    const auto record = wire::LoadSlotRecord(life_->table(), slot->second.record);
    const bool kept = record && record->generation == generation && record->offset == slot->second.offset &&
                      (record->state == wire::SlotState::kSealed || record->state == wire::SlotState::kWriting);
    Expect(kept, "a slot was let go while a process touches it", {{"generation", generation}});
  }
}

void Oracle::CheckRecovery(std::uint64_t now_ns) {
  if (life_->disk() != nullptr) {
    std::vector<service::ComponentKey> keys;
    for (const auto& [key, generation] : present_) keys.push_back(Describe(generation).key);
    life_->disk()->CheckRecovery(keys);
  }
  const auto bytes = life_->tables();
  std::vector<std::uint64_t> copy(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  wire::SpanTable table(std::as_writable_bytes(std::span(copy)));
  const auto everybody = [](std::uint32_t, const pool::SessionOwner&) { return true; };
  const auto next =
      service::CoreState::Begin(table, shape_.core(life_->number() + 1), shape_.pool.pool_bytes, everybody, now_ns);
  if (!next) {
    history_.Violation("the tables make no sense to a next Manager");
    return;
  }
  const cache::CacheGauges& here = life_->cache().gauges();
  const cache::CacheGauges& there = (*next)->cache().gauges();
  if (IndexFull() || here.suspect > 0 || here.draining > 0) return;
  Expect(here.complete == there.complete, "a next Manager would have other blocks than this one",
         {{"here", here.complete}, {"there", there.complete}});
  Rows rows(*life_);
  for (const auto& [key, generation] : present_) {
    const state::Digest& digest = space_of_[key.space].digest;
    Expect(rows.GroupsIn(life_->cache(), key.space, digest, key.hash) ==
               rows.GroupsIn((*next)->cache(), key.space, digest, key.hash),
           "a next Manager would serve a block otherwise", {{"generation", generation}});
  }
}

}  // namespace orbitkv::sim
