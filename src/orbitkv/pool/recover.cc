// A pool from the table of an earlier life.
//
// A record says where its slot lies and which slab it belongs to, so the slabs follow from the records in use: one
// begins wherever a record says so and reaches as far as one of its size may, or to the next. Free slots need no
// record: what is left of a slab is theirs. Records of one life never contradict each other; where they do, because the
// table is damaged, the slot that was given out last keeps its place and the others are freed.
#include <algorithm>
#include <set>

#include "orbitkv/base/check.h"
#include "orbitkv/pool/pool.h"

namespace orbitkv::pool {
namespace {

using wire::SlotState;

// No pool hands out so many: a larger one is damage, and would leave none to hand out.
constexpr std::uint64_t kMostGenerations = std::uint64_t{1} << 63U;

}  // namespace

struct Pool::Found {
  std::uint32_t slot = 0;
  SlotState state = SlotState::kFree;
  bool held = false;
  std::uint32_t slab_unit = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t generation = 0;
  std::uint64_t last_use_ns = 0;
  std::uint64_t end() const { return offset + slot_bytes; }
  // A free slot that is held yields to all others: its record may be of a slab that is gone.
  bool Beats(const Found& other) const {
    const bool free = state == SlotState::kFree;
    if (free != (other.state == SlotState::kFree)) return !free;
    return generation > other.generation;
  }
};

Result<Recovered> Pool::Recover(const PoolConfig& config, wire::TableMemory& table, std::uint64_t reserved_bytes,
                                const std::vector<bool>& held) {
  Recovered recovered;
  ORBITKV_ASSIGN_OR_RETURN(recovered.pool, Create(config, table));
  Pool& pool = *recovered.pool;
  ORBITKV_TRY(pool.AddReserved(reserved_bytes));
  std::vector<Found> misplaced;
  std::vector<Found> found = pool.Disentangle(pool.ReadRecords(held, recovered), misplaced);
  for (const Found& one : misplaced) {
    if (one.state != SlotState::kFree) pool.ClearRecord(one.slot);
    ++recovered.misplaced;
  }
  pool.Rebuild(found);
  std::ranges::sort(found, {}, &Found::slot);
  for (const Found& one : found) {
    if (one.state == SlotState::kRetired) continue;
    const bool sealed = one.state == SlotState::kSealed;
    if (sealed) recovered.sealed_bytes += one.slot_bytes;
    recovered.slots.push_back({.index = SlotIndex(one.slot + 1),
                               .generation = one.generation,
                               .last_use_ns = one.last_use_ns,
                               .sealed = sealed,
                               .held = one.held});
  }
  return recovered;
}

// What is in use, or held, and could be where its record says. Everything else is made free.
std::vector<Pool::Found> Pool::ReadRecords(const std::vector<bool>& held, Recovered& recovered) {
  std::vector<Found> found;
  for (std::uint32_t slot = 0; slot < config_.max_slots; ++slot) {
    const auto record = wire::LoadSlotRecord(table_.bytes(), slot);
    if (!record) {
      ++recovered.damaged;
      ClearRecord(slot);
      continue;
    }
    if (record->generation < kMostGenerations) {
      next_generation_ = std::max(next_generation_, record->generation + 1);
    }
    const bool is_held = slot + 1 < held.size() && held[slot + 1];
    const bool kept = record->state == SlotState::kSealed || record->state == SlotState::kRetired;
    if (record->state == SlotState::kFree && (!is_held || record->generation == 0)) continue;
    if (!kept && !is_held) {
      ++recovered.unfinished;
      ClearRecord(slot);
      continue;
    }
    if (!IsPlaced(*record)) {
      ++recovered.misplaced;
      ClearRecord(slot);
      continue;
    }
    found.push_back({.slot = slot,
                     .state = record->state,
                     .held = is_held,
                     .slab_unit = record->slab_unit,
                     .slot_bytes = record->slot_bytes,
                     .offset = record->offset,
                     .generation = record->generation,
                     .last_use_ns = record->last_use_ns});
  }
  return found;
}

bool Pool::IsPlaced(const wire::SlotRecord& record) const {
  const std::uint64_t usable = usable_units_ * config_.unit_bytes;
  const std::uint64_t slab = record.slab_unit * config_.unit_bytes;
  if (record.generation == 0 || record.generation >= kMostGenerations) return false;
  if (record.slot_bytes == 0 || record.slot_bytes % kSlotAlign != 0 || record.payload_bytes > record.slot_bytes) {
    return false;
  }
  if (record.slab_unit >= usable_units_ || record.offset < slab || record.offset >= usable) return false;
  if ((record.offset - slab) % record.slot_bytes != 0 || record.slot_bytes > usable - record.offset) return false;
  return record.offset + record.slot_bytes - slab <= SlabUnits(record.slot_bytes) * config_.unit_bytes;
}

// Those that fit together, in the order of their places; the others go to misplaced.
std::vector<Pool::Found> Pool::Disentangle(std::vector<Found> found, std::vector<Found>& misplaced) const {
  // A slab's size is that of the slot in it that was given out last.
  std::ranges::sort(found, [](const Found& a, const Found& b) {
    return a.slab_unit != b.slab_unit ? a.slab_unit < b.slab_unit : a.Beats(b);
  });
  std::vector<Found> agreed;
  for (const Found& one : found) {
    const bool first = agreed.empty() || agreed.back().slab_unit != one.slab_unit;
    (first || agreed.back().slot_bytes == one.slot_bytes ? agreed : misplaced).push_back(one);
  }
  std::ranges::sort(agreed, [](const Found& a, const Found& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.Beats(b);
  });
  // By offset now: of two that overlap one goes, and a slab that begins inside another goes with all its slots.
  std::vector<Found> apart;
  for (const Found& one : agreed) {
    bool fits = true;
    while (fits && !apart.empty()) {
      const Found& last = apart.back();
      const bool mixed = last.slab_unit > one.slab_unit ||
                         (last.slab_unit < one.slab_unit && last.end() > one.slab_unit * config_.unit_bytes);
      if (last.end() <= one.offset && !mixed) break;
      if (one.Beats(last)) {
        misplaced.push_back(last);
        apart.pop_back();
      } else {
        fits = false;
      }
    }
    (fits ? apart : misplaced).push_back(one);
  }
  std::set<std::uint32_t> sizes;
  const auto too_many = [&](const Found& one) {
    if (sizes.size() < config_.max_classes) sizes.insert(one.slot_bytes);
    if (sizes.contains(one.slot_bytes)) return false;
    misplaced.push_back(one);
    return true;
  };
  std::erase_if(apart, too_many);
  return apart;
}

void Pool::Rebuild(std::span<const Found> found) {
  for (const Found& one : found) slots_[one.slot].generation = one.generation;
  std::vector<bool> used(config_.max_slots);
  for (const Found& one : found) used[one.slot] = true;
  unassigned_ = kNone;
  unassigned_count_ = config_.max_slots - static_cast<std::uint32_t>(found.size());
  for (std::uint32_t slot = config_.max_slots; slot > 0; --slot) {
    if (used[slot - 1]) continue;
    slots_[slot - 1].next_free = unassigned_;
    unassigned_ = slot - 1;
  }
  for (std::size_t begin = 0; begin < found.size();) {
    std::size_t end = begin;
    while (end < found.size() && found[end].slab_unit == found[begin].slab_unit) ++end;
    const std::uint32_t limit = end < found.size() ? found[end].slab_unit : usable_units_;
    const std::uint32_t units = std::min(SlabUnits(found[begin].slot_bytes), limit - found[begin].slab_unit);
    RebuildSlab(found.subspan(begin, end - begin), units);
    begin = end;
  }
}

void Pool::RebuildSlab(std::span<const Found> used, std::uint32_t units) {
  const std::uint32_t first_unit = used.front().slab_unit;
  const std::uint64_t slot_bytes = used.front().slot_bytes;
  const auto made = ClassFor(slot_bytes);
  ORBITKV_CHECK(made.has_value());  // Disentangle left no more sizes than may be
  SizeClass& owner = classes_[*made];
  Slab& slab = slabs_[first_unit];
  slab = Slab{.units = units, .size_class = *made};
  std::fill_n(unit_slab_.begin() + first_unit, units, first_unit);
  std::uint32_t* link = &slab.first_slot;
  std::uint32_t* free_link = &slab.first_free;
  auto next_used = used.begin();
  const auto positions = static_cast<std::uint32_t>(units * config_.unit_bytes / slot_bytes);
  for (std::uint32_t position = 0; position < positions; ++position) {
    const std::uint64_t offset = first_unit * config_.unit_bytes + position * slot_bytes;
    const bool in_use = next_used != used.end() && next_used->offset == offset;
    if (!in_use && unassigned_count_ == 0) continue;
    const std::uint32_t index = in_use ? next_used->slot : unassigned_;
    SlotInfo& slot = slots_[index];
    if (!in_use) {
      unassigned_ = slot.next_free;
      --unassigned_count_;
    }
    slot = SlotInfo{.generation = slot.generation, .slab = first_unit, .position = position};
    *link = index;
    link = &slot.next_in_slab;
    ++slab.slots;
    if (!in_use) {
      *free_link = index;
      free_link = &slot.next_free;
      ++gauges_.slots_free;
      continue;
    }
    slot.state = next_used->state == SlotState::kFree ? SlotState::kWriting : next_used->state;
    if (next_used->state == SlotState::kFree) ORBITKV_CHECK(wire::StoreSlotRecord(table_, index, BareRecord(index)));
    ++(slot.state == SlotState::kSealed    ? gauges_.slots_sealed
       : slot.state == SlotState::kRetired ? gauges_.slots_retired
                                           : gauges_.slots_writing);
    ++slab.used;
    ++owner.used;
    gauges_.used_bytes += slot_bytes;
    ++next_used;
  }
  ORBITKV_CHECK(next_used == used.end());
  vacant_units_ -= units;
  ++owner.slabs;
  ++slab_count_;
  owner.slots += slab.slots;
  gauges_.slab_bytes += units * config_.unit_bytes;
  if (slab.first_free != kNone) Link(first_unit);
}

void Pool::ClearRecord(std::uint32_t slot) { ORBITKV_CHECK(wire::StoreSlotRecord(table_, slot, {})); }

}  // namespace orbitkv::pool
