// Which slots each session may be touching, in memory that outlives a Manager: slots that it is writing, and slots that
// it has been told to read. A slot is listed before the session is told of it, so that a later Manager knows what a
// process that still runs may be doing.
//
// A row is one session: who it is, and a bit for each slot. A row is opened before its first bit is set. A session may
// have the same slot for several reasons at once; its bit goes with the last of them.
// Owns: its counts; the table is the caller's and outlives it. Threads: one (the dispatcher). Blocks: no; Add and
//       Remove allocate now and then. Units: rows count from 0.
// Errors: kInvalid for a row or slot outside the table, kBusy for a row that is open.
// Invariant: a row reads as open only while all of its header is valid and no bit of an earlier session is left in it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::pool {

struct SessionOwner {
  Incarnation incarnation;  // of the Manager that gave the token
  std::uint64_t token = 0;
  std::int32_t pid = 0;  // for people; 0 when it is not known
  bool watched = false;  // the process holds the lock of its row for as long as it lives
  bool operator==(const SessionOwner&) const = default;
};

class SessionLists {
 public:
  struct Earlier {
    std::uint32_t row = 0;
    SessionOwner owner;  // without a token when its row is damaged
    std::vector<SlotIndex> slots;
  };

  SessionLists(wire::TableMemory& table, std::uint32_t rows, std::uint32_t max_slots);

  // The rows that an earlier life left open. Before anything is opened.
  std::vector<Earlier> Load() const;

  // The row is closed.
  Status Open(std::uint32_t row, const SessionOwner& owner);
  // Idempotent; of an earlier life's rows too.
  void Close(std::uint32_t row);
  // The row is open. What is not listed is removed without effect.
  void Add(std::uint32_t row, SlotIndex slot);
  void Remove(std::uint32_t row, SlotIndex slot);

  std::uint32_t rows() const { return static_cast<std::uint32_t>(open_.size()); }

 private:
  struct Header;
  using Counts = std::map<std::uint32_t, std::uint32_t>;  // of slots that are listed more than once

  std::size_t FirstWord(std::uint32_t row) const { return row * row_words_; }
  std::uint64_t Word(std::size_t word) const;
  std::size_t BitWord(std::uint32_t row, SlotIndex slot) const;
  void Wipe(std::uint32_t row);

  wire::TableMemory& table_;
  const std::uint32_t max_slots_;
  const std::size_t row_words_;
  std::vector<bool> open_;
  std::vector<bool> clean_;            // no bit of an earlier life is left
  std::vector<std::uint32_t> listed_;  // bits of this life
  std::vector<Counts> more_;
};

// By slot index, what is to be held for these sessions: of each, the slots that it may be writing, then those that it
// reads, up to budget_bytes. Whoever reads more sees wrong bytes and has a miss.
std::vector<bool> SlotsToHold(std::span<const SessionLists::Earlier> sessions, std::span<const std::byte> slot_table,
                              std::uint32_t max_slots, std::uint64_t budget_bytes);

}  // namespace orbitkv::pool
