#include "orbitkv/pool/pool.h"

#include <algorithm>
#include <limits>

#include "orbitkv/base/check.h"

namespace orbitkv::pool {
namespace {

using wire::SlotState;

constexpr std::uint32_t kFailuresToRetire = 2;
constexpr std::uint64_t kMaxUnits = std::uint64_t{1} << 30U;
constexpr std::uint32_t kMaxPart = std::numeric_limits<std::uint16_t>::max();

}  // namespace

Status PoolConfig::Validate() const {
  if (unit_bytes == 0 || unit_bytes % kSlotAlign != 0) {
    return Fail(Code::kInvalid, "unit_bytes must be a multiple of 512", unit_bytes);
  }
  if (pool_bytes < unit_bytes) return Fail(Code::kInvalid, "pool_bytes is below one unit", pool_bytes, unit_bytes);
  if (pool_bytes / unit_bytes > kMaxUnits) return Fail(Code::kInvalid, "pool_bytes is too large", pool_bytes);
  if (max_slots == 0 || max_slots == std::numeric_limits<std::uint32_t>::max()) {
    return Fail(Code::kInvalid, "max_slots is out of range", max_slots);
  }
  if (max_classes == 0 || max_waste_permille == 0 || min_slots_per_slab == 0 || first_generation == 0) {
    return Fail(Code::kInvalid, "a pool limit is zero");
  }
  return {};
}

Result<std::unique_ptr<Pool>> Pool::Create(const PoolConfig& config, wire::TableMemory& table) {
  ORBITKV_TRY(config.Validate());
  if (table.bytes().size() != config.table_bytes()) {
    return Fail(Code::kInvalid, "the slot table has the wrong size", table.bytes().size(), config.table_bytes());
  }
  return std::unique_ptr<Pool>(new Pool(config, table));
}

Pool::Pool(const PoolConfig& config, wire::TableMemory& table)
    : config_(config),
      table_(table),
      unit_count_(static_cast<std::uint32_t>(config.pool_bytes / config.unit_bytes)),
      next_generation_(config.first_generation),
      unassigned_(0),
      unassigned_count_(config.max_slots),
      slots_(config.max_slots),
      slabs_(unit_count_),
      unit_slab_(unit_count_, kNone) {
  classes_.reserve(config.max_classes);
  for (std::uint32_t slot = 0; slot + 1 < config.max_slots; ++slot) slots_[slot].next_free = slot + 1;
  gauges_.pool_bytes = config.pool_bytes;
}

Status Pool::AddReserved(std::uint64_t bytes) {
  if (bytes > config_.pool_bytes - reserved_bytes_) {
    return Fail(Code::kInvalid, "more bytes reserved than the pool has", bytes, config_.pool_bytes - reserved_bytes_);
  }
  reserved_bytes_ += bytes;
  const auto usable = std::min(unit_count_, static_cast<std::uint32_t>(reserved_bytes_ / config_.unit_bytes));
  vacant_units_ += usable - usable_units_;
  usable_units_ = usable;
  gauges_.reserved_bytes = reserved_bytes_;
  ++space_epoch_;
  return {};
}

// The shortest run whose tail wastes little enough; where the pool is too short for one, the run that wastes least.
std::uint32_t Pool::SlabUnits(std::uint64_t slot_bytes) const {
  const std::uint64_t unit = config_.unit_bytes;
  if (slot_bytes == 0 || slot_bytes > unit_count_ * unit) return 0;
  const auto shortest = static_cast<std::uint32_t>((slot_bytes + unit - 1) / unit);
  // With 1000 / permille slots and more the tail is below the limit whatever its size.
  const std::uint64_t enough_slots =
      std::max<std::uint64_t>(1000 / config_.max_waste_permille + 1, config_.min_slots_per_slab);
  const std::uint64_t longest = std::min<std::uint64_t>(unit_count_, enough_slots * slot_bytes / unit + 1);
  std::uint32_t best = shortest;
  std::uint64_t best_waste = unit * shortest % slot_bytes;
  for (std::uint32_t units = shortest; units <= longest; ++units) {
    const std::uint64_t bytes = unit * units;
    const std::uint64_t waste = bytes % slot_bytes;
    if (bytes / slot_bytes >= config_.min_slots_per_slab && waste * 1000 <= bytes * config_.max_waste_permille) {
      return units;
    }
    if (waste * best < best_waste * units) {
      best = units;
      best_waste = waste;
    }
  }
  return best;
}

std::uint32_t Pool::FindClass(std::uint64_t slot_bytes) const {
  for (std::uint32_t i = 0; i < classes_.size(); ++i) {
    if (classes_[i].slot_bytes == slot_bytes) return i;
  }
  return kNone;
}

Result<std::uint32_t> Pool::ClassFor(std::uint64_t slot_bytes) {
  if (const std::uint32_t found = FindClass(slot_bytes); found != kNone) return found;
  std::uint32_t index = 0;
  while (index < classes_.size() && classes_[index].slabs != 0) ++index;
  if (index == classes_.size()) {
    if (index == config_.max_classes) return Fail(Code::kBusy, "too many slot sizes in use", slot_bytes);
    classes_.emplace_back();
  }
  classes_[index] =
      SizeClass{.slot_bytes = static_cast<std::uint32_t>(slot_bytes), .slab_units = SlabUnits(slot_bytes)};
  return index;
}

Result<Slot> Pool::Allocate(std::uint64_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes > std::numeric_limits<std::uint32_t>::max() - kSlotAlign ||
      SlotBytes(payload_bytes) > unit_count_ * config_.unit_bytes) {
    return Fail(Code::kInvalid, "a slot of that size does not fit into the pool", payload_bytes);
  }
  ORBITKV_ASSIGN_OR_RETURN(const std::uint32_t size_class, ClassFor(SlotBytes(payload_bytes)));
  SizeClass& owner = classes_[size_class];
  if (owner.open_slab == kNone && !OpenSlab(size_class)) return Fail(Code::kBusy, "no free slot", payload_bytes);

