// Look-ups from their submit to their one answer: those answered at once, and tickets, which wait for loading.
//
// A look-up scans what is resident. When that settles it, the answer is given with the submit. Otherwise, if the source
// has more, and reading it takes less time than the engine needs to compute it (where the engine says how long that
// is), it becomes a ticket and waits in line, first come first served, until permits for bytes in flight are free; it
// holds no pins while it waits, so a crowd of them does not keep the pool from changing. The ticket at the head of the
// line scans again, begins the loads of what is missing, block by block as permits come free, then waits for them
// beside the line. When they have ended, or the wait that the client allows is over, it scans what came and is ready.
//
// What a ready ticket has found stays pinned until it is told (then it is a lease), revoked under pressure (oldest
// first, after all leases), cancelled, or its life is over. Loads belong to nobody: they end as they end.
//
// Owns: look-ups that run, tickets, warm-ups and the memory of ended tickets; the found pins of all of them. A Session
//       outlives what it has here: EndSession comes before it goes.
// Threads: one. Blocks: no. Units: nanoseconds, hash blocks.
// Limits: one call of Start, Continue or Work looks at no more than Limits::step_hashes hashes.
// Errors: as service.h says of each call; a refusal changes nothing and costs no more for a longer query.
// Invariants: operations of a session rise; a result is told once; `serial` names one revision for good.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/demand.h"
#include "orbitkv/service/leases.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/loads.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/scan.h"
#include "orbitkv/service/source_scan.h"
#include "orbitkv/service/types.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::service {

class Operations final : public cache::LeaseRevoker {
 public:
  struct Parts {
    cache::BlockCache& cache;
    Leases& leases;
    Loads& loads;
    Lookups& lookups;
    Counters& counters;
  };
  Operations(const Limits& limits, const Parts& parts)
      : limits_(limits),
        cache_(parts.cache),
        leases_(parts.leases),
        loads_(parts.loads),
        lookups_(parts.lookups),
        counters_(parts.counters) {}

  // Sessions are registered.
  Result<QueryOutcome> Start(Session& session, const wire::QueryView& query, Ticket ticket, std::uint64_t now_ns);
  Result<QueryOutcome> Continue(Session& session, std::uint64_t now_ns);
  bool Running(const Session& session) const { return running_.contains(session.id); }
  void CancelRunning(Session& session);

  void Poll(Session& session, std::span<const wire::PollRequest> requests, std::uint64_t now_ns,
            std::vector<wire::PollEntry>& entries, std::vector<std::uint32_t>& boundaries);
  Result<QueryOutcome> Claim(Session& session, const wire::ClaimRequest& claim, std::uint64_t now_ns);
  Status Cancel(Session& session, Ticket ticket);
  void EndSession(Session& session);

  // A share of what is waiting to be done; whether there is more.
  bool Work(std::uint64_t now_ns);
  bool HasWork() const;
  void LoadDone(std::uint64_t id, LoadResult result, std::uint64_t checksum, std::uint64_t now_ns);
  // Sessions of which tickets became ready or ended since the last call, each once.
  std::vector<SessionId> TakeCompleted();

  bool RevokeOne() override;
  void Tick(std::uint64_t now_ns);
  std::optional<std::uint64_t> NextDeadline() const;
  void Export(Gauges& gauges) const;

 private:
  enum class Phase : std::uint8_t {
    kRunning,    // stepped by its submit: looks at what is resident
    kLocating,   // stepped by its submit: looks at what the source has
    kQueued,     // in line, without pins
    kScanning,   // at the head of the line
    kIssuing,    // at the head of the line: begins loads
    kLoading,    // waits for its loads
    kFinishing,  // scans what came
    kReady,
    kRevoked,  // was ready; its pins were needed
  };
  struct ConsumerKey {
    InstanceId instance;
    std::uint64_t hi = 0;
    std::uint64_t lo = 0;
    auto operator<=>(const ConsumerKey&) const = default;
  };
  struct Operation {
    Operation(Session& submitter, const wire::QueryView& query);

