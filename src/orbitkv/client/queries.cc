#include "orbitkv/client/queries.h"

#include <algorithm>
#include <tuple>
#include <xxhash.h>

#include "orbitkv/client/answers.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr unsigned kNumberBits = kLeaseBits;
constexpr std::uint64_t kNumberMask = (1ULL << kNumberBits) - 1;
constexpr std::uint32_t kFirstRevision = 1;
constexpr std::uint64_t kFirstRetryNs = kNsPerMs;  // after an operation was not admitted; doubles

AnswerReason ReasonOf(std::uint64_t miss) {
  switch (static_cast<wire::MissReason>(miss)) {
    case wire::MissReason::kNoNamespace: return AnswerReason::kNoNamespace;
    case wire::MissReason::kOverBudget: return AnswerReason::kOverBudget;
    case wire::MissReason::kIncomplete: return AnswerReason::kIncomplete;
    case wire::MissReason::kTooLate: return AnswerReason::kTooLate;
    case wire::MissReason::kRecompute: return AnswerReason::kRecompute;
    case wire::MissReason::kEvicted: return AnswerReason::kEvicted;
    case wire::MissReason::kNone:
    case wire::MissReason::kAbsent: break;
  }
  return AnswerReason::kAbsent;
}

std::pair<std::uint64_t, std::uint64_t> DigestOf(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

std::uint64_t Numbered(const Life& life, std::uint64_t number) {
  return (life.number() << kNumberBits) | (number & kNumberMask);
}

std::optional<std::uint64_t> OperationOf(const Life& life, TicketHandle ticket) {
  if (ticket.is_none() || TicketHandle(Numbered(life, ticket.value())) != ticket) return std::nullopt;
  return ticket.value() & kNumberMask;
}

bool TakesLease(QueryMode mode) { return mode != QueryMode::kDiscovery && mode != QueryMode::kWarmUp; }

// A Manager of version 1 has one mode, and what is in memory is its answer.
bool SpeaksOperations(const Life& life) { return life.control().abi() >= 2; }

// Flags of a look-up.
bool SpeaksFlags(const Life& life) { return life.control().abi() >= 3; }

wire::QueryHeader HeaderOf(const std::pair<std::uint64_t, std::uint64_t>& request, const Query& query) {
  wire::QueryHeader header;
  header.request_key_hi = request.first;
  header.request_key_lo = request.second;
  header.wait_ns = query.load_wait_ns;
  header.attempt = query.attempt;
  header.mode = query.mode;
  header.group = wire::kAllGroups;
  header.prefix_blocks = query.prefix_blocks;
  return header;
}

std::vector<std::byte> EncodeFor(const Life& life, const wire::QueryHeader& header, const Query& query) {
  const auto hashes = query.hashes.subspan(query.prefix_blocks);
  if (SpeaksFlags(life)) {
    wire::QueryHeader flagged = header;
    if (query.load_wait_is_compute_time) flagged.flags |= wire::kWaitIsComputeTime;
    if (query.mode == QueryMode::kDiscovery) flagged.flags |= wire::kTellTiers;
    return wire::EncodeQuery(flagged, hashes, query.views);
  }
  if (SpeaksOperations(life)) return wire::EncodeQuery(header, hashes, query.views);
  return wire::EncodeQueryV1({.request_key_hi = header.request_key_hi,
                              .request_key_lo = header.request_key_lo,
                              .attempt = header.attempt,
                              .group = 0,
                              .prefix_blocks = header.prefix_blocks},
                             hashes);
}

}  // namespace

LeaseHandle HandleOf(const Life& life, std::uint64_t lease) { return LeaseHandle(Numbered(life, lease)); }

std::optional<std::uint64_t> LeaseOf(const Life& life, LeaseHandle handle) {
  if (handle.is_none() || HandleOf(life, handle.value()) != handle) return std::nullopt;
  return handle.value() & kNumberMask;
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
  std::vector<Pending> dropped;
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
      if (!old_life) dropped.push_back(it->second);
      it = pending_.erase(it);
    }
    room = pending_.size() < kMostPending;
  }
  // Without the lock: an answer that is there already goes to OnLateAnswer from within.
  for (const Pending& pending : dropped) Drop(life, pending);
  return room;
}

