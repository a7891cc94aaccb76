// The half of Operations that happens after the submit: the line for permits, loading, poll, claim, cancel, expiry.
#include <algorithm>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/service/operations.h"

namespace orbitkv::service {
namespace {

Result<QueryOutcome> NotPrepared() { return Fail(Code::kBusy, "nothing is prepared for this consumer"); }

}  // namespace

Operations::Operation* Operations::Find(const Session& session, std::uint64_t operation) {
  const auto ticket = tickets_.find({session.id, operation});
  return ticket == tickets_.end() ? nullptr : &kept_.at(ticket->second);
}

// ---- what the owner of a ticket may do ------------------------------------------------------------------------------

void Operations::Poll(Session& session, std::span<const wire::PollRequest> requests, std::uint64_t now_ns,
                      std::vector<wire::PollEntry>& entries, std::vector<std::uint32_t>& boundaries) {
  entries.clear();
  boundaries.clear();
  for (const wire::PollRequest& request : requests) {
    wire::PollEntry& entry = entries.emplace_back();
    entry.operation = request.operation;
    entry.revision = request.revision;
    Poll(session, request, entry, boundaries, now_ns);
  }
}

void Operations::Poll(Session& session, const wire::PollRequest& request, wire::PollEntry& entry,
                      std::vector<std::uint32_t>& boundaries, std::uint64_t now_ns) {
  const auto say = [&entry](wire::TicketState state) { entry.state = static_cast<std::uint32_t>(state); };
  Operation* operation = Find(session, request.operation);
  if (operation == nullptr) {
    const auto grave = buried_.find({session.id, request.operation});
    if (grave == buried_.end()) return say(wire::TicketState::kUnknown);
    const auto [revision, state] = grave->second;
    return say(revision == request.revision ? state : wire::TicketState::kStaleRevision);
  }
  if (operation->ticket.revision != request.revision) return say(wire::TicketState::kStaleRevision);
  switch (operation->phase) {
    case Phase::kReady: break;
    case Phase::kRevoked: Remove(operation->serial); return say(wire::TicketState::kNotAdmitted);
    default: return say(wire::TicketState::kLoading);
  }
  say(wire::TicketState::kReady);
  if (operation->mode == wire::QueryMode::kPrepare) {
    entry.found = operation->scan.found();
    entry.reason = ReasonOf(*operation);
    return;
  }
  QueryOutcome outcome = Answer(*operation, now_ns);
  entry.lease = outcome.lease.value();
  entry.found = outcome.found_blocks;
  entry.reason = outcome.miss_reason;
  entry.loaded = outcome.loaded_blocks;
  entry.boundary_count = static_cast<std::uint32_t>(outcome.boundaries.size());
  boundaries.insert(boundaries.end(), outcome.boundaries.begin(), outcome.boundaries.end());
  Remove(operation->serial);
}

Result<QueryOutcome> Operations::Claim(Session& session, const wire::ClaimRequest& claim, std::uint64_t now_ns) {
  const auto consumer = consumers_.find({session.instance->id, claim.consumer_key_hi, claim.consumer_key_lo});
  if (consumer == consumers_.end()) {
    ++counters_.claims_not_admitted;
    return NotPrepared();
  }
  Operation& operation = kept_.at(consumer->second);
  if (claim.operation != 0 && claim.operation != operation.ticket.operation) {
    ++counters_.claims_not_admitted;
    return NotPrepared();
  }
  if (claim.revision != operation.ticket.revision) {
    return Fail(Code::kStale, "another revision is live", claim.revision, operation.ticket.revision);
  }
  if (operation.phase == Phase::kRevoked) {
    ++counters_.claims_not_admitted;
    Bury(operation, wire::TicketState::kNotAdmitted);
    Remove(operation.serial);
    return NotPrepared();
  }
  if (operation.phase != Phase::kReady) return QueryOutcome{.loading = true};
  if (&session != operation.session) {
    if (!leases_.Admit(session, operation.request, 0)) {
      ++counters_.queries_not_admitted;
      return Fail(Code::kBusy, "too many queries and leases are open", session.operations);
    }
    leases_.pins().Move(*operation.session, session, operation.scan.refs());
    CloseAccounts(operation);
    leases_.Hold(session, operation.scan.hashes().size());
  }
  ++counters_.claims;
  operation.session = &session;
  QueryOutcome outcome = Answer(operation, now_ns);
  Remove(operation.serial);
  return outcome;
}

Status Operations::Cancel(Session& session, Ticket ticket) {
  Operation* operation = Find(session, ticket.operation);
  if (operation == nullptr) return Fail(Code::kNotFound, "the operation is not open", ticket.operation);
  if (operation->ticket.revision != ticket.revision) {
    return Fail(Code::kStale, "another revision is live", ticket.revision, operation->ticket.revision);
  }
  ++counters_.tickets_cancelled;
  Bury(*operation, wire::TicketState::kCancelled);
  Remove(operation->serial);
  return {};
}

// ---- work -----------------------------------------------------------------------------------------------------------

bool Operations::HasWork() const {
  if (!finishing_.empty()) return true;
  return line_.empty() ? !warm_.empty() && !warm_blocked_ : !blocked_;
}

bool Operations::Work(std::uint64_t now_ns) {
  // One more than hashes may be looked at: each operation costs one, so that those without hashes end the call, too,
  // and the first one gets on all the same.
  std::uint32_t budget = limits_.step_hashes + 1;
  while (budget > 0 && HasWork()) {
    const bool finishing = !finishing_.empty();
    std::deque<std::uint64_t>& from = finishing ? finishing_ : line_.empty() ? warm_ : line_;
    const auto kept = kept_.find(from.front());
    if (kept == kept_.end()) {
      from.pop_front();
      continue;
    }
    --budget;
    if (!WorkOn(kept->second, budget, now_ns)) break;
  }
  return HasWork();
}

// False when nothing more can be done now.
bool Operations::WorkOn(Operation& operation, std::uint32_t& budget, std::uint64_t now_ns) {
  const auto scan_on = [&] {
    const bool done = operation.scan.Step(cache_, leases_.pins(), *operation.session, std::max(budget, 1U));
    budget -= std::min(budget, operation.scan.step_hashes());
    return done;
  };
  switch (operation.phase) {
    case Phase::kQueued: operation.phase = Phase::kScanning; [[fallthrough]];
    case Phase::kScanning:
      if (!scan_on()) return true;
      operation.cursor = operation.scan.grouped() ? 0 : operation.scan.found();
      operation.phase = Phase::kIssuing;
      if (operation.scan.exhausted() || operation.scan.over_budget() > 0) {
        LeaveLine(operation);
        Finish(operation);
      }
      return true;
    case Phase::kIssuing: return Issue(operation, budget, now_ns);
    case Phase::kFinishing:
      if (!scan_on()) return true;
      finishing_.pop_front();
      leases_.pins().Give(*operation.session, operation.early);
      MakeReady(operation);
      return true;
    case Phase::kRunning:
    case Phase::kLocating:
    case Phase::kLoading:
    case Phase::kReady:
    case Phase::kRevoked: break;
  }
  ORBITKV_CHECK(false);
  return false;
}

// More than may be leased would be loaded for nobody.
std::uint32_t Operations::PieceCount(const Operation& operation) const {
  if (operation.demand) return operation.demand->size();
  const Scan& scan = operation.scan;
  const std::uint64_t most =
      std::max<std::uint64_t>(1, limits_.lease_bytes_per_instance() / scan.space().block_bytes());
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, scan.hashes().size()));
}

