// Slots that sessions are writing: reserve, then commit or abort, block by block.
//
// Owns: the slots that are reserved in the cache and neither committed nor aborted, running reserves (at most one per
//       session), and per instance the admissions of its shards. A Session outlives what it has reserved here:
//       EndSession comes before it goes.
// Threads: one. Blocks: no. Units: bytes of slots as the pool rounds them; blocks.
// Errors: as service.h says of each call.
// Invariant: a reservation has at least one slot that is being written; it ends by its session only, never by time,
//            because the session may still be writing. After a while it keeps no more than that: the blocks that it
//            continues may be evicted again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/admissions.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/saves.h"
#include "orbitkv/service/types.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::service {

class Reservations {
 public:
  Reservations(const Limits& limits, cache::BlockCache& cache, Saves& saves, Counters& counters)
      : limits_(limits), cache_(cache), saves_(saves), counters_(counters) {}

  // Sessions are registered.
  Result<ReserveOutcome> Start(Session& session, const wire::ReserveView& reserve, std::uint64_t now_ns,
                               std::vector<wire::ReserveEntry>& out);
  Result<ReserveOutcome> Continue(Session& session, std::uint64_t now_ns, std::vector<wire::ReserveEntry>& out);
  bool Running(const Session& session) const { return running_.contains(session.id); }
  void CancelRunning(Session& session);

  // A step commits no more than Limits::step_hashes blocks.
  CommitProgress Commit(const Session& session, ReservationId reservation, const wire::CommitView& commit,
                        std::uint64_t now_ns, std::vector<std::uint32_t>& outcomes);
  Result<CommitProgress> ContinueCommit(const Session& session, std::uint64_t now_ns,
                                        std::vector<std::uint32_t>& outcomes);
  bool Committing(const Session& session) const { return committing_.contains(session.id); }
  void Abort(const Session& session, ReservationId reservation);

  void EndSession(Session& session);
  void Tick(std::uint64_t now_ns);
  std::optional<std::uint64_t> NextDeadline() const;
  void ForgetInstance(InstanceId instance) { admissions_.erase(instance); }
  void Export(Gauges& gauges) const;

 private:
  struct Block {
    state::BlockHash hash;
    pool::SlotIndex slot;  // none when the block got none, or when it is committed or aborted
    std::uint64_t generation = 0;
    std::uint64_t slot_bytes = 0;
  };
  struct Reservation {
    Session* session = nullptr;
    wire::ReserveHeader header{};
    std::vector<Block> blocks;
    std::size_t open_slots = 0;
    std::uint64_t reserved_ns = 0;  // rises with the ids
  };
  struct Reserve {
    Reservation reservation;
    std::size_t looked_at = 0;
    bool stopped = false;  // a block got kNotNow
  };
  struct OpenCommit {
    ReservationId reservation;
    std::vector<wire::CommitEntry> entries;
    std::uint32_t stored = 0;
  };
  using ReservationMap = std::map<ReservationId, Reservation>;

  Status Check(const Session& session, const wire::ReserveView& reserve) const;
  ReserveOutcome Step(Reserve& reserve, std::uint64_t now_ns, std::vector<wire::ReserveEntry>& out);
  static std::optional<state::BlockHash> ParentOf(const Reservation& reservation, std::uint32_t index);
  wire::ReserveEntry ReserveBlock(Reserve& reserve, Block& block, std::uint64_t now_ns);
  CommitProgress StepCommit(const Session& session, ReservationId reservation,
                            std::span<const wire::CommitEntry> entries, std::uint64_t now_ns,
                            std::vector<std::uint32_t>& outcomes);
  wire::CommitOutcome CommitBlock(Reservation& reservation, const wire::CommitEntry& entry, std::uint64_t now_ns);
  ReservationMap::iterator Find(const Session& session, ReservationId reservation);
  void CloseSlot(Reservation& reservation, Block& block);
  void AbortSlots(Reservation& reservation);
  void Erase(ReservationMap::iterator reservation);

  const Limits& limits_;
  cache::BlockCache& cache_;
  Saves& saves_;
  Counters& counters_;
  std::map<SessionId, Reserve> running_;
  std::map<SessionId, OpenCommit> committing_;
  ReservationMap reservations_;
  std::map<InstanceId, Admissions> admissions_;
  std::uint64_t next_reservation_ = 1;
  ReservationId first_holding_{1};  // none before it keeps what it continues
  std::uint64_t reserved_slots_ = 0;
  std::uint64_t reserved_bytes_ = 0;
};

}  // namespace orbitkv::service
