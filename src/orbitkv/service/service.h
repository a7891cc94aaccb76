// What the Manager decides: who belongs to which engine, which blocks an engine is promised, which slots it may write.
//
// An instance is one engine; its sessions register, and once all its ranks have, the instance has a namespace. A query
// pins what it found as a lease of its request; a begin turns the lease into a grant, whose pin for a rank becomes
// unconditional when that rank fetches its plan (it is armed: the rank may be copying). A reservation owns the slots
// that a session is writing until it commits or aborts them.
//
// Owns: everything it knows about sessions; of the BlockCache it holds pins and reserved slots only.
// Threads: one (the dispatcher). Never blocks, makes no system call: time comes in as now_ns and never runs backwards.
// Units: nanoseconds, bytes; blocks are counted from the prefix that a query names.
// Limits: one call looks at no more than Limits::step_hashes hashes; the caller goes on with Continue... in its next
//         turn of the same session, and starts nothing else of that session in between (kBusy).
// Errors: kNotFound for a session that is not open or a lease that is gone, kRefused for what the session may not do,
//         kInvalid for arguments that no registration allows, kBusy for a bound that is reached. After an error nothing
//         has changed but counters, except where the call says otherwise.
// Invariants: pins and reserved slots in the cache are exactly those of look-ups, leases, grants, reservations, loads,
//             saves and verifications here; an armed pin and a reserved slot end only by their session's word, drain or
//             death, never by time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/source.h"
#include "orbitkv/service/types.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/namespace_table.h"

namespace orbitkv::cache {
class BlockCache;
struct HeldSlot;
}  // namespace orbitkv::cache

namespace orbitkv::service {

class Service {
 public:
  // The cache must outlive the Service. limits must be valid. Blocks that the cache already holds stay unknown to it
  // until a registration names their namespace.
  Service(const Limits& limits, cache::BlockCache& cache);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // ---- sessions -----------------------------------------------------------------------------------------------------
  // Ids are never reused. kBusy at max_sessions, where detached ones count only beyond as many again; kInvalid for an
  // id or token that is open already.
  // list_row: the row in which its slots are listed for a later Manager, opened by the caller; the Service closes it.
  Status OpenSession(SessionId session, Purpose purpose, std::uint64_t token,
                     std::optional<std::uint32_t> list_row = std::nullopt);
  // The connection is gone, but the process may live and copy: leases end, grants and reserved slots stay. The session
  // takes no further calls. Idempotent.
  void DetachSession(SessionId session, std::uint64_t now_ns);
  // The process is proven dead, or everything it copied has drained: all that the session holds ends. Idempotent.
  void EndSession(SessionId session, std::uint64_t now_ns);
  // Nobody of the session touches a slot: it may be ended although its process lives. True when it is not open.
  bool HoldsNothing(SessionId session) const;
  // EndSession for the session of this token; which one, so that the caller can close its channel.
  std::optional<SessionId> DrainSession(std::uint64_t token, std::uint64_t now_ns);

  RegisterOutcome Register(SessionId session, const Registration& registration, std::uint64_t now_ns);
  // Ends all that the session holds but leaves it open and unregistered. Idempotent.
  Status Unregister(SessionId session, std::uint64_t now_ns);

  // ---- queries ------------------------------------------------------------------------------------------------------
  // A request (of the instance) has one lease: an answer replaces the one before. A query that cannot be admitted is
  // kBusy and leaves the earlier lease alone. kStale for a ticket whose operation is over or whose revision is not
  // newer than the live one; kRefused for a revision of another request, group or mode.
  Result<QueryOutcome> StartQuery(SessionId session, const wire::QueryView& query, std::uint64_t now_ns,
                                  Ticket ticket = {});
  Result<QueryOutcome> ContinueQuery(SessionId session, std::uint64_t now_ns);
  // entries gets one entry per request, boundaries those of all that are ready, one behind the other. What is told to
  // be over is forgotten.
  Status PollQueries(SessionId session, std::span<const wire::PollRequest> requests, std::uint64_t now_ns,
                     std::vector<wire::PollEntry>& entries, std::vector<std::uint32_t>& boundaries);
  // Takes over what was prepared for a consumer of the session's instance. kBusy: there is no such preparation (any
  // more); kStale: another revision is the live one, and it stays.
  Result<QueryOutcome> ClaimQuery(SessionId session, const wire::ClaimRequest& claim, std::uint64_t now_ns);
  // kStale for another revision than the live one, which goes on; kNotFound when no such operation is open.
  Status CancelQuery(SessionId session, Ticket ticket, std::uint64_t now_ns);
  // Gives up whatever has `more`: slots reserved and blocks pinned so far are freed, what is committed stays.
  // Idempotent.
  void CancelStep(SessionId session, std::uint64_t now_ns);