Loads::Piece Operations::PieceOf(const Operation& operation) const {
  const Scan& scan = operation.scan;
  Demand::Place place{.group = 0, .index = operation.cursor};
  if (operation.demand) place = operation.demand->At(operation.cursor);
  return {scan.hashes()[place.index], scan.DepthOf(place.index), place.group};
}

Loads::Start Operations::BeginLoad(Operation& operation, std::uint64_t now_ns) {
  const bool warm = operation.mode == wire::QueryMode::kWarmUp;
  const Loads::Piece piece = PieceOf(operation);
  revoking_ = !warm;
  const Loads::Start started = loads_.Begin(operation.scan.space(), piece, warm, operation.serial, now_ns);
  revoking_ = true;
  // What a boundary needs of the pool may lie behind what it needs of the source: it must not go meanwhile.
  if (started == Loads::Start::kHere && operation.demand && !warm && !HoldEarly(operation, piece.hash, piece.group)) {
    return Loads::Start::kNoRoom;
  }
  return started;
}

bool Operations::HoldEarly(Operation& operation, const state::BlockHash& hash, std::uint32_t group) {
  const cache::BlockUse use = cache_.Peek(operation.scan.space().row, hash);
  if (((use.groups >> group) & 1U) == 0) return false;
  if (!leases_.pins().Take(*operation.session, cache::BlockUse{use.ref, 1U << group})) return false;
  operation.early.push_back(use.ref);
  return true;
}

