#include "orbitkv/service/service.h"

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/earlier_sessions.h"
#include "orbitkv/service/grants.h"
#include "orbitkv/service/leases.h"
#include "orbitkv/service/loads.h"
#include "orbitkv/service/operations.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/resaves.h"
#include "orbitkv/service/reservations.h"
#include "orbitkv/service/saves.h"
#include "orbitkv/service/scrub.h"
#include "orbitkv/service/verifications.h"

namespace orbitkv::service {

struct Service::Parts {
  Parts(const Limits& service_limits, cache::BlockCache& block_cache)
      : limits(service_limits),
        cache(block_cache),
        registry(limits,
                 [this](NamespaceRow row) {
                   return !loads.Uses(row) && !saves.Uses(row) && cache.ForgetNamespace(row).has_value();
                 }),
        leases(limits, cache, lookups, counters),
        loads(limits, cache, counters),
        operations(limits, {cache, leases, loads, lookups, counters}),
        saves(limits, cache, counters),
        resaves(limits, {cache, registry, saves, counters}),
        verifications(limits, cache, counters),
        grants(limits, {cache, leases, saves, verifications, counters}),
        reservations(limits, cache, saves, counters),
        earlier(cache),
        scrub(cache, registry, verifications) {}

  const Limits limits;
  cache::BlockCache& cache;
  Counters counters;
  Registry registry;
  Lookups lookups;
  Leases leases;
  Loads loads;
  Operations operations;
  Saves saves;
  Resaves resaves;
  Verifications verifications;
  Grants grants;
  Reservations reservations;
  EarlierSessions earlier;
  service::Scrub scrub;
  pool::SessionLists* lists = nullptr;
  std::uint64_t now_ns = 0;

  // Later parts subtract times: a clock that seems to run backwards stands still here.
  std::uint64_t At(std::uint64_t time_ns) { return now_ns = std::max(now_ns, time_ns); }

  // The session, attached and registered.
  Result<Session*> Registered(SessionId session) {
    Session* found = registry.Find(session);
    if (found == nullptr || found->detached) return Fail(Code::kNotFound, "the session is not open", session.value());
    if (found->instance == nullptr) return Fail(Code::kRefused, "the session has not registered", session.value());
    return found;
  }
  // The same with nothing of it running.
  Result<Session*> Idle(SessionId session) {
    ORBITKV_ASSIGN_OR_RETURN(Session * found, Registered(session));
    if (operations.Running(*found) || reservations.Running(*found) || reservations.Committing(*found) ||
        grants.Running(*found)) {
      return Fail(Code::kBusy, "the session has a call that is not finished", session.value());
    }
    return found;
  }

  void EndAll(Session& session) {
    if (session.instance == nullptr) return;
    operations.EndSession(session);
    grants.EndSession(session);
    reservations.EndSession(session);
  }
  static void Describe(const state::RecoveryContract& contract, std::vector<cache::ComponentSpec>& components,
                       std::vector<cache::GroupSpec>& groups) {
    for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
      groups.push_back({.ratio = contract.ratio(group), .dense = contract.IsDense(group)});
      for (std::uint32_t shard = 0; shard < contract.shard_count(); ++shard) {
        components.push_back({.group = group, .shard = shard, .slot_bytes = contract.rule(group).block_bytes});
      }
    }
  }
  // Why blocks of this worker can never be in the pool. A contract that does not compile is the registry's matter.
  Status CheckFit(const Registration& registration) const {
    if (registration.role == Role::kScheduler) return {};
    const auto contract = ContractOf(registration.groups, registration.shard_count);
    if (!contract) return {};
    std::vector<cache::ComponentSpec> components;
    std::vector<cache::GroupSpec> groups;
    Describe(*contract, components, groups);
    return cache.CheckNamespace(components, groups);
  }
  void Add(const Namespace& space) {
    std::vector<cache::ComponentSpec> components;
    std::vector<cache::GroupSpec> groups;
    Describe(space.contract, components, groups);
    ORBITKV_CHECK(cache.AddNamespace(space.row, components, groups).has_value());
  }
  void Forget(std::optional<InstanceId> instance) {
    if (!instance) return;
    grants.ForgetInstance(*instance);
    lookups.Forget(*instance);
    reservations.ForgetInstance(*instance);
  }
};

