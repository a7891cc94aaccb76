// Host memory for KV blocks: slots of fixed size inside slabs, and the table that says what each slot holds.
//
// The pool is divided into units (2 MiB). A slab is a run of units that holds slots of one size class; classes are
// exact slot sizes, rounded up to 512 bytes, because block sizes repeat. A slab changes its class only when it holds
// nothing. Owns: its bookkeeping, sized at construction. The pool's memory is never touched; the table belongs to the
// caller and outlives the Pool. Threads: one. Never blocks, makes no system call. Units: bytes; offsets count from the
// start of the pool; slot offsets and sizes are multiples of kSlotAlign. Errors: kBusy when nothing is free (the caller
// evicts and asks again), kInvalid for arguments outside the limits,
//         kStale for a generation that is not the slot's, kRefused for a slot in the wrong state, kCorrupt for a record
//         that is damaged. After an error the pool is unchanged.
// Invariants: a slot is in exactly one of free, writing, sealed, retired; slots never overlap and never lie beyond the
//             reserved bytes; a generation is handed out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::pool {

using SlotIndex = StrongId<struct SlotIndexTag, std::uint32_t>;  // 1 .. max_slots; record index + 1
using SlabId = StrongId<struct SlabIdTag, std::uint32_t>;        // first unit of the slab + 1

inline constexpr std::uint64_t kSlotAlign = 512;

struct PoolConfig {
  std::uint64_t pool_bytes = 0;  // rounded down to whole units
  std::uint64_t unit_bytes = std::uint64_t{2} << 20U;
  std::uint32_t max_slots = 0;            // records in the table
  std::uint64_t first_generation = 1;     // above every generation of an earlier life
  std::uint32_t max_classes = 256;        // slot sizes in use at once
  std::uint32_t max_waste_permille = 30;  // tail of a slab
  std::uint32_t min_slots_per_slab = 4;

  Status Validate() const;
  std::uint64_t table_bytes() const { return std::uint64_t{max_slots} * wire::kSlotRecordBytes; }
};

struct Slot {
  SlotIndex index{};
  SlabId slab{};
  std::uint64_t offset = 0;
  std::uint64_t generation = 0;
  std::uint32_t slot_bytes = 0;
};

// What a sealed slot holds.
struct SlotIdentity {
  NamespaceRow row{};
  state::BlockHash hash{};
  state::BlockHash parent{};
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  std::uint32_t depth = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t last_use_ns = 0;
  std::uint64_t checksum = 0;
};

// A run of units that would hold one slab of a class if every slot in it were free.
struct Window {
  std::uint32_t first_unit = 0;
  std::uint32_t units = 0;
};

// A slot that outlived the Manager that gave it out.
struct RecoveredSlot {
  SlotIndex index{};
  std::uint64_t generation = 0;
  std::uint64_t last_use_ns = 0;
  bool sealed = false;
  bool held = false;  // a process of the earlier life may still touch it
};

class Pool;

struct Recovered {
  std::unique_ptr<Pool> pool;
  std::vector<RecoveredSlot> slots;  // those that are sealed or held, by index
  std::uint64_t sealed_bytes = 0;    // of their slots
  std::uint32_t unfinished = 0;      // freed: reserved by nobody who lives
  std::uint32_t damaged = 0;         // freed: torn or damaged records
  std::uint32_t misplaced = 0;       // freed: where no slot of that size can be, or another one is
};

struct PoolGauges {
  std::uint64_t pool_bytes = 0;      // hard limit
  std::uint64_t reserved_bytes = 0;  // usable now
  std::uint64_t slab_bytes = 0;      // in slabs
  std::uint64_t used_bytes = 0;      // in slots that are not free
  std::uint32_t slots_free = 0;      // in existing slabs
  std::uint32_t slots_writing = 0;
  std::uint32_t slots_sealed = 0;
  std::uint32_t slots_retired = 0;
};

struct ClassGauges {
  std::uint32_t slot_bytes = 0;
  std::uint32_t slabs = 0;
  std::uint32_t slots = 0;
  std::uint32_t used = 0;
};

class Pool {
 public:
  // table.bytes() is exactly config.table_bytes() long.
  static Result<std::unique_ptr<Pool>> Create(const PoolConfig& config, wire::TableMemory& table);

  // From the table of an earlier life, of which nothing is trusted but records that are whole and fit together. What is
  // neither sealed, held nor retired becomes free. reserved_bytes: backed by memory already, from the front.
  // held: by slot index, slots that somebody may still be touching; they are kept whatever their record says, as long
  // as it says where they are. Sealed slots belong to the caller from now on; so do held ones that are not sealed: they
  // are in state writing.
  static Result<Recovered> Recover(const PoolConfig& config, wire::TableMemory& table, std::uint64_t reserved_bytes,
                                   const std::vector<bool>& held);

  // That many more bytes, from the front, are backed by memory. Units beyond are never handed out.
  Status AddReserved(std::uint64_t bytes);

  // A slot of at least payload_bytes, in state writing.
  Result<Slot> Allocate(std::uint64_t payload_bytes);
  // The slot's payload is complete: writing -> sealed.
  Status Seal(SlotIndex index, std::uint64_t generation, const SlotIdentity& identity);
  // writing or sealed -> free; a slot whose bytes were found wrong twice is retired instead.
  Status Free(SlotIndex index, std::uint64_t generation);
  // sealed -> writing: what it holds is given up, but somebody may still be touching it.
  Status Unseal(SlotIndex index, std::uint64_t generation);
  // A sealed slot was used; for the order of blocks in a later life.
  void NoteUse(SlotIndex index, std::uint64_t generation, std::uint64_t now_ns);
  // The slot's bytes did not match their checksum.
  Status CountFailure(SlotIndex index, std::uint64_t generation);
  // The record of a sealed slot, checked against its checksum and against the pool's own state.
  Result<wire::SlotRecord> Read(SlotIndex index, std::uint64_t generation) const;
  // Place and size of a slot in use, without looking at its record.
  Result<Slot> Locate(SlotIndex index, std::uint64_t generation) const;