bool Operations::Issue(Operation& operation, std::uint32_t& budget, std::uint64_t now_ns) {
  const bool warm = operation.mode == wire::QueryMode::kWarmUp;
  const Scan& scan = operation.scan;
  if (scan.grouped() && !operation.demand) {
    operation.demand.emplace(scan.space().contract, scan.prefix_blocks(), operation.behind->found());
  }
  const std::uint32_t count = PieceCount(operation);
  bool over = false;
  while (!over && operation.cursor < count) {
    if (budget == 0) return true;
    --budget;
    switch (BeginLoad(operation, now_ns)) {
      case Loads::Start::kStarted:
        if (!warm) ++operation.outstanding;
        ++operation.cursor;
        break;
      case Loads::Start::kHere: ++operation.cursor; break;
      case Loads::Start::kNoPermit: (warm ? warm_blocked_ : blocked_) = true; return false;
      case Loads::Start::kAbsent:
      case Loads::Start::kNoRoom: over = true; break;
    }
  }
  if (warm) {
    Remove(operation.serial);
    return true;
  }
  LeaveLine(operation);
  operation.phase = Phase::kLoading;
  if (operation.outstanding == 0) Finish(operation);
  return true;
}

void Operations::LeaveLine(Operation& operation) {
  if (!line_.empty() && line_.front() == operation.serial) blocked_ = false;
  std::erase(line_, operation.serial);
  line_bytes_ -= std::exchange(operation.line_bytes, 0);
}

void Operations::Finish(Operation& operation) {
  operation.phase = Phase::kFinishing;
  if (operation.scan.grouped()) {
    // Another boundary needs other blocks: what is held stays until they are known.
    std::vector<cache::BlockRef>& refs = operation.scan.refs();
    operation.early.insert(operation.early.end(), refs.begin(), refs.end());
    refs.clear();
    operation.scan.Restart();
  } else {
    operation.scan.Resume();
  }
  finishing_.push_back(operation.serial);
  SetTimer(operation);
}

void Operations::MakeReady(Operation& operation) {
  operation.phase = Phase::kReady;
  if (operation.scan.all_or_nothing() && !operation.scan.complete()) GiveAll(operation);
  ready_.insert(operation.serial);
  SetTimer(operation);
  completed_.insert(operation.owner);
}

void Operations::LoadDone(std::uint64_t id, LoadResult result, std::uint64_t checksum, std::uint64_t now_ns) {
  const auto ended = loads_.Done(id, result, checksum, now_ns);
  blocked_ = warm_blocked_ = false;
  if (!ended) return;
  for (const std::uint64_t waiter : ended->waiters) {
    const auto kept = kept_.find(waiter);
    if (kept == kept_.end()) continue;
    Operation& operation = kept->second;
    --operation.outstanding;
    if (operation.phase != Phase::kIssuing && operation.phase != Phase::kLoading) continue;
    static_cast<void>(HoldEarly(operation, ended->hash, ended->group));  // the scan will see
    if (operation.phase == Phase::kLoading && operation.outstanding == 0) Finish(operation);
  }
}