  // ---- restore ------------------------------------------------------------------------------------------------------
  // Pins the first boundary_blocks of the lease for each rank and ends the lease. kNotFound: the lease is forgotten, or
  // expired and no longer all here. After any error but kInvalid and a taken grant id, the grant id is gone.
  Result<BeginProgress> StartBegin(SessionId session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                                   std::uint64_t now_ns);
  Result<BeginProgress> ContinueBegin(SessionId session, std::uint64_t now_ns);
  // All steps at once.
  Status RestoreBegin(SessionId session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                      std::uint64_t now_ns);
  // out is cleared first and filled when kArmed. The same session may ask again. The last step arms the rank.
  Result<PlanProgress> StartPlan(SessionId session, GrantId grant, Rank rank, std::uint64_t now_ns,
                                 std::vector<wire::PlanEntry>& out);
  Result<PlanProgress> ContinuePlan(SessionId session, std::uint64_t now_ns, std::vector<wire::PlanEntry>& out);
  Result<PlanStatus> RestorePlan(SessionId session, GrantId grant, Rank rank, std::uint64_t now_ns,
                                 std::vector<wire::PlanEntry>& out);
  // Ends the rank's pin. Idempotent: a grant or rank that is not armed (any more) is no error. mismatches name blocks
  // as the plan did; one whose slot holds something else by now is no reason to doubt that.
  Status RestoreEnd(SessionId session, GrantId grant, Rank rank, wire::EndResult result,
                    std::span<const wire::EndEntry> mismatches, std::uint64_t now_ns);
  // Idempotent. A lease ends; of a grant the pins that are not armed end.
  Status Release(SessionId session, wire::ReleaseKind kind, std::uint64_t id, std::uint64_t now_ns);

  // ---- publish ------------------------------------------------------------------------------------------------------
  // Start clears out; both append one entry per block that they looked at.
  Result<ReserveOutcome> StartReserve(SessionId session, const wire::ReserveView& reserve, std::uint64_t now_ns,
                                      std::vector<wire::ReserveEntry>& out);
  Result<ReserveOutcome> ContinueReserve(SessionId session, std::uint64_t now_ns, std::vector<wire::ReserveEntry>& out);
  // Start clears outcomes; both append a wire::CommitOutcome per entry that they looked at, and the last step says how
  // many were stored. The reservation ends with its last slot. A reservation that this session does not have gives
  // kLost for each entry. A commit that is given up keeps what it has stored; the slots of the rest stay reserved.
  Result<CommitProgress> StartCommit(SessionId session, ReservationId reservation, const wire::CommitView& commit,
                                     std::uint64_t now_ns, std::vector<std::uint32_t>& outcomes);
  Result<CommitProgress> ContinueCommit(SessionId session, std::uint64_t now_ns, std::vector<std::uint32_t>& outcomes);
  // All steps at once.
  Result<std::uint32_t> PublishCommit(SessionId session, ReservationId reservation, const wire::CommitView& commit,
                                      std::uint64_t now_ns, std::vector<std::uint32_t>& outcomes);
  // Frees the slots that are not committed. Idempotent.
  Status PublishAbort(SessionId session, ReservationId reservation, std::uint64_t now_ns);

  // ---- loading ------------------------------------------------------------------------------------------------------
  // None by default: what is not resident is a miss. The source outlives the Service.
  void SetSource(const Source* source);
  // A share of the work that waits behind tickets, at most Limits::step_hashes hashes; whether there is more of it.
  // Call it after LoadDone and between the turns of sessions.
  bool Work(std::uint64_t now_ns);
  bool HasWork() const;
  // Reads to carry out. Each is reported once, whatever happens to the look-up; an id that is not open is ignored.
  std::vector<LoadRequest> TakeLoads();
  // checksum: of the slot's content, as it was read.
  void LoadDone(std::uint64_t id, LoadResult result, std::uint64_t checksum, std::uint64_t now_ns);
  // Saves to carry out. Each is reported once; an id that is not open is ignored.
  std::vector<SaveRequest> TakeSaves();
  void SaveDone(std::uint64_t id, SaveResult result, std::uint64_t now_ns);
  // Goes over the pool for what the source has lost, with Tick.
  bool resaving() const;
  // Sessions that have tickets to poll for, each once.
  std::vector<SessionId> TakeCompleted();

  // ---- earlier lives ------------------------------------------------------------------------------------------------
  // Where this life is kept for a later Manager: before any session. Both outlive the Service; null for nowhere.
  void SetTables(wire::TableMemory* namespaces, pool::SessionLists* lists);
  // A namespace of an earlier life; nothing is kept of it when it is refused. Before the cache adopts blocks.
  Status AdoptNamespace(NamespaceRow row, const wire::NamespaceRecord& record);
  // Sessions of earlier lives whose processes may still be touching slots, and what the cache holds for that.
  void AdoptSessions(std::vector<pool::SessionLists::Earlier> sessions, std::span<const cache::HeldSlot> held,
                     std::uint64_t now_ns);
  // The process of that row is gone. False when the row belongs to no earlier session (any more).
  bool EndEarlierSession(std::uint32_t row);
  // It says that nothing of it moves any more; the row, which is free now.
  std::optional<std::uint32_t> DrainEarlierSession(const Incarnation& incarnation, std::uint64_t token);
  // Rows that have become free, each once.
  std::vector<std::uint32_t> TakeEndedEarlierSessions();
  std::vector<EarlierSessionStatus> earlier_sessions() const;  // by row

  // ---- verification of slots ----------------------------------------------------------------------------------------
  std::vector<VerifyRequest> TakeVerifyRequests();
  // Checks what was taken over from an earlier life (generations below that one), once, a step per call: the bytes that
  // the step asks to be hashed.
  void BeginScrub(std::uint64_t below_generation);
  bool scrubbing() const;
  std::uint64_t Scrub(std::uint64_t now_ns);
  // A verdict on a request that is no longer open is ignored.
  void VerifyDone(std::uint64_t request_id, bool equal, std::uint64_t now_ns);

  // ---- time and figures ---------------------------------------------------------------------------------------------
  void Tick(std::uint64_t now_ns);
  std::optional<std::uint64_t> NextDeadline() const;

  const Counters& counters() const;
  Gauges gauges() const;
  const Limits& limits() const;
  std::vector<SessionStatus> sessions() const;    // by id
  std::vector<InstanceStatus> instances() const;  // by id

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace orbitkv::service
