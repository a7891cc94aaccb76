#include "orbitkv/client/queries.h"

#include <vector>
#include <xxhash.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr unsigned kLeaseBits = 48;
constexpr std::uint64_t kLeaseMask = (1ULL << kLeaseBits) - 1;

AnswerReason ReasonOf(std::uint64_t miss) {
  switch (static_cast<wire::MissReason>(miss)) {
    case wire::MissReason::kNoNamespace: return AnswerReason::kNoNamespace;
    case wire::MissReason::kOverBudget: return AnswerReason::kOverBudget;
    case wire::MissReason::kNone:
    case wire::MissReason::kIncomplete:
    case wire::MissReason::kTooLate:
    case wire::MissReason::kAbsent: break;
  }
  return AnswerReason::kAbsent;
}

void ReleaseLease(Life& life, std::uint64_t lease) {
  if (lease == 0 || life.lost()) return;
  (void)life.control().PostNeverLost(wire::Command::kRelease, static_cast<std::uint64_t>(wire::ReleaseKind::kLease),
                                     lease);
}

}  // namespace

LeaseHandle HandleOf(const Life& life, std::uint64_t lease) {
  return LeaseHandle((life.number() << kLeaseBits) | (lease & kLeaseMask));
}

std::optional<std::uint64_t> LeaseOf(const Life& life, LeaseHandle handle) {
  if (handle.is_none() || HandleOf(life, handle.value()) != handle) return std::nullopt;
  return handle.value() & kLeaseMask;
}

std::optional<Queries::Pending> Queries::Find(const Key& key, const Life& life) {
  const MutexLock lock(mutex_);
  const auto it = pending_.find(key);
  if (it == pending_.end()) return std::nullopt;
  if (it->second.life == life.number()) return it->second;
  pending_.erase(it);
  return std::nullopt;
}

void Queries::Store(const Key& key, const Pending& pending) {
  const MutexLock lock(mutex_);
  pending_[key] = pending;
}

void Queries::Forget(const Key& key) {
  const MutexLock lock(mutex_);
  pending_.erase(key);
}

bool Queries::MakeRoom(Life& life, std::uint64_t now_ns) {
  std::vector<channel::RequestId> abandoned;
  bool room = false;
  {
    const MutexLock lock(mutex_);
    if (pending_.size() < kMostPending) return true;
    for (auto it = pending_.begin(); it != pending_.end();) {
      const bool old_life = it->second.life != life.number();
      if (!old_life && now_ns < it->second.deadline_ns) {
        ++it;
        continue;
      }
      if (!old_life && it->second.request) abandoned.push_back(*it->second.request);
      it = pending_.erase(it);
    }
    room = pending_.size() < kMostPending;
  }
  // Without the lock: an answer that is there already goes to OnLateAnswer from within.
  for (const channel::RequestId request : abandoned) life.control().Abandon(request);
  return room;
}

Status Queries::Send(Life& life, const Key& key, const Query& query, Pending& pending) {
  wire::QueryHeader header{};
  header.request_key_hi = key.first;
  header.request_key_lo = key.second;
  header.attempt = query.attempt;
  header.prefix_blocks = query.prefix_blocks;
  const std::vector<std::byte> args = wire::EncodeQuery(header, query.hashes.subspan(query.prefix_blocks));
  const auto posted =
      life.control().Post({.command = wire::Command::kQuerySubmit, .args = args, .deadline_ns = pending.deadline_ns});
  if (posted) pending.request = *posted;
  if (!posted && posted.error().code != Code::kBusy) return std::unexpected(posted.error());
  return {};
}

Answer Queries::Read(Life& life, const channel::Answer& answer, std::uint32_t asked_blocks) {
  if (answer.status == wire::AnswerStatus::kTimedOut) {
    Count(counters_.query_timeouts);
    return {0, {}, AnswerReason::kTimedOut};
  }
  if (!answer.ok()) return {0, {}, AnswerReason::kRefused};
  const std::uint64_t lease = answer.scalar0;
  const auto found = static_cast<std::uint32_t>(answer.scalar1);
  if (found > asked_blocks || lease > kLeaseMask || (found > 0) != (lease != 0)) {
    Count(counters_.bad_answers);
    ReleaseLease(life, lease);
    return {0, {}, AnswerReason::kRefused};
  }
  if (found == 0) return {0, {}, ReasonOf(answer.scalar1 >> 32U)};
  Count(counters_.query_found_blocks, found);
  return {found, HandleOf(life, lease), AnswerReason::kFound};
}