// ---- how tickets end ------------------------------------------------------------------------------------------------

std::vector<SessionId> Operations::TakeCompleted() {
  std::vector<SessionId> taken(completed_.begin(), completed_.end());
  completed_.clear();
  return taken;
}

bool Operations::RevokeOne() {
  if (!revoking_) return false;
  if (leases_.RevokeOne()) return true;
  while (!ready_.empty()) {
    Operation& operation = kept_.at(*ready_.begin());
    ready_.erase(ready_.begin());
    if (operation.scan.refs().empty()) continue;  // it holds nothing that could be given
    GiveAll(operation);
    operation.phase = Phase::kRevoked;
    ++counters_.tickets_revoked;
    return true;
  }
  return false;
}

void Operations::SetTimer(Operation& operation) {
  if (operation.timer_ns != 0) timers_.erase({operation.timer_ns, operation.serial});
  std::uint64_t after_ns = limits_.ticket_ns;
  const bool waits = operation.phase != Phase::kReady && operation.phase != Phase::kFinishing &&
                     operation.mode != wire::QueryMode::kWarmUp;
  if (waits) after_ns = std::min(after_ns, operation.wait_ns);
  operation.timer_ns = operation.submitted_ns + std::max<std::uint64_t>(1, after_ns);
  timers_.emplace(operation.timer_ns, operation.serial);
}

void Operations::Tick(std::uint64_t now_ns) {
  while (!timers_.empty() && timers_.begin()->first <= now_ns) {
    Operation& operation = kept_.at(timers_.begin()->second);
    if (now_ns - operation.submitted_ns >= limits_.ticket_ns) {
      if (operation.mode != wire::QueryMode::kWarmUp) ++counters_.tickets_timed_out;
      End(operation, wire::TicketState::kTimedOut);
      continue;
    }
    ++counters_.tickets_late;
    operation.late = true;
    LeaveLine(operation);
    Finish(operation);
  }
}

std::optional<std::uint64_t> Operations::NextDeadline() const {
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
}

void Operations::End(Operation& operation, wire::TicketState state) {
  if (operation.mode != wire::QueryMode::kWarmUp) {
    completed_.insert(operation.owner);
    Bury(operation, state);
  }
  Remove(operation.serial);
}

void Operations::Bury(const Operation& operation, wire::TicketState state) {
  if (operation.ticket.operation == 0) return;
  const TicketKey key{operation.owner, operation.ticket.operation};
  if (!buried_.try_emplace(key, operation.ticket.revision, state).second) return;
  graves_.push_back(key);
  if (graves_.size() <= limits_.tombstones) return;
  buried_.erase(graves_.front());
  graves_.pop_front();
}

void Operations::Remove(std::uint64_t serial) {
  const auto kept = kept_.find(serial);
  Operation& operation = kept->second;
  if (operation.session != nullptr) {
    GiveAll(operation);
    CloseAccounts(operation);
  }
  timers_.erase({operation.timer_ns, serial});
  ready_.erase(serial);
  if (operation.mode == wire::QueryMode::kWarmUp) {
    if (!warm_.empty() && warm_.front() == serial) warm_blocked_ = false;
    std::erase(warm_, serial);
  } else {
    LeaveLine(operation);
    tickets_.erase({operation.owner, operation.ticket.operation});
    const auto consumer = consumers_.find(operation.consumer);
    if (consumer != consumers_.end() && consumer->second == serial) consumers_.erase(consumer);
  }
  kept_.erase(kept);
}

void Operations::Export(Gauges& gauges) const {
  gauges.running_queries = running_.size();
  gauges.tickets = tickets_.size();
  gauges.tickets_ready = ready_.size();
  gauges.tickets_in_line = line_.size();
  gauges.warm_ups = warm_.size();
  gauges.tombstones = buried_.size();
}

}  // namespace orbitkv::service
