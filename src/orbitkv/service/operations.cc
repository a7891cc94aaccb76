#include "orbitkv/service/operations.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

Operations::Operation::Operation(Session& submitter, const wire::QueryView& query)
    : owner(submitter.id),
      session(&submitter),
      request{submitter.instance->id, query.header.request_key_hi, query.header.request_key_lo},
      consumer{submitter.instance->id, query.header.consumer_key_hi, query.header.consumer_key_lo},
      attempt(query.header.attempt),
      group(query.header.group),
      mode(query.header.mode),
      scan(*submitter.instance->space, query),
      tells_tiers((query.header.flags & wire::kTellTiers) != 0),
      compute_ns(query.compute_ns),
      wait_ns(query.header.wait_ns) {}

Result<QueryOutcome> Operations::Start(Session& session, const wire::QueryView& query, Ticket ticket,
                                       std::uint64_t now_ns) {
  if (session.instance->space != nullptr) ORBITKV_TRY(Scan::Check(*session.instance->space, query));
  Operation* replaced = nullptr;
  ORBITKV_TRY(CheckTicket(session, query, ticket, replaced));
  ++counters_.queries;
  counters_.query_blocks += query.hashes.size();
  if (session.instance->space == nullptr) {
    session.last_operation = std::max(session.last_operation, ticket.operation);  // this was its answer
    return QueryOutcome{.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kNoNamespace)};
  }
  const RequestKey request{session.instance->id, query.header.request_key_hi, query.header.request_key_lo};
  if (!leases_.Admit(session, request, Scan::CountHashes(query), replaced != nullptr)) {
    ++counters_.queries_not_admitted;
    return Fail(Code::kBusy, "too many queries and leases are open", session.operations);
  }
  if (replaced != nullptr) Remove(replaced->serial);
  session.last_operation = std::max(session.last_operation, ticket.operation);
  Operation operation(session, query);
  operation.ticket = ticket;
  operation.submitted_ns = now_ns;
  leases_.Hold(session, operation.scan.hashes().size());
  QueryOutcome outcome = Step(operation, now_ns);
  if (outcome.more) running_.emplace(session.id, std::move(operation));
  return outcome;
}

Status Operations::CheckTicket(const Session& session, const wire::QueryView& query, Ticket ticket,
                               Operation*& replaced) {
  if (ticket.operation == 0) {
    if (query.header.mode != wire::QueryMode::kPrepare) return {};
    return Fail(Code::kInvalid, "a preparation needs an operation");
  }
  if (ticket.revision == 0) return Fail(Code::kInvalid, "revisions start at 1");
  Operation* live = Find(session, ticket.operation);
  if (live == nullptr) {
    if (ticket.operation > session.last_operation) return {};
    return Fail(Code::kStale, "operations rise within a session", ticket.operation, session.last_operation);
  }
  if (ticket.revision <= live->ticket.revision) {
    return Fail(Code::kStale, "a newer revision is live", ticket.revision, live->ticket.revision);
  }
  const wire::QueryHeader& header = query.header;
  if (header.request_key_hi != live->request.hi || header.request_key_lo != live->request.lo ||
      header.group != live->group || header.mode != live->mode) {
    return Fail(Code::kRefused, "a revision keeps its request, group and mode", ticket.operation);
  }
  replaced = live;
  return {};
}

Result<QueryOutcome> Operations::Continue(Session& session, std::uint64_t now_ns) {
  const auto running = running_.find(session.id);
  if (running == running_.end()) return Fail(Code::kInvalid, "no query of this session is running");
  QueryOutcome outcome = Step(running->second, now_ns);
  if (!outcome.more) running_.erase(running);
  return outcome;
}

void Operations::CancelRunning(Session& session) {
  const auto running = running_.find(session.id);
  if (running == running_.end()) return;
  GiveAll(running->second);
  CloseAccounts(running->second);
  Bury(running->second, wire::TicketState::kCancelled);
  running_.erase(running);
}

QueryOutcome Operations::Step(Operation& operation, std::uint64_t now_ns) {
  const bool is_long = operation.scan.hashes().size() > limits_.step_hashes;
  const std::uint32_t step = is_long ? std::min(limits_.long_step_hashes, limits_.step_hashes) : limits_.step_hashes;
  if (operation.phase == Phase::kRunning) {
    if (!operation.scan.Step(cache_, leases_.pins(), *operation.session, step)) return {.more = true};
    counters_.query_blocks_over_budget += operation.scan.over_budget();
    operation.cursor = operation.resident = operation.scan.found();
    operation.phase = Phase::kScanning;
    if (Locates(operation)) {
      const bool discovers = operation.mode == wire::QueryMode::kDiscovery;
      const std::uint64_t most = discovers ? ~std::uint64_t{0} : limits_.lease_bytes_per_instance();
      operation.behind.emplace(operation.scan, most);
      operation.phase = Phase::kLocating;
    }
  }
  if (operation.phase == Phase::kLocating) {
    if (!operation.behind->Step(cache_, loads_, operation.scan, step)) return {.more = true};
    operation.phase = Phase::kScanning;
  }
  return Settle(operation, now_ns);
}

