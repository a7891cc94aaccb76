// The pool's slabs: finding runs of vacant units, making and dissolving slabs, and windows to be emptied.
//
// A slab without a used slot is *vacant*: it keeps its class, so that churn at the edge costs nothing, until another
// class wants its units. space_epoch_ counts events that may have made a longer run; a class that found none does not
// search again within an epoch, so a full pool answers kBusy in constant time.
#include <algorithm>

#include "orbitkv/base/check.h"
#include "orbitkv/pool/pool.h"

namespace orbitkv::pool {
namespace {

constexpr std::uint32_t kMaxWindowTries = 256;  // bounds one NextWindow

}  // namespace

bool Pool::UnitIsVacant(std::uint32_t unit) const {
  const std::uint32_t slab = unit_slab_[unit];
  return slab == kNone || slabs_[slab].used == 0;
}

// The first run of want_units vacant units, else the longest shorter one.
Window Pool::FindRun(std::uint32_t want_units) const {
  Window best;
  Window run;
  for (std::uint32_t unit = no_vacant_below_; unit < usable_units_; ++unit) {
    if (!UnitIsVacant(unit)) {
      run.units = 0;
      continue;
    }
    if (run.units++ == 0) run.first_unit = unit;
    if (run.units > best.units) best = run;
    if (best.units == want_units) break;
  }
  return best;
}

bool Pool::OpenSlab(std::uint32_t size_class) {
  SizeClass& owner = classes_[size_class];
  if (vacant_units_ == 0 || owner.searched_epoch == space_epoch_) return false;
  while (no_vacant_below_ < usable_units_ && !UnitIsVacant(no_vacant_below_)) ++no_vacant_below_;
  const Window run = FindRun(owner.slab_units);
  const std::uint64_t fitting = run.units * config_.unit_bytes / owner.slot_bytes;
  // A hole that is too short for a full slab is better used with a larger tail than not at all, if it holds a few.
  const std::uint64_t least = owner.slabs == 0 ? 1 : config_.min_slots_per_slab;
  if (fitting == 0 || (run.units < owner.slab_units && fitting < least)) {
    owner.searched_epoch = space_epoch_;
    return false;
  }
  for (std::uint32_t slab = FirstSlabIn(run); slab != kNone; slab = FirstSlabIn(run)) Dissolve(slab);
  if (unassigned_count_ == 0) {
    // Records may still belong to vacant slabs elsewhere.
    const Window all{.first_unit = 0, .units = usable_units_};
    for (std::uint32_t slab = FirstSlabIn(all); slab != kNone;) {
      const std::uint32_t next = NextSlabIn(all, slab);
      if (slabs_[slab].used == 0) Dissolve(slab);
      slab = next;
    }
  }
  if (unassigned_count_ == 0) {
    owner.searched_epoch = space_epoch_;
    return false;
  }
  MakeSlab(size_class, run);
  return true;
}

void Pool::MakeSlab(std::uint32_t size_class, Window run) {
  SizeClass& owner = classes_[size_class];
  Slab& slab = slabs_[run.first_unit];
  slab = Slab{.units = run.units, .size_class = size_class};
  const std::uint64_t fitting = run.units * config_.unit_bytes / owner.slot_bytes;
  slab.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>(fitting, unassigned_count_));
  std::uint32_t* link = &slab.first_slot;
  for (std::uint32_t position = 0; position < slab.slots; ++position) {
    const std::uint32_t index = unassigned_;
    SlotInfo& slot = slots_[index];
    unassigned_ = slot.next_free;
    slot = SlotInfo{.generation = slot.generation, .slab = run.first_unit, .position = position};
    *link = index;
    link = &slot.next_in_slab;
  }
  // At first the free list is the slab's order.
  slab.first_free = slab.first_slot;
  for (std::uint32_t slot = slab.first_slot; slot != kNone; slot = slots_[slot].next_in_slab) {
    slots_[slot].next_free = slots_[slot].next_in_slab;
  }
  unassigned_count_ -= slab.slots;
  std::fill_n(unit_slab_.begin() + run.first_unit, run.units, run.first_unit);
  ++owner.slabs;
  ++slab_count_;
  owner.slots += slab.slots;
  gauges_.slots_free += slab.slots;
  gauges_.slab_bytes += run.units * config_.unit_bytes;
  Link(run.first_unit);
}

