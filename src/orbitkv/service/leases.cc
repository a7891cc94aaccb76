#include "orbitkv/service/leases.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

Result<QueryOutcome> Leases::Start(Session& session, const wire::QueryView& query, std::uint64_t now_ns) {
  if (session.instance->space != nullptr) ORBITKV_TRY(Scan::Check(*session.instance->space, query));
  ++counters_.queries;
  counters_.query_blocks += query.hashes.size();
  if (session.instance->space == nullptr) {
    return QueryOutcome{.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kNoNamespace)};
  }
  const RequestKey request{session.instance->id, query.header.request_key_hi, query.header.request_key_lo};
  if (!Admit(session, request, query.hashes.size())) {
    ++counters_.queries_not_admitted;
    return Fail(Code::kBusy, "too many queries and leases are open", session.operations, leases_.size());
  }
  Query started{request, query.header.mode, Scan(*session.instance->space, query)};
  ++session.operations;
  hashes_ += started.scan.hashes().size();
  if (started.scan.hashes().size() <= limits_.step_hashes) return Step(session, started, now_ns);
  return Step(session, running_.emplace(session.id, std::move(started)).first->second, now_ns);
}

Result<QueryOutcome> Leases::Continue(Session& session, std::uint64_t now_ns) {
  const auto running = running_.find(session.id);
  if (running == running_.end()) return Fail(Code::kInvalid, "no query of this session is running");
  return Step(session, running->second, now_ns);
}

// A repeated query takes the place of its request's lease, so it needs no room for itself. Otherwise the oldest answer
// that only waits for a late begin makes room: first the session's own, then anybody's.
bool Leases::Admit(const Session& session, const RequestKey& request, std::uint64_t hash_count) {
  if (hash_count > limits_.hashes_total) return false;
  const auto earlier = by_request_.find(request);
  if (earlier == by_request_.end() || leases_.at(earlier->second).session != &session) {
    if (session.operations >= limits_.operations_per_session) {
      if (session.remembered == 0) return false;
      const auto own = std::find_if(leases_.begin(), FirstLive(),
                                    [&session](const auto& lease) { return lease.second.session == &session; });
      if (own == FirstLive()) return false;
      Erase(own);
    }
    if (leases_.size() + running_.size() >= limits_.operations_total) {
      if (leases_.begin() == FirstLive()) return false;
      Erase(leases_.begin());
    }
  }
  while (hashes_ + hash_count > limits_.hashes_total) {
    if (leases_.begin() == FirstLive()) return false;
    Erase(leases_.begin());
  }
  return true;
}

QueryOutcome Leases::Step(Session& session, Query& query, std::uint64_t now_ns) {
  Scan& scan = query.scan;
  if (!scan.Step(cache_, pins_, session, limits_.step_hashes)) return {.more = true};
  QueryOutcome outcome;
  outcome.found_blocks = scan.found();
  counters_.query_blocks_over_budget += scan.over_budget();
  if (scan.all_or_nothing() && !scan.complete()) {
    pins_.Give(session, scan.refs());
    outcome.found_blocks = 0;
    outcome.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kIncomplete);
  } else if (scan.found() == 0) {
    outcome.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kAbsent);
  }
  if (outcome.found_blocks == 0 && scan.over_budget() > 0) {
    outcome.miss_reason = static_cast<std::uint32_t>(wire::MissReason::kOverBudget);
  }
  counters_.query_blocks_found += outcome.found_blocks;
  if (outcome.found_blocks > 0) outcome.boundaries = scan.Boundaries();
  outcome.lease = Answer(session, query, now_ns);
  return outcome;
}

LeaseId Leases::Answer(Session& session, Query& query, std::uint64_t now_ns) {
  const bool leases = query.mode != wire::QueryMode::kDiscovery && query.mode != wire::QueryMode::kWarmUp;
  if (const auto earlier = by_request_.find(query.request); leases && earlier != by_request_.end()) {
    Erase(leases_.find(earlier->second));
  }
  hashes_ -= query.scan.hashes().size();
  LeaseId answered;
  if (query.scan.refs().empty()) {
    --session.operations;
  } else {
    answered = LeaseId(next_lease_++);
    Lease& lease = leases_.emplace_hint(leases_.end(), answered, Lease{})->second;
    lease.id = answered;
    lease.session = &session;
    lease.request = query.request;
    lease.answered_ns = now_ns;
    lease.boundaries = query.scan.Boundaries();
    lease.hashes = query.scan.TakeFoundHashes();
    lease.refs = std::move(query.scan.refs());
    hashes_ += lease.hashes.size();
    ++live_;
    by_request_[lease.request] = answered;
  }
  running_.erase(session.id);
  return answered;
}

void Leases::CancelRunning(Session& session) {
  const auto running = running_.find(session.id);
  if (running == running_.end()) return;
  pins_.Give(session, running->second.scan.refs());
  hashes_ -= running->second.scan.hashes().size();
  --session.operations;
  running_.erase(running);
}

const Lease* Leases::Find(const Instance& instance, LeaseId lease) const {
  const auto found = leases_.find(lease);
  return found == leases_.end() || found->second.request.instance != instance.id ? nullptr : &found->second;
}

void Leases::End(LeaseId lease) {
  if (const auto found = leases_.find(lease); found != leases_.end()) Erase(found);
}

void Leases::EndSession(Session& session) {
  CancelRunning(session);
  for (auto lease = leases_.begin(); lease != leases_.end() && session.operations > 0;) {
    lease = lease->second.session == &session ? Erase(lease) : std::next(lease);
  }
  ORBITKV_CHECK(session.operations == 0);
}

void Leases::Expire(Lease& lease) {
  ORBITKV_CHECK(lease.live);
  pins_.Give(*lease.session, lease.refs);
  ++lease.session->remembered;
  lease.live = false;
  first_live_ = LeaseId(lease.id.value() + 1);
  --live_;
}

Leases::LeaseMap::iterator Leases::Erase(LeaseMap::iterator lease) {
  Lease& ended = lease->second;
  if (ended.live) {
    pins_.Give(*ended.session, ended.refs);
    --live_;
  } else {
    --ended.session->remembered;
  }
  hashes_ -= ended.hashes.size();
  --ended.session->operations;
  by_request_.erase(ended.request);
  return leases_.erase(lease);
}

bool Leases::RevokeOne() {
  const auto oldest = FirstLive();
  if (oldest == leases_.end()) return false;
  Expire(oldest->second);
  ++counters_.leases_revoked;
  return true;
}

void Leases::Tick(std::uint64_t now_ns) {
  for (auto lease = FirstLive(); lease != leases_.end(); ++lease) {
    if (now_ns - lease->second.answered_ns < limits_.lease_ns) break;
    Expire(lease->second);
    ++counters_.leases_expired;
  }
  while (!leases_.empty() && now_ns - leases_.begin()->second.answered_ns >= limits_.remembered_ns) {
    Erase(leases_.begin());
  }
}

std::optional<std::uint64_t> Leases::NextDeadline() const {
  if (leases_.empty()) return std::nullopt;
  const Lease& oldest = leases_.begin()->second;
  std::uint64_t deadline = oldest.answered_ns + limits_.remembered_ns;
  if (const auto live = leases_.lower_bound(first_live_); live != leases_.end()) {
    deadline = std::min(deadline, live->second.answered_ns + limits_.lease_ns);
  }
  return deadline;
}

void Leases::Export(Gauges& gauges) const {
  gauges.running_queries = running_.size();
  gauges.leases = live_;
  gauges.leases_remembered = leases_.size() - live_;
  gauges.hashes = hashes_;
}

}  // namespace orbitkv::service