// Whether it takes more than a look at the next block to know what the source adds.
bool Operations::Locates(const Operation& operation) const {
  const Scan& scan = operation.scan;
  if (operation.tells_tiers) return true;
  if (!loads_.has_source()) return false;
  // A discovery tells all boundaries, those before the last one, too.
  if (operation.mode == wire::QueryMode::kDiscovery) return scan.grouped();
  if (scan.exhausted() || scan.over_budget() > 0) return false;
  if (operation.mode == wire::QueryMode::kWarmUp) return scan.grouped();
  const bool waits = operation.ticket.operation != 0 && operation.wait_ns > 0;
  return waits && (scan.grouped() || (operation.compute_ns > 0 && limits_.recompute));
}

// What is resident is known.
QueryOutcome Operations::Settle(Operation& operation, std::uint64_t now_ns) {
  if (operation.mode != wire::QueryMode::kDiscovery) operation.worth_loading = WorthLoading(operation, now_ns);
  switch (operation.mode) {
    case wire::QueryMode::kDiscovery: return Discover(operation);
    case wire::QueryMode::kWarmUp: return WarmUp(operation, now_ns);
    case wire::QueryMode::kPrepare: return Keep(std::move(operation), now_ns);
    case wire::QueryMode::kLeasedRead:
    case wire::QueryMode::kFullPrefix:
    case wire::QueryMode::kSelected: break;
  }
  const bool waits = operation.ticket.operation != 0 && operation.wait_ns > 0;
  return waits && operation.worth_loading ? Keep(std::move(operation), now_ns) : Answer(operation, now_ns);
}

bool Operations::WorthLoading(Operation& operation, std::uint64_t now_ns) {
  const Scan& scan = operation.scan;
  if (scan.exhausted() || scan.over_budget() > 0) return false;
  if (operation.behind) return operation.behind->found() > scan.found() && LoadsInTime(operation, now_ns);
  if (scan.grouped()) return false;
  return loads_.Locatable(scan.space(), scan.hashes()[scan.found()], scan.DepthOf(scan.found()), 0);
}

// Reading everything that is ahead of it, and its own, against computing what it would save.
bool Operations::LoadsInTime(Operation& operation, std::uint64_t now_ns) {
  const std::optional<double> speed = loads_.BytesPerSecond(now_ns);
  if (operation.compute_ns == 0 || !limits_.recompute || !speed) return true;
  const std::uint64_t bytes = loads_.bytes() + line_bytes_ + operation.behind->missing_bytes();
  const std::uint32_t saved_blocks = operation.behind->found() - operation.scan.found();
  const double compute_ns = static_cast<double>(operation.compute_ns) * saved_blocks;
  if (static_cast<double>(bytes) * 1e9 <= compute_ns * *speed) return true;
  ++counters_.recompute_chosen;
  operation.recompute = true;
  return false;
}

QueryOutcome Operations::Discover(Operation& operation) {
  const Scan& scan = operation.scan;
  QueryOutcome outcome;
  outcome.boundaries = scan.Boundaries();
  if (operation.behind) {
    const std::uint32_t found = operation.behind->found();
    operation.cursor = scan.grouped() ? found : std::max(operation.cursor, found);
    outcome.boundaries = operation.behind->boundaries();
  }
  std::uint32_t budget = limits_.step_hashes;
  while (!scan.grouped() && operation.cursor < scan.hashes().size() &&
         loads_.Locatable(scan.space(), scan.hashes()[operation.cursor], scan.DepthOf(operation.cursor), 0)) {
    ++operation.cursor;
    if (--budget == 0 && operation.cursor < scan.hashes().size()) return {.more = true};
  }
  outcome.found_blocks = operation.cursor;
  if (operation.tells_tiers) {
    outcome.tiers = operation.behind->tiers();
    outcome.tiers->resize(scan.hashes().size());
  }
  if (operation.cursor == 0) outcome.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kAbsent);
  counters_.discovered_blocks += operation.cursor;
  counters_.discovered_blocks_behind += operation.cursor - std::min(operation.cursor, operation.resident);
  CloseAccounts(operation);
  lookups_.Count(operation.request, operation.attempt, operation.scan.TakeHashes(), 0);
  return outcome;
}

QueryOutcome Operations::WarmUp(Operation& operation, std::uint64_t now_ns) {
  QueryOutcome outcome;
  outcome.found_blocks = operation.scan.found();
  if (!operation.worth_loading) {
    CloseAccounts(operation);
    return outcome;
  }
  if (warm_.size() >= limits_.warm_ups) {
    ++counters_.warm_ups_skipped;
    outcome.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kOverBudget);
    CloseAccounts(operation);
    return outcome;
  }
  ++counters_.warm_ups;
  operation.serial = next_serial_++;
  operation.phase = Phase::kIssuing;
  operation.cursor = operation.scan.grouped() ? 0 : operation.cursor;
  operation.submitted_ns = now_ns;
  warm_.push_back(operation.serial);
  SetTimer(kept_.emplace(operation.serial, std::move(operation)).first->second);
  return outcome;
}

