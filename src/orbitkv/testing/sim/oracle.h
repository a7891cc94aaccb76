// The model that every decision of a Manager is held against.
//
// It sees each answer as it is decided, with the request, and what clients have written; it keeps the same facts in the
// plainest form and says so when they disagree. It knows which blocks may be there (everything that was stored and
// whose slot was not given to somebody else since) and which slots must not move (armed and being written).
//
// Owns: its facts. Refers to the current life, whose figures and slot table it reads. Threads: one. Blocks: no.
// Errors: a broken promise goes to the history as a violation.
// Invariant: facts are those of one Manager life; StartLife forgets the ones before, but for the slots where pools
//            survive.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/manager/commands.h"
#include "orbitkv/service/types.h"
#include "orbitkv/testing/sim/history.h"
#include "orbitkv/testing/sim/rules.h"
#include "orbitkv/testing/sim/shape.h"
#include "orbitkv/testing/sim/store.h"
#include "orbitkv/wire/pool_table.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::sim {

class ManagerLife;
struct SimRequest;

struct BlockKey {
  std::uint32_t space = 0;  // the namespace
  state::BlockHash hash{};
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  auto operator<=>(const BlockKey&) const = default;
};

// Figures before a call, to see how much it did.
struct WorkBefore {
  std::uint64_t looked_at = 0;
  std::uint64_t reserved = 0;
};

class Oracle {
 public:
  Oracle(const Shape& shape, History& history) : shape_(shape), history_(history) {}

  // Where pools survive, what the tables hold by now is there, and must be what was stored.
  void StartLife(ManagerLife& life);
  void EndLife();

  // ---- what the Manager's other threads tell it; service has been told already ----
  void Opened(SessionId session, std::uint16_t abi);
  void Registered(SessionId session, const service::Registration& registration,
                  const service::RegisterOutcome& outcome);
  void Unregistered(SessionId session);
  void Detached(SessionId session);
  // It is about to be ended although its process may live.
  void CheckHoldsNothing(SessionId session);
  void Ended(SessionId session);
  void Verified(const service::VerifyRequest& request, bool equal);

  // ---- its answers ----
  WorkBefore BeforeWork() const;
  void AfterWork(const WorkBefore& before);
  // Of all that one session had in one turn.
  void AfterTurn(const WorkBefore& before);
  // outcomes: of a commit under way, as far as they are decided.
  void Committing(SessionId session, SimRequest& request, std::span<const std::uint32_t> outcomes);
  void Answered(SessionId session, SimRequest& request, const manager::CommandAnswer& answer, std::uint64_t now_ns);

  // ---- what clients do with the pool; ignored for a life that is over ----
  // A writer has filled the slot with write number `write` and will commit it under this checksum.
  void Written(std::uint64_t life, std::uint64_t generation, std::uint64_t write, std::uint64_t checksum);
  // The write whose slot has this checksum; 0: there is none.
  std::uint64_t WriteOf(std::uint64_t checksum) const;
  // The host has lost its memory.
  void PowerLost();

  // ---- loads ----
  // A read into a slot begins; saved: what the store has under its key, or null.
  void Loading(const service::LoadRequest& request, const sim::Saved* saved);
  // The service has heard of it.
  void Loaded(std::uint64_t id, service::LoadResult result, std::uint64_t checksum);
  // ---- saves ----
  // The slot's bytes are being written behind the pool until the service has heard that they are.
  void Saving(const service::SaveRequest& request);
  void Saved(std::uint64_t id);

  // What a stored slot holds, as the store keeps it, without its bytes.
  sim::Saved Describe(std::uint64_t generation) const;
  state::GroupShape GroupOf(std::uint64_t generation) const;

  // A slot that holds bytes of a block, for faults; none when there is none.
  std::optional<std::uint64_t> AnyStored(std::uint64_t pick) const;
  // One that somebody may be reading.
  std::optional<std::uint64_t> AnyRead(std::uint64_t pick) const;
  std::uint64_t OffsetOf(std::uint64_t generation) const { return slots_.at(generation).offset; }