void Queries::Drop(Life& life, const Pending& pending) {
  if (pending.request) life.control().Abandon(*pending.request);
  if (pending.ticket.operation == 0) return;
  tickets_.Forget(life, pending.ticket);
  // One that is not posted, or not executed, ends at the Manager by its age.
  static_cast<void>(PostUnawaited(life, wire::Command::kQueryCancel, pending.ticket, {}));
}

Status Queries::PostUnawaited(Life& life, wire::Command command, const Ticket& ticket,
                              std::span<const std::byte> args) {
  ORBITKV_ASSIGN_OR_RETURN(
      const channel::RequestId request,
      life.control().Post({.command = command,
                           .scalar0 = ticket.operation,
                           .scalar1 = ticket.revision,
                           .args = args,
                           .deadline_ns = os::DeadlineAfter(options_.call_deadline_ms * kNsPerMs)}));
  life.control().Abandon(request);
  return {};
}

Result<channel::RequestId> Queries::Send(Life& life, const Key& key, const Query& query, Pending& pending) {
  const std::vector<std::byte> args = EncodeFor(life, HeaderOf(key.first, query), query);
  // Discovery and warm-up are answered at once; so is what is in memory, which is all that is left after refusals.
  const bool operation = SpeaksOperations(life) && query.load_wait_ns > 0 && query.mode != QueryMode::kDiscovery &&
                         pending.refusals <= kMostRefusals;
  const Ticket before = pending.ticket;
  const MutexLock lock(submit_mutex_);
  if (!operation) {
    pending.ticket = {};
  } else if (pending.ticket.operation != 0) {
    ++pending.ticket.revision;
  } else {
    pending.ticket = {tickets_.NewOperation(life), kFirstRevision};
  }
  pending.word = life.control().completions();
  auto posted = life.control().Post({.command = wire::Command::kQuerySubmit,
                                     .scalar0 = pending.ticket.operation,
                                     .scalar1 = pending.ticket.revision,
                                     .args = args,
                                     .deadline_ns = pending.deadline_ns});
  if (!posted) pending.ticket = before;
  return posted;
}

Result<channel::RequestId> Queries::SendClaim(Life& life, const Key& key, const ClaimRequest& claim,
                                              std::uint64_t deadline_ns) {
  // A claim is of one revision, also when it names no operation, and clients prepare no other one.
  const wire::ClaimRequest request{.consumer_key_hi = key.first.first,
                                   .consumer_key_lo = key.first.second,
                                   .operation = OperationOf(life, claim.ticket).value_or(0),
                                   .revision = kFirstRevision};
  const std::vector<std::byte> args = wire::EncodeClaim(request);
  return life.control().Post({.command = wire::Command::kQueryClaim, .args = args, .deadline_ns = deadline_ns});
}

std::optional<Answer> Queries::SendIfDue(Life& life, const Key& key, const Question& question, Pending& pending) {
  const std::uint64_t now_ns = os::MonotonicNs();
  const bool replaces = pending.loading && pending.subject != question.subject;
  if (pending.request || (pending.loading && !replaces) || now_ns < pending.retry_ns) return std::nullopt;
  if (replaces) {
    // A revision keeps its mode; another mode is another operation.
    if (pending.subject.mode != question.subject.mode) {
      Drop(life, pending);
      pending.ticket = {};
    }
    tickets_.Forget(life, pending.ticket);
    pending.loading = false;
  }
  pending.subject = question.subject;
  pending.load_end_ns = now_ns + question.load_wait_ns() + options_.query_deadline_ms * kNsPerMs;
  const auto posted = question.claim != nullptr ? SendClaim(life, key, *question.claim, pending.deadline_ns)
                                                : Send(life, key, *question.query, pending);
  if (posted) {
    pending.request = *posted;
  } else if (posted.error().code != Code::kBusy) {
    Forget(key);
    link_.ReportFailure(posted.error());
    return Answer{0, {}, life.lost() ? AnswerReason::kDown : AnswerReason::kRefused};
  }
  Store(key, pending);
  return std::nullopt;
}