Answer Queries::GiveUp(Life& life, const Key& key, const Pending& pending) {
  Forget(key);
  if (pending.request) life.control().Abandon(*pending.request);
  Count(counters_.query_timeouts);
  link_.ReportMissedDeadline();
  return {0, {}, AnswerReason::kTimedOut};
}

std::optional<Answer> Queries::Ask(const Query& query, std::uint64_t wait_ns) {
  Count(counters_.queries);
  if (query.hashes.size() <= query.prefix_blocks || query.hashes.size() > wire::kMaxHashesPerQuery) {
    return Answer{0, {}, query.hashes.size() > query.prefix_blocks ? AnswerReason::kRefused : AnswerReason::kAbsent};
  }
  const LifePin life = link_.Pin();
  if (!life || link_.state() != State::kUp) {
    Count(counters_.query_down);
    return Answer{0, {}, AnswerReason::kDown};
  }
  const XXH128_hash_t hash = XXH3_128bits(query.request_id.data(), query.request_id.size());
  const Key key{hash.high64, hash.low64};
  const std::uint64_t now = os::MonotonicNs();
  const std::uint64_t until = now + wait_ns;
  const auto asked = static_cast<std::uint32_t>(query.hashes.size());
  std::optional<Pending> pending = Find(key, *life);
  // Twice at most: an answer to what was asked with another prefix only makes room for the question of now.
  for (int round = 0; round < 2; ++round) {
    if (!pending) {
      pending = Pending{life->number(), std::nullopt, now + options_.query_deadline_ms * kNsPerMs, query.prefix_blocks,
                        asked};
      if (!MakeRoom(*life, now)) return Answer{0, {}, AnswerReason::kRefused};
    }
    if (!pending->request) {
      if (const Status sent = Send(*life, key, query, *pending); !sent) {
        Forget(key);
        link_.ReportFailure(sent.error());
        return Answer{0, {}, life->lost() ? AnswerReason::kDown : AnswerReason::kRefused};
      }
      pending->prefix_blocks = query.prefix_blocks;
      pending->hash_count = asked;
      Store(key, *pending);
    }
    if (pending->request) {
      const auto answer = life->control().Wait(*pending->request, until);
      if (answer) {
        Forget(key);
        const Answer read = Read(*life, *answer, pending->hash_count - pending->prefix_blocks);
        if (pending->prefix_blocks == query.prefix_blocks && pending->hash_count == asked) return read;
        pending.reset();
        continue;
      }
      if (answer.error().code != Code::kTimedOut) {
        Forget(key);
        link_.ReportFailure(answer.error());
        return Answer{0, {}, AnswerReason::kDown};
      }
    }
    break;
  }
  if (pending && os::MonotonicNs() >= pending->deadline_ns) return GiveUp(*life, key, *pending);
  Count(counters_.query_pending);
  return std::nullopt;
}

void Queries::Cancel(std::string_view request_id) {
  const XXH128_hash_t hash = XXH3_128bits(request_id.data(), request_id.size());
  const Key key{hash.high64, hash.low64};
  const LifePin life = link_.Pin();
  std::optional<channel::RequestId> request;
  {
    const MutexLock lock(mutex_);
    const auto it = pending_.find(key);
    if (it == pending_.end()) return;
    if (life && it->second.life == life->number()) request = it->second.request;
    pending_.erase(it);
  }
  if (!request) return;
  life->control().Abandon(*request);
  link_.Nudge();
}

void Queries::OnLateAnswer(Life& life, const channel::LateAnswer& late) {
  if (late.command != wire::Command::kQuerySubmit) return;
  // A later question of the same request may have replaced this lease: then its id means nothing any more.
  ReleaseLease(life, late.answer->scalar0);
}

}  // namespace orbitkv::client