  // After every step.
  void Check();
  // Now and then: a Manager that died now would leave a next one what this one has.
  void CheckRecovery(std::uint64_t now_ns);
  // Every client has finished and given up all it held; `gone`: no session is open either.
  void CheckQuiet(bool gone);

  std::uint64_t granted() const { return granted_; }
  std::uint64_t claims_by_others() const { return claims_by_others_; }

 private:
  enum class SlotState : std::uint8_t { kReserved, kStored, kGone };
  struct Slot {
    BlockKey key;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t depth = 0;
    std::optional<state::BlockHash> parent{};
    SlotState state = SlotState::kReserved;
    std::uint64_t write = 0;  // 0 while it is not filled
    std::uint64_t checksum = 0;
    std::uint32_t armed = 0;
    std::uint32_t saving = 0;
    std::uint32_t record = 0;  // in the slot table
    bool read() const { return armed + saving > 0; }
    bool doubted = false;  // a reader has reported it, no verdict yet
  };
  struct Session {
    std::optional<service::Registration> registration;
    InstanceId instance{};
    std::uint16_t abi = wire::kAbiMax;
    bool detached = false;
  };
  struct Instance {
    std::uint32_t space = 0;  // 0 before the namespace is formed
    std::uint32_t sessions = 0;
    std::set<std::uint64_t> buried;  // grants that are over
  };
  struct Lease {
    SessionId session;
    InstanceId instance;
    std::pair<std::uint64_t, std::uint64_t> request;
    std::vector<state::BlockHash> hashes;
    std::uint32_t prefix = 0;
    std::vector<std::uint32_t> boundaries;  // that may be taken
    std::uint64_t answered_ns = 0;
    std::uint64_t revoked = 0;  // leases revoked in this life by then
    std::uint64_t doubts = 0;
  };
  struct Grant {
    SessionId beginner;  // none when it has ended
    std::vector<state::BlockHash> hashes;
    std::vector<Place> needs;  // in the order of a plan
    std::uint64_t pins = 0;    // distinct blocks of those
    std::uint32_t space = 0;
    std::map<std::uint32_t, SessionId> ranks;  // open ones; none: waiting
    std::map<std::uint32_t, std::vector<std::uint64_t>> armed;
  };
  struct Reservation {
    SessionId session;
    std::vector<std::uint64_t> generations;  // 0: no slot, or not open any more
  };
  using GrantKey = std::pair<InstanceId, std::uint64_t>;

  // What a look-up asks for, and what may be offered of it.
  struct Demand {
    Demand() = default;
    // single: as Rules has it.
    Demand(const wire::QueryView& query, bool single);
    std::pair<std::uint64_t, std::uint64_t> request{};
    bool leases = false;
    bool whole = false;   // all of it or nothing
    bool one = false;     // and nothing less than all of it may be taken
    bool picked = false;  // the hashes are a choice of blocks, not a part of a prompt
    bool prepared = false;
    bool warm = false;   // nothing is offered
    bool could = false;  // what could be loaded counts, too
    std::pair<std::uint64_t, std::uint64_t> consumer{};
    std::uint32_t prefix = 0;
    std::vector<state::BlockHash> hashes{};
  };
  // The end of a look-up. fresh: it was decided just now.
  struct Offer {
    SessionId session;
    std::uint64_t lease = 0;
    std::uint32_t found = 0;
    std::span<const std::uint32_t> boundaries{};
    wire::MissReason reason{};
    std::uint64_t now_ns = 0;
    bool fresh = false;
    bool stepped = false;  // over several turns: what is not pinned may have gone since it was seen
  };
  struct Ticket {
    std::uint32_t revision = 0;
    bool over = false;
    InstanceId instance{};
    Demand demand{};
  };