  const std::uint32_t slab_index = owner.open_slab;
  Slab& slab = slabs_[slab_index];
  const std::uint32_t index = slab.first_free;
  SlotInfo& slot = slots_[index];
  slab.first_free = slot.next_free;
  if (slab.first_free == kNone) Unlink(slab_index);
  if (slab.used++ == 0) vacant_units_ -= slab.units;
  ++owner.used;
  slot.state = SlotState::kWriting;
  slot.generation = next_generation_++;
  --gauges_.slots_free;
  ++gauges_.slots_writing;
  gauges_.used_bytes += owner.slot_bytes;
  ORBITKV_CHECK(wire::StoreSlotRecord(table_, index, BareRecord(index)));
  return Slot{.index = SlotIndex(index + 1),
              .slab = SlabId(slab_index + 1),
              .offset = OffsetOf(slot),
              .generation = slot.generation,
              .slot_bytes = owner.slot_bytes};
}

Status Pool::CheckUse(SlotIndex index, std::uint64_t generation) const {
  if (index.is_none() || index.value() > config_.max_slots) {
    return Fail(Code::kInvalid, "no such slot", index.value());
  }
  const SlotInfo& slot = slots_[index.value() - 1];
  if (slot.state != SlotState::kWriting && slot.state != SlotState::kSealed) {
    return Fail(Code::kRefused, "the slot is not in use", index.value(), static_cast<std::uint64_t>(slot.state));
  }
  if (slot.generation != generation) {
    return Fail(Code::kStale, "the slot has another generation", generation, slot.generation);
  }
  return {};
}

Status Pool::Seal(SlotIndex index, std::uint64_t generation, const SlotIdentity& identity) {
  ORBITKV_TRY(CheckUse(index, generation));
  SlotInfo& slot = slots_[index.value() - 1];
  if (slot.state != SlotState::kWriting) return Fail(Code::kRefused, "the slot is sealed already", index.value());
  wire::SlotRecord record = BareRecord(index.value() - 1);
  if (identity.group > kMaxPart || identity.shard > kMaxPart) {
    return Fail(Code::kInvalid, "a group or shard does not fit into a record", identity.group, identity.shard);
  }
  if (identity.payload_bytes > record.slot_bytes) {
    return Fail(Code::kInvalid, "the payload is larger than the slot", identity.payload_bytes, record.slot_bytes);
  }
  slot.state = SlotState::kSealed;
  --gauges_.slots_writing;
  ++gauges_.slots_sealed;
  record.state = SlotState::kSealed;
  record.hash = identity.hash;
  record.parent = identity.parent;
  record.namespace_row = identity.row.value();
  record.group = static_cast<std::uint16_t>(identity.group);
  record.shard = static_cast<std::uint16_t>(identity.shard);
  record.depth = identity.depth;
  record.last_use_ns = identity.last_use_ns;
  record.payload_bytes = identity.payload_bytes;
  record.checksum = identity.checksum;
  return wire::StoreSlotRecord(table_, index.value() - 1, record);
}