Service::Service(const Limits& limits, cache::BlockCache& cache) : parts_(std::make_unique<Parts>(limits, cache)) {
  ORBITKV_CHECK(limits.Validate().has_value());
  cache.SetLeaseRevoker(&parts_->operations);
}

Service::~Service() { parts_->cache.SetLeaseRevoker(nullptr); }

// ---- sessions -------------------------------------------------------------------------------------------------------

Status Service::OpenSession(SessionId session, Purpose purpose, std::uint64_t token,
                            std::optional<std::uint32_t> list_row) {
  ORBITKV_TRY(parts_->registry.Open(session, purpose, token));
  if (list_row && parts_->lists != nullptr) {
    Session* const opened = parts_->registry.Find(session);
    opened->lists = parts_->lists;
    opened->list_row = *list_row;
  }
  ++parts_->counters.sessions_opened;
  return {};
}

void Service::DetachSession(SessionId session, std::uint64_t now_ns) {
  parts_->At(now_ns);
  Session* found = parts_->registry.Find(session);
  if (found == nullptr || found->detached) return;
  if (found->instance != nullptr) {
    parts_->operations.EndSession(*found);
    // Their answers never reached the session, so nobody reads or writes those slots.
    parts_->grants.CancelRunning(*found);
    parts_->reservations.CancelRunning(*found);
  }
  parts_->registry.Detach(*found);
}

void Service::EndSession(SessionId session, std::uint64_t now_ns) {
  parts_->At(now_ns);
  Session* found = parts_->registry.Find(session);
  if (found == nullptr) return;
  parts_->EndAll(*found);
  if (found->lists != nullptr) found->lists->Close(found->list_row);
  parts_->Forget(parts_->registry.Close(session));
}

bool Service::HoldsNothing(SessionId session) const {
  const Session* found = parts_->registry.Find(session);
  return found == nullptr || (found->armed_ranks == 0 && found->reserved_bytes == 0);
}

std::optional<SessionId> Service::DrainSession(std::uint64_t token, std::uint64_t now_ns) {
  const Session* found = parts_->registry.FindToken(token);
  if (found == nullptr) return std::nullopt;
  const SessionId session = found->id;
  EndSession(session, now_ns);
  return session;
}

RegisterOutcome Service::Register(SessionId session, const Registration& registration, std::uint64_t now_ns) {
  parts_->At(now_ns);
  Session* found = parts_->registry.Find(session);
  if (found == nullptr || found->detached) {
    return RegisterOutcome{.refused = Code::kNotFound, .text = "the session is not open"};
  }
  const Namespace* formed = nullptr;
  RegisterOutcome outcome;
  if (const Status fits = parts_->CheckFit(registration); !fits) {
    outcome = RegisterOutcome{.refused = fits.error().code, .text = ToString(fits.error())};
  } else {
    outcome = parts_->registry.Register(*found, registration, formed);
  }
  ++(outcome.refused ? parts_->counters.registrations_refused : parts_->counters.registrations);
  if (formed != nullptr) parts_->Add(*formed);
  return outcome;
}

Status Service::Unregister(SessionId session, std::uint64_t now_ns) {
  parts_->At(now_ns);
  Session* found = parts_->registry.Find(session);
  if (found == nullptr || found->detached) return Fail(Code::kNotFound, "the session is not open", session.value());
  parts_->EndAll(*found);
  parts_->Forget(parts_->registry.Unregister(*found));
  return {};
}

// ---- queries --------------------------------------------------------------------------------------------------------

Result<QueryOutcome> Service::StartQuery(SessionId session, const wire::QueryView& query, std::uint64_t now_ns,
                                         Ticket ticket) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Idle(session));
  return parts_->operations.Start(*found, query, ticket, parts_->At(now_ns));
}

Result<QueryOutcome> Service::ContinueQuery(SessionId session, std::uint64_t now_ns) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->operations.Continue(*found, parts_->At(now_ns));
}