    std::uint64_t serial = 0;  // 0 until it is kept
    SessionId owner;           // who submitted it
    Session* session;          // who pays for its pins and hashes; null once it is answered
    Ticket ticket;
    RequestKey request;
    ConsumerKey consumer;
    std::uint32_t attempt;
    std::uint32_t group;
    wire::QueryMode mode;
    Phase phase = Phase::kRunning;
    Scan scan;
    std::optional<SourceScan> behind;    // what the source adds; where that is more than a run of blocks
    std::optional<Demand> demand;        // with several groups, what is to be loaded or held until the end
    std::vector<cache::BlockRef> early;  // blocks that are held before the scan got to them, pinned
    std::uint32_t cursor = 0;            // the next hash to locate, the next block of the demand or hash to load
    std::uint32_t resident = 0;          // blocks that the submit found
    bool worth_loading = false;
    bool tells_tiers = false;
    std::uint64_t compute_ns = 0;   // that the engine needs for a hash block; 0: not known
    std::uint64_t line_bytes = 0;   // its part of line_bytes_
    std::uint32_t outstanding = 0;  // loads it waits for
    std::uint64_t submitted_ns = 0;
    std::uint64_t wait_ns = 0;
    std::uint64_t timer_ns = 0;  // its entry in timers_; 0: none
    bool late = false;           // the wait ended first
    bool recompute = false;      // loading would take longer than computing
  };
  using TicketKey = std::pair<SessionId, std::uint64_t>;

  // operations.cc
  Status CheckTicket(const Session& session, const wire::QueryView& query, Ticket ticket, Operation*& replaced);
  QueryOutcome Step(Operation& operation, std::uint64_t now_ns);
  QueryOutcome Settle(Operation& operation, std::uint64_t now_ns);
  QueryOutcome Discover(Operation& operation);
  QueryOutcome WarmUp(Operation& operation, std::uint64_t now_ns);
  QueryOutcome Answer(Operation& operation, std::uint64_t now_ns);
  QueryOutcome Keep(Operation&& operation, std::uint64_t now_ns);
  bool Locates(const Operation& operation) const;
  bool WorthLoading(Operation& operation, std::uint64_t now_ns);
  bool LoadsInTime(Operation& operation, std::uint64_t now_ns);
  std::uint32_t ReasonOf(const Operation& operation) const;
  wire::MissReason WhyAbsent(const Scan& scan) const;
  void GiveAll(Operation& operation);
  void CloseAccounts(Operation& operation);

  // tickets.cc
  Operation* Find(const Session& session, std::uint64_t operation);
  void Poll(Session& session, const wire::PollRequest& request, wire::PollEntry& entry,
            std::vector<std::uint32_t>& boundaries, std::uint64_t now_ns);
  bool WorkOn(Operation& operation, std::uint32_t& budget, std::uint64_t now_ns);
  bool Issue(Operation& operation, std::uint32_t& budget, std::uint64_t now_ns);
  // What the operation's cursor stands at; how many there are.
  Loads::Piece PieceOf(const Operation& operation) const;
  std::uint32_t PieceCount(const Operation& operation) const;
  Loads::Start BeginLoad(Operation& operation, std::uint64_t now_ns);
  // Keeps the group of the block, which is here, until the operation's last scan.
  bool HoldEarly(Operation& operation, const state::BlockHash& hash, std::uint32_t group);
  void StandInLine(Operation& operation);
  void LeaveLine(Operation& operation);
  void Finish(Operation& operation);
  void MakeReady(Operation& operation);
  void SetTimer(Operation& operation);
  // Ends a ticket that its owner has not been told about: it will be.
  void End(Operation& operation, wire::TicketState state);
  void Bury(const Operation& operation, wire::TicketState state);
  void Remove(std::uint64_t serial);

  const Limits& limits_;
  cache::BlockCache& cache_;
  Leases& leases_;
  Loads& loads_;
  Lookups& lookups_;
  Counters& counters_;

  std::map<SessionId, Operation> running_;
  std::map<std::uint64_t, Operation> kept_;  // tickets and warm-ups by serial
  std::map<TicketKey, std::uint64_t> tickets_;
  std::map<ConsumerKey, std::uint64_t> consumers_;
  std::deque<std::uint64_t> line_;       // kQueued, kScanning, kIssuing: the head works
  std::deque<std::uint64_t> finishing_;  // serials of tickets that were removed meanwhile mean nothing
  std::deque<std::uint64_t> warm_;
  std::set<std::uint64_t> ready_;                                            // oldest first
  std::set<std::pair<std::uint64_t, std::uint64_t>> timers_;                 // time, serial
  std::map<TicketKey, std::pair<std::uint32_t, wire::TicketState>> buried_;  // revision and how it ended
  std::deque<TicketKey> graves_;                                             // oldest first
  std::set<SessionId> completed_;
  std::uint64_t next_serial_ = 1;
  std::uint64_t line_bytes_ = 0;  // about what those in line will read
  bool blocked_ = false;          // no permit for the head of the line
  bool warm_blocked_ = false;     // none for the first warm-up
  bool revoking_ = true;          // false while a warm-up takes room: it is not worth a lease
};

}  // namespace orbitkv::service