Status Pool::Free(SlotIndex index, std::uint64_t generation) {
  ORBITKV_TRY(CheckUse(index, generation));
  const std::uint32_t number = index.value() - 1;
  SlotInfo& slot = slots_[number];
  Slab& slab = slabs_[slot.slab];
  SizeClass& owner = classes_[slab.size_class];
  --(slot.state == SlotState::kWriting ? gauges_.slots_writing : gauges_.slots_sealed);
  if (slot.failures >= kFailuresToRetire) {
    slot.state = SlotState::kRetired;
    ++gauges_.slots_retired;
  } else {
    slot.state = SlotState::kFree;
    ++gauges_.slots_free;
    gauges_.used_bytes -= owner.slot_bytes;
    --owner.used;
    slot.next_free = slab.first_free;
    slab.first_free = number;
    if (slot.next_free == kNone) Link(slot.slab);
    if (--slab.used == 0) {
      vacant_units_ += slab.units;
      no_vacant_below_ = std::min(no_vacant_below_, slot.slab);
      ++space_epoch_;
    }
  }
  const auto record = wire::LoadSlotRecord(table_.bytes(), number);
  if (record && record->generation == generation) return wire::StoreSlotState(table_, number, *record, slot.state);
  return wire::StoreSlotRecord(table_, number, BareRecord(number));
}

Status Pool::Unseal(SlotIndex index, std::uint64_t generation) {
  ORBITKV_TRY(CheckUse(index, generation));
  SlotInfo& slot = slots_[index.value() - 1];
  if (slot.state != SlotState::kSealed) return Fail(Code::kRefused, "the slot is not sealed", index.value());
  slot.state = SlotState::kWriting;
  --gauges_.slots_sealed;
  ++gauges_.slots_writing;
  return wire::StoreSlotRecord(table_, index.value() - 1, BareRecord(index.value() - 1));
}

void Pool::NoteUse(SlotIndex index, std::uint64_t generation, std::uint64_t now_ns) {
  if (!CheckUse(index, generation) || slots_[index.value() - 1].state != SlotState::kSealed) return;
  ORBITKV_CHECK(wire::StoreSlotUse(table_, index.value() - 1, now_ns));
}

Status Pool::CountFailure(SlotIndex index, std::uint64_t generation) {
  ORBITKV_TRY(CheckUse(index, generation));
  ++slots_[index.value() - 1].failures;
  return {};
}

Result<wire::SlotRecord> Pool::Read(SlotIndex index, std::uint64_t generation) const {
  ORBITKV_TRY(CheckUse(index, generation));
  const SlotInfo& slot = slots_[index.value() - 1];
  if (slot.state != SlotState::kSealed) return Fail(Code::kRefused, "the slot is being written", index.value());
  ORBITKV_ASSIGN_OR_RETURN(const wire::SlotRecord record, wire::LoadSlotRecord(table_.bytes(), index.value() - 1));
  if (record.state != slot.state || record.generation != generation || record.offset != OffsetOf(slot) ||
      record.slot_bytes != classes_[slabs_[slot.slab].size_class].slot_bytes) {
    return Fail(Code::kCorrupt, "the slot record is not the one that was written", index.value(), record.generation);
  }
  return record;
}

Result<Slot> Pool::Locate(SlotIndex index, std::uint64_t generation) const {
  ORBITKV_TRY(CheckUse(index, generation));
  const SlotInfo& slot = slots_[index.value() - 1];
  return Slot{.index = index,
              .slab = SlabId(slot.slab + 1),
              .offset = OffsetOf(slot),
              .generation = generation,
              .slot_bytes = classes_[slabs_[slot.slab].size_class].slot_bytes};
}

std::uint64_t Pool::OffsetOf(const SlotInfo& slot) const {
  const std::uint64_t slot_bytes = classes_[slabs_[slot.slab].size_class].slot_bytes;
  return slot.slab * config_.unit_bytes + slot.position * slot_bytes;
}

wire::SlotRecord Pool::BareRecord(std::uint32_t slot) const {
  const SlotInfo& info = slots_[slot];
  wire::SlotRecord record;
  record.state = info.state;
  record.generation = info.generation;
  record.offset = OffsetOf(info);
  record.slot_bytes = classes_[slabs_[info.slab].size_class].slot_bytes;
  record.slab_unit = info.slab;
  return record;
}

std::vector<ClassGauges> Pool::class_gauges() const {
  std::vector<ClassGauges> out;
  for (const SizeClass& size_class : classes_) {
    if (size_class.slabs == 0) continue;
    out.push_back({size_class.slot_bytes, size_class.slabs, size_class.slots, size_class.used});
  }
  return out;
}

}  // namespace orbitkv::pool