Status Service::PollQueries(SessionId session, std::span<const wire::PollRequest> requests, std::uint64_t now_ns,
                            std::vector<wire::PollEntry>& entries, std::vector<std::uint32_t>& boundaries) {
  entries.clear();
  boundaries.clear();
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  parts_->operations.Poll(*found, requests, parts_->At(now_ns), entries, boundaries);
  return {};
}

Result<QueryOutcome> Service::ClaimQuery(SessionId session, const wire::ClaimRequest& claim, std::uint64_t now_ns) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->operations.Claim(*found, claim, parts_->At(now_ns));
}

Status Service::CancelQuery(SessionId session, Ticket ticket, std::uint64_t now_ns) {
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->operations.Cancel(*found, ticket);
}

void Service::CancelStep(SessionId session, std::uint64_t now_ns) {
  parts_->At(now_ns);
  Session* found = parts_->registry.Find(session);
  if (found == nullptr || found->instance == nullptr) return;
  parts_->operations.CancelRunning(*found);
  parts_->grants.CancelRunning(*found);
  parts_->reservations.CancelRunning(*found);
}

// ---- restore --------------------------------------------------------------------------------------------------------

Result<BeginProgress> Service::StartBegin(SessionId session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                                          std::uint64_t now_ns) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Idle(session));
  return parts_->grants.Begin(*found, lease, begin, grant, parts_->At(now_ns));
}

Result<BeginProgress> Service::ContinueBegin(SessionId session, std::uint64_t now_ns) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->grants.ContinueBegin(*found, parts_->At(now_ns));
}

Status Service::RestoreBegin(SessionId session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                             std::uint64_t now_ns) {
  Result<BeginProgress> progress = StartBegin(session, lease, begin, grant, now_ns);
  while (progress && progress->more) progress = ContinueBegin(session, now_ns);
  if (!progress) return std::unexpected(progress.error());
  return {};
}

Result<PlanProgress> Service::StartPlan(SessionId session, GrantId grant, Rank rank, std::uint64_t now_ns,
                                        std::vector<wire::PlanEntry>& out) {
  out.clear();
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Idle(session));
  return parts_->grants.Plan(*found, grant, rank, out);
}

Result<PlanProgress> Service::ContinuePlan(SessionId session, std::uint64_t now_ns, std::vector<wire::PlanEntry>& out) {
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->grants.ContinuePlan(*found, out);
}

Result<PlanStatus> Service::RestorePlan(SessionId session, GrantId grant, Rank rank, std::uint64_t now_ns,
                                        std::vector<wire::PlanEntry>& out) {
  Result<PlanProgress> progress = StartPlan(session, grant, rank, now_ns, out);
  while (progress && progress->more) progress = ContinuePlan(session, now_ns, out);
  if (!progress) return std::unexpected(progress.error());
  return progress->status;
}

Status Service::RestoreEnd(SessionId session, GrantId grant, Rank rank, wire::EndResult result,
                           std::span<const wire::EndEntry> mismatches, std::uint64_t now_ns) {
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->grants.EndRank(*found, grant, rank, result, mismatches);
}

Status Service::Release(SessionId session, wire::ReleaseKind kind, std::uint64_t id, std::uint64_t now_ns) {
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  switch (kind) {
    case wire::ReleaseKind::kLease:
      if (parts_->leases.Find(*found->instance, LeaseId(id)) != nullptr) parts_->leases.End(LeaseId(id), 0);
      return {};
    case wire::ReleaseKind::kGrant: parts_->grants.Release(*found, GrantId(id)); return {};
  }
  return Fail(Code::kInvalid, "unknown kind of release", static_cast<std::uint64_t>(kind));
}

// ---- publish --------------------------------------------------------------------------------------------------------

Result<ReserveOutcome> Service::StartReserve(SessionId session, const wire::ReserveView& reserve, std::uint64_t now_ns,
                                             std::vector<wire::ReserveEntry>& out) {
  out.clear();
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Idle(session));
  return parts_->reservations.Start(*found, reserve, parts_->At(now_ns), out);
}

Result<ReserveOutcome> Service::ContinueReserve(SessionId session, std::uint64_t now_ns,
                                                std::vector<wire::ReserveEntry>& out) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->reservations.Continue(*found, parts_->At(now_ns), out);
}