std::uint32_t Operations::ReasonOf(const Operation& operation) const {
  const Scan& scan = operation.scan;
  const bool nothing = scan.found() == 0 || (scan.all_or_nothing() && !scan.complete());
  wire::MissReason reason = wire::MissReason::kNone;
  if (operation.late && !scan.complete()) {
    reason = wire::MissReason::kTooLate;
  } else if (operation.recompute) {
    reason = wire::MissReason::kRecompute;
  } else if (nothing && scan.over_budget() > 0) {
    reason = wire::MissReason::kOverBudget;
  } else if (nothing && scan.all_or_nothing()) {
    reason = wire::MissReason::kIncomplete;
  } else if (nothing) {
    reason = WhyAbsent(scan);
  }
  return static_cast<std::uint32_t>(reason);
}

wire::MissReason Operations::WhyAbsent(const Scan& scan) const {
  if (scan.hashes().empty()) return wire::MissReason::kAbsent;
  switch (cache_.WhyAbsent(scan.space().row, scan.hashes().front())) {
    case cache::Absence::kEvicted: return wire::MissReason::kEvicted;
    case cache::Absence::kIncomplete: return wire::MissReason::kIncomplete;
    case cache::Absence::kNeverSeen: break;
  }
  return wire::MissReason::kAbsent;
}

// The one place where what was found becomes the session's.
QueryOutcome Operations::Answer(Operation& operation, std::uint64_t now_ns) {
  Scan& scan = operation.scan;
  QueryOutcome outcome;
  outcome.miss_reason = ReasonOf(operation);
  if (!scan.all_or_nothing() || scan.complete()) outcome.found_blocks = scan.found();
  if (outcome.found_blocks == 0) GiveAll(operation);
  counters_.query_blocks_found += outcome.found_blocks;
  outcome.loaded_blocks = outcome.found_blocks - std::min(outcome.found_blocks, operation.resident);
  counters_.query_blocks_behind += outcome.loaded_blocks;
  if (outcome.found_blocks > 0) outcome.boundaries = scan.Boundaries();
  CloseAccounts(operation);
  outcome.lease = leases_.Answer(*operation.session, operation.request, operation.attempt, scan, now_ns);
  operation.session = nullptr;
  return outcome;
}

QueryOutcome Operations::Keep(Operation&& taken, std::uint64_t now_ns) {
  taken.serial = next_serial_++;
  Operation& operation = kept_.emplace(taken.serial, std::move(taken)).first->second;
  operation.submitted_ns = now_ns;
  ++counters_.tickets;
  tickets_[{operation.owner, operation.ticket.operation}] = operation.serial;
  if (operation.mode == wire::QueryMode::kPrepare) {
    // A consumer has one preparation, the newest.
    if (const auto earlier = consumers_.find(operation.consumer); earlier != consumers_.end()) {
      End(kept_.at(earlier->second), wire::TicketState::kCancelled);
    }
    consumers_[operation.consumer] = operation.serial;
  }
  SetTimer(operation);
  if (operation.wait_ns == 0 || !operation.worth_loading) {
    MakeReady(operation);
    return {.loading = true};
  }
  operation.phase = Phase::kIssuing;
  if (operation.scan.grouped()) operation.cursor = 0;
  if (!line_.empty()) {
    GiveAll(operation);
    operation.scan.Restart();
    operation.phase = Phase::kQueued;
  }
  StandInLine(operation);
  return {.loading = true};
}

void Operations::StandInLine(Operation& operation) {
  const Scan& scan = operation.scan;
  // Without a look at the source: as if it had all.
  operation.line_bytes = operation.behind
                             ? operation.behind->missing_bytes()
                             : std::min((scan.hashes().size() - operation.resident) * scan.space().block_bytes(),
                                        limits_.lease_bytes_per_instance());
  line_bytes_ += operation.line_bytes;
  line_.push_back(operation.serial);
}

void Operations::GiveAll(Operation& operation) {
  leases_.pins().Give(*operation.session, operation.scan.refs());
  leases_.pins().Give(*operation.session, operation.early);
}

void Operations::CloseAccounts(Operation& operation) {
  leases_.Drop(*operation.session, operation.scan.hashes().size());
}

void Operations::EndSession(Session& session) {
  CancelRunning(session);
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    const auto next = std::next(kept);
    if (kept->second.session == &session) Remove(kept->first);
    kept = next;
  }
  // Their places in graves_ stay until they are pushed out: ids of sessions do not come again.
  const auto first = buried_.lower_bound({session.id, 0});
  auto last = first;
  while (last != buried_.end() && last->first.first == session.id) ++last;
  buried_.erase(first, last);
  completed_.erase(session.id);
  leases_.EndSession(session);
  ORBITKV_CHECK(session.operations == 0 && session.remembered == 0);
}

}  // namespace orbitkv::service