void Pool::Dissolve(std::uint32_t slab_index) {
  Slab& slab = slabs_[slab_index];
  ORBITKV_CHECK(slab.used == 0);
  Unlink(slab_index);
  for (std::uint32_t slot = slab.first_slot; slot != kNone;) {
    const std::uint32_t next = slots_[slot].next_in_slab;
    slots_[slot] = SlotInfo{.generation = slots_[slot].generation, .next_free = unassigned_};
    unassigned_ = slot;
    slot = next;
  }
  unassigned_count_ += slab.slots;
  SizeClass& owner = classes_[slab.size_class];
  --owner.slabs;
  --slab_count_;
  owner.slots -= slab.slots;
  gauges_.slots_free -= slab.slots;
  gauges_.slab_bytes -= slab.units * config_.unit_bytes;
  std::fill_n(unit_slab_.begin() + slab_index, slab.units, kNone);
  slab = Slab{};
}

void Pool::Link(std::uint32_t slab_index) {
  Slab& slab = slabs_[slab_index];
  SizeClass& owner = classes_[slab.size_class];
  slab.prev = kNone;
  slab.next = owner.open_slab;
  if (slab.next != kNone) slabs_[slab.next].prev = slab_index;
  owner.open_slab = slab_index;
}

void Pool::Unlink(std::uint32_t slab_index) {
  Slab& slab = slabs_[slab_index];
  if (slab.prev != kNone) {
    slabs_[slab.prev].next = slab.next;
  } else {
    classes_[slab.size_class].open_slab = slab.next;
  }
  if (slab.next != kNone) slabs_[slab.next].prev = slab.prev;
  slab.prev = kNone;
  slab.next = kNone;
}

std::uint32_t Pool::FirstSlabIn(Window window) const {
  for (std::uint32_t unit = window.first_unit; unit < window.first_unit + window.units; ++unit) {
    if (unit_slab_[unit] != kNone) return unit_slab_[unit];
  }
  return kNone;
}

std::uint32_t Pool::NextSlabIn(Window window, std::uint32_t slab) const {
  const std::uint32_t end = window.first_unit + window.units;
  const std::uint32_t from = slab + slabs_[slab].units;
  if (from >= end) return kNone;
  return FirstSlabIn(Window{.first_unit = from, .units = end - from});
}

std::optional<Window> Pool::WindowFrom(std::uint32_t unit, std::uint64_t payload_bytes) const {
  const std::uint64_t slot_bytes = SlotBytes(payload_bytes);
  const std::uint32_t units = std::min(SlabUnits(slot_bytes), usable_units_);
  if (units == 0 || units * config_.unit_bytes < slot_bytes) return std::nullopt;
  const Window window{.first_unit = std::min(unit, usable_units_ - units), .units = units};
  for (std::uint32_t slab = FirstSlabIn(window); slab != kNone; slab = NextSlabIn(window, slab)) {
    if (classes_[slabs_[slab].size_class].slot_bytes == slot_bytes) return std::nullopt;
  }
  return window;
}

std::optional<Window> Pool::WindowAt(SlotIndex slot, std::uint64_t payload_bytes) const {
  if (slot.is_none() || slot.value() > config_.max_slots) return std::nullopt;
  const std::uint32_t slab = slots_[slot.value() - 1].slab;
  if (slab == kNone) return std::nullopt;
  return WindowFrom(slab, payload_bytes);
}

std::optional<Window> Pool::NextWindow(std::uint64_t payload_bytes) {
  const std::uint32_t own = FindClass(SlotBytes(payload_bytes));
  if (own != kNone && classes_[own].slabs == slab_count_) return std::nullopt;
  for (std::uint32_t tries = 0; tries < std::min(usable_units_, kMaxWindowTries); ++tries) {
    if (hand_ >= usable_units_) hand_ = 0;
    const auto window = WindowFrom(hand_, payload_bytes);
    const std::uint32_t slab = unit_slab_[hand_];
    hand_ = slab == kNone ? hand_ + 1 : slab + slabs_[slab].units;
    if (window) return window;
  }
  return std::nullopt;
}

}  // namespace orbitkv::pool