Result<CommitProgress> Service::StartCommit(SessionId session, ReservationId reservation,
                                            const wire::CommitView& commit, std::uint64_t now_ns,
                                            std::vector<std::uint32_t>& outcomes) {
  outcomes.clear();
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Idle(session));
  return parts_->reservations.Commit(*found, reservation, commit, parts_->At(now_ns), outcomes);
}

Result<CommitProgress> Service::ContinueCommit(SessionId session, std::uint64_t now_ns,
                                               std::vector<std::uint32_t>& outcomes) {
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  return parts_->reservations.ContinueCommit(*found, parts_->At(now_ns), outcomes);
}

Result<std::uint32_t> Service::PublishCommit(SessionId session, ReservationId reservation,
                                             const wire::CommitView& commit, std::uint64_t now_ns,
                                             std::vector<std::uint32_t>& outcomes) {
  Result<CommitProgress> progress = StartCommit(session, reservation, commit, now_ns, outcomes);
  while (progress && progress->more) progress = ContinueCommit(session, now_ns, outcomes);
  if (!progress) return std::unexpected(progress.error());
  return progress->stored;
}

Status Service::PublishAbort(SessionId session, ReservationId reservation, std::uint64_t now_ns) {
  parts_->At(now_ns);
  ORBITKV_ASSIGN_OR_RETURN(Session * found, parts_->Registered(session));
  parts_->reservations.Abort(*found, reservation);
  return {};
}

// ---- loading --------------------------------------------------------------------------------------------------------

void Service::SetSource(const Source* source) {
  parts_->loads.SetSource(source);
  parts_->saves.SetSource(source);
  parts_->resaves.SetSource(source);
}

bool Service::Work(std::uint64_t now_ns) {
  parts_->operations.Work(parts_->At(now_ns));
  parts_->lookups.Work(parts_->limits.step_hashes);
  parts_->saves.Work();
  return HasWork();
}

bool Service::HasWork() const {
  return parts_->operations.HasWork() || parts_->lookups.HasWork() || parts_->saves.HasWork();
}

std::vector<LoadRequest> Service::TakeLoads() { return parts_->loads.Take(); }

void Service::LoadDone(std::uint64_t id, LoadResult result, std::uint64_t checksum, std::uint64_t now_ns) {
  parts_->operations.LoadDone(id, result, checksum, parts_->At(now_ns));
  parts_->resaves.Note(parts_->now_ns);
}

std::vector<SaveRequest> Service::TakeSaves() { return parts_->saves.Take(); }

void Service::SaveDone(std::uint64_t id, SaveResult result, std::uint64_t now_ns) {
  parts_->At(now_ns);
  parts_->saves.Done(id, result);
  parts_->resaves.Note(parts_->now_ns);
}

bool Service::resaving() const { return parts_->resaves.busy(); }

std::vector<SessionId> Service::TakeCompleted() { return parts_->operations.TakeCompleted(); }

// ---- earlier lives --------------------------------------------------------------------------------------------------

void Service::SetTables(wire::TableMemory* namespaces, pool::SessionLists* lists) {
  parts_->registry.SetTable(namespaces);
  parts_->earlier.SetLists(lists);
  parts_->lists = lists;
}

Status Service::AdoptNamespace(NamespaceRow row, const wire::NamespaceRecord& record) {
  ORBITKV_ASSIGN_OR_RETURN(const Namespace* const space, parts_->registry.Adopt(row, record));
  std::vector<cache::ComponentSpec> components;
  std::vector<cache::GroupSpec> groups;
  Parts::Describe(space->contract, components, groups);
  const Status added = parts_->cache.AddNamespace(row, components, groups);
  if (!added) parts_->registry.Disown(*space);
  return added;
}

void Service::AdoptSessions(std::vector<pool::SessionLists::Earlier> sessions, std::span<const cache::HeldSlot> held,
                            std::uint64_t now_ns) {
  parts_->earlier.Adopt(std::move(sessions), held, parts_->At(now_ns));
}

bool Service::EndEarlierSession(std::uint32_t row) { return parts_->earlier.End(row); }

std::optional<std::uint32_t> Service::DrainEarlierSession(const Incarnation& incarnation, std::uint64_t token) {
  return parts_->earlier.Drain(incarnation, token);
}

