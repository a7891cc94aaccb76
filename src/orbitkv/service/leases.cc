#include "orbitkv/service/leases.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

Result<QueryOutcome> Leases::Start(Session& session, const wire::QueryView& query, std::uint64_t now_ns) {
  if (query.header.group != 0) return Fail(Code::kInvalid, "the instance has no such cache group", query.header.group);
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
  Query started;
  started.request = request;
  started.space = session.instance->space;
  started.hashes.assign(query.hashes.begin(), query.hashes.end());
  ++session.operations;
  hashes_ += started.hashes.size();
  if (started.hashes.size() <= limits_.step_hashes) return Step(session, started, now_ns);
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
  const std::size_t count = std::min<std::size_t>(limits_.step_hashes, query.hashes.size() - query.looked_at);
  const std::size_t before = query.refs.size();
  const auto hashes = std::span(query.hashes).subspan(query.looked_at, count);
  const std::uint32_t matched = cache_.MatchPrefix(query.space->row, hashes, query.refs);
  query.looked_at += static_cast<std::uint32_t>(count);
  std::size_t taken = before;
  while (taken < query.refs.size() && Take(*session.instance, query, query.refs[taken])) ++taken;
  const std::size_t over_budget = query.refs.size() - taken;
  query.refs.resize(taken);
  if (matched == count && over_budget == 0 && query.looked_at < query.hashes.size()) return {.more = true};

  counters_.query_blocks_found += taken;
  counters_.query_blocks_over_budget += over_budget;
  QueryOutcome outcome;
  outcome.found_blocks = static_cast<std::uint32_t>(taken);
  if (taken == 0) {
    outcome.miss_reason =
        static_cast<std::uint32_t>(over_budget > 0 ? wire::MissReason::kOverBudget : wire::MissReason::kAbsent);
  }
  outcome.lease = Answer(session, query, now_ns);
  return outcome;
}

bool Leases::Take(Instance& instance, const Query& query, cache::BlockRef ref) {
  // One block is always allowed: a budget below the size of a block would switch the cache off silently.
  const std::uint64_t budget =
      std::max<std::uint64_t>(1, limits_.lease_bytes_per_instance() / query.space->block_bytes());
  if (instance.leased.distinct() >= budget && !instance.leased.Holds(ref)) return false;
  if (!cache_.PinFound(ref)) return false;
  instance.leased.Add(ref);
  return true;
}

LeaseId Leases::Answer(Session& session, Query& query, std::uint64_t now_ns) {
  if (const auto earlier = by_request_.find(query.request); earlier != by_request_.end()) {
    Erase(leases_.find(earlier->second));
  }
  hashes_ -= query.hashes.size();
  LeaseId answered;
  if (query.refs.empty()) {
    --session.operations;
  } else {
    answered = LeaseId(next_lease_++);
    Lease& lease = leases_.emplace_hint(leases_.end(), answered, Lease{})->second;
    lease.id = answered;
    lease.session = &session;
    lease.request = query.request;
    lease.answered_ns = now_ns;
    query.hashes.resize(query.refs.size());
    lease.hashes = std::move(query.hashes);
    lease.refs = std::move(query.refs);
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
  Unpin(*session.instance, running->second.refs);
  hashes_ -= running->second.hashes.size();
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

void Leases::Unpin(Instance& instance, std::vector<cache::BlockRef>& refs) {
  for (const cache::BlockRef ref : refs) {
    cache_.UnpinFound(ref);
    instance.leased.Remove(ref);
  }
  refs.clear();
}

void Leases::Expire(Lease& lease) {
  ORBITKV_CHECK(lease.live);
  Unpin(*lease.session->instance, lease.refs);
  lease.live = false;
  first_live_ = LeaseId(lease.id.value() + 1);
  --live_;
}

Leases::LeaseMap::iterator Leases::Erase(LeaseMap::iterator lease) {
  Lease& ended = lease->second;
  if (ended.live) {
    Unpin(*ended.session->instance, ended.refs);
    --live_;
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