Answer Queries::Found(Life& life, const TicketEnd& end, const Subject& subject) {
  const bool leased = TakesLease(subject.mode);
  if (!IsPossible(end, subject.hash_count, leased)) {
    Count(counters_.bad_answers);
    GiveLeaseBack(life, end.lease);
    return {0, {}, AnswerReason::kRefused};
  }
  if (end.found == 0) return {0, {}, ReasonOf(end.reason), {}, end.tiers};
  Count(counters_.query_found_blocks, end.found);
  // Version 1 knows no "all or nothing": what is not all is not wanted.
  if (subject.mode == QueryMode::kFullPrefix && end.found < subject.hash_count) {
    GiveLeaseBack(life, end.lease);
    return {0, {}, AnswerReason::kIncomplete};
  }
  // Why there is not more is said of what could be there.
  const AnswerReason told = ReasonOf(end.reason);
  const bool less = told == AnswerReason::kTooLate || told == AnswerReason::kRecompute;
  const AnswerReason reason = less ? told : AnswerReason::kFound;
  return {end.found, leased ? HandleOf(life, end.lease) : LeaseHandle(), reason, end.boundaries, end.tiers, end.loaded};
}

Queries::Told Queries::ReadSubmit(Life& life, const channel::Answer& answer, const Pending& pending, Kind kind) {
  using What = Told::What;
  switch (answer.status) {
    case wire::AnswerStatus::kOk: break;
    case wire::AnswerStatus::kTimedOut:
      Count(counters_.query_timeouts);
      return {What::kAnswer, {0, {}, AnswerReason::kTimedOut}};
    case wire::AnswerStatus::kNotYet:
      if (kind == Kind::kClaim) return {What::kAnswer, {0, {}, AnswerReason::kLoading}};
      if (pending.ticket.operation != 0) return {What::kLoading, {}};
      return {What::kAnswer, {0, {}, AnswerReason::kRefused}};
    case wire::AnswerStatus::kBusy:
    case wire::AnswerStatus::kStale:  // a larger number came first
      if (pending.ticket.operation != 0) return {What::kNotAdmitted, {}};
      [[fallthrough]];
    default:
      return {What::kAnswer, {0, {}, kind == Kind::kClaim ? AnswerReason::kNotAdmitted : AnswerReason::kRefused}};
  }
  const bool tells_tiers = kind == Kind::kDiscovery && SpeaksFlags(life);
  const auto end = tells_tiers ? ReadDiscovered(answer, pending.subject.hash_count) : ReadFound(answer);
  if (!end) {
    Count(counters_.bad_answers);
    GiveLeaseBack(life, answer.scalar0);
    return {What::kAnswer, {0, {}, AnswerReason::kRefused}};
  }
  return {What::kAnswer, Found(life, *end, pending.subject)};
}

std::optional<Queries::Told> Queries::ListenForTicket(Life& life, Pending& pending, std::uint64_t until_ns) {
  using What = Told::What;
  auto end = tickets_.Wait(life, pending.ticket, std::min(until_ns, pending.load_end_ns), false);
  if (!end && os::MonotonicNs() >= pending.load_end_ns) end = tickets_.Wait(life, pending.ticket, until_ns, true);
  if (!end) return std::nullopt;
  switch (end->state) {
    case wire::TicketState::kReady: return Told{What::kAnswer, Found(life, *end, pending.subject)};
    case wire::TicketState::kTimedOut: return Told{What::kAnswer, {0, {}, AnswerReason::kTimedOut}};
    case wire::TicketState::kCancelled: return Told{What::kAnswer, {0, {}, AnswerReason::kRefused}};
    default: return Told{What::kNotAdmitted, {}};
  }
}

std::optional<Queries::Told> Queries::Listen(Life& life, const Key& key, Pending& pending, std::uint64_t until_ns) {
  if (pending.loading) return ListenForTicket(life, pending, until_ns);
  if (!pending.request) return std::nullopt;
  const auto answer = life.control().Wait(*pending.request, until_ns);
  if (answer) return ReadSubmit(life, *answer, pending, key.second);
  if (answer.error().code == Code::kTimedOut) return std::nullopt;
  link_.ReportFailure(answer.error());
  return Told{Told::What::kAnswer, {0, {}, AnswerReason::kDown}};
}

