#include "orbitkv/service/leases.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

// A repeated query takes the place of its request's lease, so it needs no room for itself. Otherwise the oldest answer
// that only waits for a late begin makes room: first the session's own, then anybody's.
bool Leases::Admit(const Session& session, const RequestKey& request, std::uint64_t hash_count, bool replaces) {
  if (hash_count > limits_.hashes_total) return false;
  const auto earlier = by_request_.find(request);
  if (!replaces && (earlier == by_request_.end() || leases_.at(earlier->second).session != &session)) {
    if (session.operations >= limits_.operations_per_session) {
      if (session.remembered == 0) return false;
      const auto own = std::find_if(leases_.begin(), FirstLive(),
                                    [&session](const auto& lease) { return lease.second.session == &session; });
      if (own == FirstLive()) return false;
      Erase(own);
    }
    if (leases_.size() + open_ >= limits_.operations_total) {
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

void Leases::Hold(Session& session, std::uint64_t hash_count) {
  ++open_;
  ++session.operations;
  hashes_ += hash_count;
}

void Leases::Drop(Session& session, std::uint64_t hash_count) {
  --open_;
  --session.operations;
  hashes_ -= hash_count;
}

LeaseId Leases::Answer(Session& session, const RequestKey& request, std::uint32_t attempt, Scan& scan,
                       std::uint64_t now_ns) {
  // Only now, so that blocks of both stay pinned throughout.
  if (const auto earlier = by_request_.find(request); earlier != by_request_.end()) {
    const auto lease = leases_.find(earlier->second);
    Erase(lease, 0, lease->second.attempt != attempt);
  }
  if (scan.refs().empty()) {
    if (!scan.selected()) lookups_.Count(request, attempt, scan.TakeHashes(), 0);
    return {};
  }
  const LeaseId answered(next_lease_++);
  Lease& lease = leases_.emplace_hint(leases_.end(), answered, Lease{})->second;
  lease.id = answered;
  lease.session = &session;
  lease.request = request;
  lease.answered_ns = now_ns;
  lease.prefix_blocks = scan.prefix_blocks();
  lease.boundaries = scan.Boundaries();
  lease.attempt = attempt;
  lease.selected = scan.selected();
  lease.found = scan.found();
  lease.hashes = scan.TakeHashes();
  lease.refs = std::move(scan.refs());
  hashes_ += lease.hashes.size();
  ++session.operations;
  ++live_;
  by_request_[request] = answered;
  return answered;
}

const Lease* Leases::Find(const Instance& instance, LeaseId lease) const {
  const auto found = leases_.find(lease);
  return found == leases_.end() || found->second.request.instance != instance.id ? nullptr : &found->second;
}

void Leases::End(LeaseId lease, std::uint32_t taken) {
  if (const auto found = leases_.find(lease); found != leases_.end()) Erase(found, taken);
}

void Leases::EndSession(Session& session) {
  for (auto lease = leases_.begin(); lease != leases_.end() && session.operations > 0;) {
    lease = lease->second.session == &session ? Erase(lease) : std::next(lease);
  }
}

void Leases::Expire(Lease& lease) {
  ORBITKV_CHECK(lease.live);
  pins_.Give(*lease.session, lease.refs);
  ++lease.session->remembered;
  lease.live = false;
  first_live_ = LeaseId(lease.id.value() + 1);
  --live_;
}

Leases::LeaseMap::iterator Leases::Erase(LeaseMap::iterator lease, std::uint32_t taken, bool counted) {
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
  if (ended.selected) {
    lookups_.AddHits(ended.request.instance, taken);
  } else if (counted) {
    lookups_.Count(ended.request, ended.attempt, std::move(ended.hashes), taken);
  }
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
  gauges.leases = live_;
  gauges.leases_remembered = leases_.size() - live_;
  gauges.hashes = hashes_;
}

}  // namespace orbitkv::service
