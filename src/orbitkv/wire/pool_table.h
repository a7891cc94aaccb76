// The pool's slot table: one record of 128 bytes per slot, in memory that outlives a Manager.
//
// A record is updated so that a stop after any single store is seen: the first store marks it as being updated, the
// last one writes state and checksum together. Between the two, Load refuses it. An update that changes the state alone
// is one store; so is one of the last use, which the checksum leaves out: it orders blocks and nothing depends on it.
// Owns: nothing; a SlotRecord is a copy.
// Threads: one writer; readers of the same process on the writer's thread. Blocks: no.
// Units: bytes; offsets count from the start of the pool.
// Errors: kInvalid for an index outside the table; kCorrupt for a record that is torn or damaged.
// Invariant: memory that was never written (all zero bytes) is a free record of generation 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::wire {

enum class SlotState : std::uint32_t {
  kFree = 0,
  kWriting = 1,   // reserved for one writer; the payload is not complete
  kSealed = 2,    // payload and checksum are final
  kRetired = 3,   // never used again: its bytes were found wrong twice
  kUpdating = 4,  // between the first and the last store of an update
};

struct SlotRecord {
  state::BlockHash hash{};
  state::BlockHash parent{};  // zero at depth 0
  std::uint32_t namespace_row = 0;
  std::uint16_t group = 0;
  std::uint16_t shard = 0;
  std::uint32_t slab_unit = 0;  // where the slot's slab begins, in units of the pool
  std::uint32_t depth = 0;      // blocks before this one
  std::uint64_t last_use_ns = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t checksum = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0;
  SlotState state = SlotState::kFree;
  std::uint32_t crc = 0;  // CRC32C of everything before it but last_use_ns; set by StoreSlotRecord
};
inline constexpr std::size_t kSlotRecordBytes = 128;
static_assert(sizeof(SlotRecord) == kSlotRecordBytes);

// Where the table lies. The seam through which tests stop an update after any store.
class TableMemory {
 public:
  virtual ~TableMemory() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Stores eight bytes at once, after every earlier Store. word counts eight-byte words and is inside the table.
  virtual void Store(std::size_t word, std::uint64_t value) = 0;
};

// Some bytes of another table, as one of its own. The other table outlives it; first_byte and size are whole words.
class TableWindow final : public TableMemory {
 public:
  TableWindow(TableMemory& whole, std::size_t first_byte, std::size_t size)
      : whole_(whole), first_byte_(first_byte), size_(size) {}
  std::span<const std::byte> bytes() const override { return whole_.bytes().subspan(first_byte_, size_); }
  void Store(std::size_t word, std::uint64_t value) override {
    whole_.Store(first_byte_ / sizeof(std::uint64_t) + word, value);
  }

 private:
  TableMemory& whole_;
  const std::size_t first_byte_;
  const std::size_t size_;
};

// A table in the caller's memory, which is 8-byte aligned and outlives it.
class SpanTable final : public TableMemory {
 public:
  explicit SpanTable(std::span<std::byte> memory) : memory_(memory) {}
  std::span<const std::byte> bytes() const override { return memory_; }
  void Store(std::size_t word, std::uint64_t value) override;

 private:
  std::span<std::byte> memory_;
};

// Copies the record once, then checks it.
Result<SlotRecord> LoadSlotRecord(std::span<const std::byte> table, std::uint32_t index);

// Writes a whole record. record.crc is ignored.
Status StoreSlotRecord(TableMemory& table, std::uint32_t index, const SlotRecord& record);

// Changes the state of a record whose current content is known to be `record`. One store.
Status StoreSlotState(TableMemory& table, std::uint32_t index, const SlotRecord& record, SlotState state);

// Changes the last use alone. One store.
Status StoreSlotUse(TableMemory& table, std::uint32_t index, std::uint64_t last_use_ns);

}  // namespace orbitkv::wire