void Queries::Refused(Life& life, const Key& key, Pending& pending, std::uint64_t now_ns) {
  Count(counters_.queries_not_admitted);
  tickets_.Forget(life, pending.ticket);
  pending.ticket = {};
  pending.loading = false;
  const bool last = ++pending.refusals > kMostRefusals;
  const std::uint64_t pause = kFirstRetryNs << pending.refusals;
  pending.retry_ns = last ? 0 : now_ns + pause;
  pending.deadline_ns = now_ns + (last ? 0 : pause) + options_.query_deadline_ms * kNsPerMs;
  Store(key, pending);
}

bool Queries::IsHopeless(const Pending& pending) const {
  const std::uint64_t now = os::MonotonicNs();
  if (!pending.loading) return now >= pending.deadline_ns;
  return IsSilent(now) || (tickets_.asked_since_ns() == 0 && now >= pending.deadline_ns);
}

bool Queries::IsSilent(std::uint64_t now_ns) const {
  const std::uint64_t since = tickets_.asked_since_ns();
  return since != 0 && now_ns >= since + options_.query_deadline_ms * kNsPerMs;
}

Answer Queries::GiveUp(Life& life, const Key& key, const Pending& pending) {
  Forget(key);
  Drop(life, pending);
  Count(counters_.query_timeouts);
  // A Manager that says that it still loads is late with that, not silent.
  if (!pending.loading || IsSilent(os::MonotonicNs())) link_.ReportMissedDeadline();
  return {0, {}, AnswerReason::kTimedOut};
}

std::optional<Answer> Queries::Put(const Question& question, std::uint64_t wait_ns) {
  Count(counters_.queries);
  const LifePin life = link_.Pin();
  if (!life || link_.state() != State::kUp) {
    Count(counters_.query_down);
    return Answer{0, {}, AnswerReason::kDown};
  }
  if (!SpeaksOperations(*life) && !question.fits_version_1()) {
    return Answer{0, {}, question.claim != nullptr ? AnswerReason::kNotAdmitted : AnswerReason::kRefused};
  }
  if (question.claim != nullptr && !question.claim->ticket.is_none() && !OperationOf(*life, question.claim->ticket)) {
    return Answer{0, {}, AnswerReason::kNotAdmitted};  // it went with the Manager
  }
  const Key key{DigestOf(question.claim != nullptr ? question.claim->consumer : question.query->request_id),
                question.kind()};
  const std::uint64_t now = os::MonotonicNs();
  const std::uint64_t until = now + wait_ns;
  std::optional<Pending> pending = Find(key, *life);
  // Bounded: an answer to another question, loading, and a last refusal lead to one more round each.
  for (int round = 0; round < 4; ++round) {
    if (!pending) {
      if (!MakeRoom(*life, now)) return Answer{0, {}, AnswerReason::kRefused};
      pending = Pending{.life = life->number(), .deadline_ns = now + options_.query_deadline_ms * kNsPerMs};
    }
    if (auto failed = SendIfDue(*life, key, question, *pending)) return failed;
    const auto told = Listen(*life, key, *pending, until);
    if (!told) break;
    if (told->what == Told::What::kAnswer) {
      Forget(key);
      if (pending->subject == question.subject || told->answer.reason == AnswerReason::kDown) return told->answer;
      pending.reset();
      continue;
    }
    pending->request.reset();
    if (told->what == Told::What::kNotAdmitted) {
      Refused(*life, key, *pending, os::MonotonicNs());
      continue;
    }
    Count(counters_.queries_loading);
    pending->loading = true;
    pending->deadline_ns = pending->load_end_ns + options_.query_deadline_ms * kNsPerMs;
    tickets_.Add(*life, pending->ticket, pending->word);
    Store(key, *pending);
  }
  if (pending && IsHopeless(*pending)) return GiveUp(*life, key, *pending);
  Count(counters_.query_pending);
  // Between two tries to be admitted the Manager is as busy with it as when it loads.
  if (pending && (pending->loading || pending->retry_ns != 0)) return Answer{0, {}, AnswerReason::kLoading};
  return std::nullopt;
}