  // Making room for a class that has none. The caller frees every slot that ForEachSlot names, then Allocate succeeds.
  // The run that contains a given slot's slab, and the next run of a hand that goes round the pool. None when a slab
  // of the class itself is in the way or the reserved pool is too small.
  std::optional<Window> WindowAt(SlotIndex slot, std::uint64_t payload_bytes) const;
  std::optional<Window> NextWindow(std::uint64_t payload_bytes);
  // Slots of the window's slabs that are not free, in order of their offset. fn(SlotIndex) -> bool, false stops;
  // returns whether all were visited. fn may free slots.
  template <typename Fn>
  bool ForEachSlot(Window window, Fn&& fn) const {
    for (std::uint32_t slab = FirstSlabIn(window); slab != kNone; slab = NextSlabIn(window, slab)) {
      for (std::uint32_t slot = slabs_[slab].first_slot; slot != kNone; slot = slots_[slot].next_in_slab) {
        if (slots_[slot].state != wire::SlotState::kFree && !fn(SlotIndex(slot + 1))) return false;
      }
    }
    return true;
  }

  // Bytes that a slot for this payload takes.
  static std::uint64_t SlotBytes(std::uint64_t payload_bytes) {
    return (payload_bytes + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
  }
  // Units of a full slab of this slot size; 0 when not even one slot fits into the pool.
  std::uint32_t SlabUnits(std::uint64_t slot_bytes) const;
  std::uint32_t max_slots() const { return config_.max_slots; }
  const PoolGauges& gauges() const { return gauges_; }
  std::vector<ClassGauges> class_gauges() const;  // for status; allocates

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  struct SlotInfo {
    std::uint64_t generation = 0;
    std::uint32_t slab = kNone;
    std::uint32_t position = 0;
    std::uint32_t next_in_slab = kNone;
    std::uint32_t next_free = kNone;  // in the slab's free list, or among the unassigned records
    wire::SlotState state = wire::SlotState::kFree;
    std::uint32_t failures = 0;
  };
  struct Slab {  // indexed by first unit
    std::uint32_t units = 0;
    std::uint32_t size_class = kNone;
    std::uint32_t slots = 0;
    std::uint32_t used = 0;
    std::uint32_t first_slot = kNone;
    std::uint32_t first_free = kNone;
    std::uint32_t prev = kNone;  // among the class's slabs that have a free slot
    std::uint32_t next = kNone;
  };
  struct SizeClass {
    std::uint32_t slot_bytes = 0;
    std::uint32_t slab_units = 0;
    std::uint32_t slabs = 0;
    std::uint32_t slots = 0;
    std::uint32_t used = 0;
    std::uint32_t open_slab = kNone;   // head of the list of slabs with a free slot
    std::uint64_t searched_epoch = 0;  // no run was found while space_epoch_ had this value
  };

  Pool(const PoolConfig& config, wire::TableMemory& table);

  struct Found;  // a record of an earlier life; recover.cc
  std::vector<Found> ReadRecords(const std::vector<bool>& held, Recovered& recovered);
  bool IsPlaced(const wire::SlotRecord& record) const;
  std::vector<Found> Disentangle(std::vector<Found> found, std::vector<Found>& misplaced) const;
  void Rebuild(std::span<const Found> found);
  void RebuildSlab(std::span<const Found> used, std::uint32_t units);
  void ClearRecord(std::uint32_t slot);

  Result<std::uint32_t> ClassFor(std::uint64_t slot_bytes);
  std::uint32_t FindClass(std::uint64_t slot_bytes) const;
  bool OpenSlab(std::uint32_t size_class);
  Window FindRun(std::uint32_t want_units) const;
  bool UnitIsVacant(std::uint32_t unit) const;
  void MakeSlab(std::uint32_t size_class, Window run);
  void Dissolve(std::uint32_t slab);
  void Link(std::uint32_t slab);
  void Unlink(std::uint32_t slab);
  std::uint32_t FirstSlabIn(Window window) const;
  std::uint32_t NextSlabIn(Window window, std::uint32_t slab) const;
  std::optional<Window> WindowFrom(std::uint32_t unit, std::uint64_t payload_bytes) const;
  Status CheckUse(SlotIndex index, std::uint64_t generation) const;
  std::uint64_t OffsetOf(const SlotInfo& slot) const;
  wire::SlotRecord BareRecord(std::uint32_t slot) const;

  const PoolConfig config_;
  wire::TableMemory& table_;
  const std::uint32_t unit_count_;
  std::uint32_t usable_units_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t next_generation_;
  std::uint64_t space_epoch_ = 1;
  std::uint32_t vacant_units_ = 0;  // usable units in no slab or in a slab without a used slot
  std::uint32_t slab_count_ = 0;
  std::uint32_t no_vacant_below_ = 0;  // every unit below is in a slab with a used slot
  std::uint32_t hand_ = 0;
  std::uint32_t unassigned_ = kNone;  // records of no slab
  std::uint32_t unassigned_count_ = 0;
  std::vector<SlotInfo> slots_;
  std::vector<Slab> slabs_;
  std::vector<std::uint32_t> unit_slab_;  // the slab that a unit belongs to, or kNone
  std::vector<SizeClass> classes_;
  PoolGauges gauges_;
};

}  // namespace orbitkv::pool