  // oracle_queries.cc
  void QueryAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                     std::uint64_t now_ns);
  void Offered(const Offer& offer, Demand demand);
  void CheckOffer(const Offer& offer, const Demand& demand, std::uint32_t space);
  std::vector<std::uint32_t> BoundariesOf(const Offer& offer, const Demand& demand, std::uint32_t space);
  void PollAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                    std::uint64_t now_ns);
  void ClaimAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                     std::uint64_t now_ns);
  void CancelAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer);
  bool NothingTaken() const;
  bool Available(std::uint32_t space, std::uint32_t group, const state::BlockHash& hash) const;
  // oracle_restore.cc
  void BeginAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                     std::uint64_t now_ns);
  bool MayRefuse(const Lease& lease, const Instance& instance, InstanceId id, std::span<const std::uint32_t> ranks,
                 std::uint32_t boundary, std::uint64_t now_ns) const;
  void PlanAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer);
  void Arm(SessionId id, Grant& grant, std::uint32_t rank, std::span<const std::byte> payload);
  void EndAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer);
  void DoubtReported(const Session& session, const SimRequest& request, const std::vector<std::uint64_t>& planned);
  void Disarm(Grant& grant, std::uint32_t rank);
  void EndRank(std::map<GrantKey, Grant>::iterator grant, std::uint32_t rank);
  void EndWaiting(std::map<GrantKey, Grant>::iterator grant);
  void ReleaseAnswered(SessionId id, const SimRequest& request);
  // oracle_publish.cc
  void ReserveAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer);
  Slot& TakeSlot(const BlockKey& key, std::uint64_t offset, std::uint32_t bytes, std::uint64_t generation);
  void CommitAnswered(SessionId id, SimRequest& request, const manager::CommandAnswer& answer);
  void Committed(Reservation* reservation, std::uint32_t index, std::uint64_t generation, std::uint32_t outcome);
  void AbortReservation(std::uint64_t id);
  std::uint32_t RecordOf(std::uint64_t generation) const;
  bool Holds(const wire::SlotRecord& record, const Slot& slot) const;
  // oracle.cc
  void EndHeld(SessionId id);
  void EndTickets(SessionId id);
  std::uint32_t SpaceOf(const service::Registration& registration, const state::Digest& digest);
  bool Present(std::uint32_t space, std::uint32_t group, const state::BlockHash& hash) const;
  bool RankLive(InstanceId instance, std::uint32_t rank) const;
  bool IndexFull() const;
  void TakeOver();
  void CheckSlots();
  void CheckTouched();
  void CheckFigures();
  void CheckBudgets();
  void CheckSessions();
  void Expect(bool ok, const char* what, std::initializer_list<Field> fields = {}) {
    if (!ok) history_.Violation(what, fields);
  }

  const Shape& shape_;
  History& history_;
  ManagerLife* life_ = nullptr;

  struct Space {
    state::Digest digest{};
    std::uint32_t shards = 0;
    Rules rules{};
  };
  std::map<state::Digest, std::uint32_t> spaces_;  // kept over lives
  std::vector<Space> space_of_ = {Space{}};        // by number; 0 is none

  std::map<std::uint64_t, Slot> slots_;            // by generation
  std::map<std::uint64_t, std::uint64_t> placed_;  // offset -> the newest generation there
  std::map<BlockKey, std::uint64_t> present_;      // generation
  std::set<std::uint64_t> pinned_;                 // generations that are armed, being saved or being written
  std::map<SessionId, Session> sessions_;
  std::map<InstanceId, Instance> instances_;
  std::map<std::uint64_t, Lease> leases_;
  std::map<GrantKey, Grant> grants_;
  std::map<std::uint64_t, Reservation> reservations_;
  std::map<std::uint64_t, std::uint64_t> loads_;  // generation
  std::map<std::uint64_t, std::uint64_t> saves_;  // generation
  std::set<std::uint64_t> leased_;                // every lease's id
  std::map<std::pair<SessionId, std::uint64_t>, Ticket> tickets_;
  std::uint64_t doubts_ = 0;                       // reports of mismatches in this life
  std::map<std::uint64_t, std::uint64_t> writes_;  // by checksum, of all lives
  // What the life before served when it died.
  std::vector<std::pair<std::uint32_t, state::BlockHash>> served_;
  std::uint64_t granted_ = 0;
  std::uint64_t claims_by_others_ = 0;  // in this life
};

}  // namespace orbitkv::sim