std::optional<Answer> Queries::Ask(const Query& query, std::uint64_t wait_ns) {
  if (query.hashes.size() <= query.prefix_blocks) return Answer{0, {}, AnswerReason::kAbsent};
  if (query.hashes.size() > wire::kMaxHashesPerQuery) return Answer{0, {}, AnswerReason::kRefused};
  return Put({.query = &query, .subject = SubjectOf(query)}, wait_ns);
}

std::optional<Answer> Queries::Claim(const ClaimRequest& claim, std::uint64_t wait_ns) {
  return Put({.claim = &claim, .subject = {.hash_count = claim.most_blocks}}, wait_ns);
}

Queries::Subject Queries::SubjectOf(const Query& query) {
  return {query.prefix_blocks, static_cast<std::uint32_t>(query.hashes.size()) - query.prefix_blocks, query.attempt,
          query.mode};
}

Result<LifePin> Queries::Prepared(const Query& query) {
  if (query.hashes.size() <= query.prefix_blocks || query.hashes.size() > wire::kMaxHashesPerQuery) {
    return Fail(Code::kInvalid, "give 1 to 1048576 hashes behind the prefix", query.hashes.size());
  }
  LifePin life = link_.Pin();
  if (!life || link_.state() != State::kUp) return Fail(Code::kUnavailable, "the Manager is away");
  if (!SpeaksOperations(*life)) return Fail(Code::kUnsupported, "the Manager is of an older version");
  return life;
}

Result<TicketHandle> Queries::Prepare(const Query& query, std::string_view consumer) {
  ORBITKV_ASSIGN_OR_RETURN(const LifePin life, Prepared(query));
  wire::QueryHeader header = HeaderOf(DigestOf(query.request_id), query);
  header.mode = QueryMode::kPrepare;
  std::tie(header.consumer_key_hi, header.consumer_key_lo) = DigestOf(consumer);
  const std::vector<std::byte> args = EncodeFor(*life, header, query);
  const MutexLock lock(submit_mutex_);
  const Ticket ticket{tickets_.NewOperation(*life), kFirstRevision};
  // One that was not admitted shows at the claim.
  ORBITKV_TRY(PostUnawaited(*life, wire::Command::kQuerySubmit, ticket, args));
  return TicketHandle(Numbered(*life, ticket.operation));
}

void Queries::CancelPrepared(TicketHandle ticket) {
  const LifePin life = link_.Pin();
  const auto operation = life ? OperationOf(*life, ticket) : std::nullopt;
  if (!operation) return;
  Drop(*life, {.ticket = {*operation, kFirstRevision}});
  link_.Nudge();
}

Status Queries::WarmUp(const Query& query) {
  ORBITKV_ASSIGN_OR_RETURN(const LifePin life, Prepared(query));
  wire::QueryHeader header = HeaderOf(DigestOf(query.request_id), query);
  header.mode = QueryMode::kWarmUp;
  header.wait_ns = 0;
  return PostUnawaited(*life, wire::Command::kQuerySubmit, {}, EncodeFor(*life, header, query));
}

void Queries::Cancel(std::string_view request_id) {
  const LifePin life = link_.Pin();
  for (const Kind kind : {Kind::kRead, Kind::kDiscovery}) {
    std::optional<Pending> pending;
    {
      const MutexLock lock(mutex_);
      const auto it = pending_.find({DigestOf(request_id), kind});
      if (it == pending_.end()) continue;
      if (life && it->second.life == life->number()) pending = it->second;
      pending_.erase(it);
    }
    if (!pending) continue;
    Drop(*life, *pending);
    link_.Nudge();
  }
}

void Queries::OnLateAnswer(Life& life, const channel::LateAnswer& late) {
  if (late.command != wire::Command::kQuerySubmit && late.command != wire::Command::kQueryClaim) return;
  // A later question of the same request may have replaced this lease: then its id means nothing any more.
  GiveLeaseBack(life, late.answer->scalar0);
}

}  // namespace orbitkv::client