std::vector<std::uint32_t> Service::TakeEndedEarlierSessions() { return parts_->earlier.TakeEnded(); }

std::vector<EarlierSessionStatus> Service::earlier_sessions() const { return parts_->earlier.statuses(); }

// ---- verification of slots ------------------------------------------------------------------------------------------

std::vector<VerifyRequest> Service::TakeVerifyRequests() { return parts_->verifications.Take(); }

void Service::BeginScrub(std::uint64_t below_generation) { parts_->scrub.Begin(below_generation); }

bool Service::scrubbing() const { return parts_->scrub.running(); }

std::uint64_t Service::Scrub(std::uint64_t now_ns) {
  parts_->At(now_ns);
  return parts_->scrub.Step();
}

void Service::VerifyDone(std::uint64_t request_id, bool equal, std::uint64_t now_ns) {
  parts_->At(now_ns);
  const std::optional<SessionId> blamed = parts_->verifications.Done(request_id, equal);
  Session* session = blamed ? parts_->registry.Find(*blamed) : nullptr;
  if (session != nullptr) ++session->false_alarms;
}

// ---- time and figures -----------------------------------------------------------------------------------------------

void Service::Tick(std::uint64_t now_ns) {
  parts_->leases.Tick(parts_->At(now_ns));
  parts_->operations.Tick(parts_->now_ns);
  parts_->reservations.Tick(parts_->now_ns);
  parts_->cache.Tick(parts_->now_ns);
  parts_->earlier.Tick(parts_->now_ns);
  parts_->resaves.Tick(parts_->now_ns);
}

std::optional<std::uint64_t> Service::NextDeadline() const {
  std::optional<std::uint64_t> first;
  for (const std::optional<std::uint64_t> one :
       {parts_->leases.NextDeadline(), parts_->operations.NextDeadline(), parts_->reservations.NextDeadline(),
        parts_->cache.next_deadline_ns(), parts_->earlier.NextDeadline(), parts_->resaves.NextDeadline()}) {
    if (one && (!first || *one < *first)) first = one;
  }
  return first;
}

const Counters& Service::counters() const { return parts_->counters; }

const Limits& Service::limits() const { return parts_->limits; }

Gauges Service::gauges() const {
  Gauges gauges;
  gauges.sessions = parts_->registry.sessions().size();
  gauges.sessions_detached = parts_->registry.detached_count();
  gauges.instances = parts_->registry.instance_count();
  gauges.namespaces = parts_->registry.namespace_count();
  gauges.leased_bytes = parts_->registry.leased_bytes();
  gauges.verifications = parts_->verifications.open_count();
  parts_->leases.Export(gauges);
  parts_->loads.Export(gauges);
  parts_->operations.Export(gauges);
  parts_->saves.Export(gauges);
  parts_->grants.Export(gauges);
  parts_->reservations.Export(gauges);
  parts_->earlier.Export(gauges);
  return gauges;
}

std::vector<InstanceStatus> Service::instances() const {
  std::vector<InstanceStatus> statuses;
  for (const auto& [id, instance] : parts_->registry.instances()) {
    const Lookups::Figures figures = parts_->lookups.Of(id);
    statuses.push_back({.id = id,
                        .name = instance.name,
                        .lookups = figures.lookups,
                        .lookup_blocks = figures.blocks,
                        .hit_blocks = figures.hits,
                        .unbounded_hit_rate = figures.unbounded_hit_rate()});
  }
  return statuses;
}

std::vector<SessionStatus> Service::sessions() const {
  std::vector<SessionStatus> statuses;
  for (const auto& [id, session] : parts_->registry.sessions()) {
    statuses.push_back({.id = id,
                        .purpose = session.purpose,
                        .detached = session.detached,
                        .instance = session.instance != nullptr ? session.instance->id : InstanceId(),
                        .name = session.registration ? session.registration->name : std::string(),
                        .armed_ranks = session.armed_ranks,
                        .reserved_bytes = session.reserved_bytes,
                        .false_alarms = session.false_alarms});
  }
  return statuses;
}

}  // namespace orbitkv::service
