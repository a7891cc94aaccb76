#include "orbitkv/manager/commands.h"

#include <algorithm>
#include <limits>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::manager {
namespace {

void Refuse(CommandAnswer& answer, const Error& error) { answer.status = wire::StatusOf(error.code); }

// The low half of a scalar that holds a 32-bit number; false when the high half is in use.
bool Narrow(std::uint64_t scalar, std::uint32_t& out) {
  if (scalar > std::numeric_limits<std::uint32_t>::max()) return false;
  out = static_cast<std::uint32_t>(scalar);
  return true;
}

wire::AnswerStatus StatusOfPlan(service::PlanStatus status) {
  switch (status) {
    case service::PlanStatus::kArmed: return wire::AnswerStatus::kOk;
    case service::PlanStatus::kNotYet: return wire::AnswerStatus::kNotYet;
    case service::PlanStatus::kGone: return wire::AnswerStatus::kGone;
    case service::PlanStatus::kCorrupt: return wire::AnswerStatus::kCorrupt;
  }
  return wire::AnswerStatus::kInvalid;
}

}  // namespace

CommandRunner::Progress CommandRunner::Start(const CommandRequest& request, std::uint64_t now_ns,
                                             CommandAnswer& answer) {
  answer = {};
  cost_ = 1;
  switch (request.command) {
    case wire::Command::kPing:
      answer.scalar0 = request.scalar0;
      answer.scalar1 = now_ns;
      break;
    case wire::Command::kQuerySubmit: return Query(request, now_ns, answer);
    case wire::Command::kPublishReserve: return Reserve(request, now_ns, answer);
    case wire::Command::kPublishCommit: return Commit(request, now_ns, answer);
    case wire::Command::kPublishAbort:
      if (auto done = service_.PublishAbort(session_, ReservationId(request.scalar0), now_ns); !done) {
        Refuse(answer, done.error());
      }
      break;
    case wire::Command::kRestoreBegin: return Begin(request, now_ns, answer);
    case wire::Command::kRestorePlan: return Plan(request, now_ns, answer);
    case wire::Command::kRestoreEnd: End(request, now_ns, answer); break;
    case wire::Command::kRelease: Release(request, now_ns, answer); break;
    case wire::Command::kQueryPoll: Poll(request, now_ns, answer); break;
    case wire::Command::kQueryClaim: Claim(request, now_ns, answer); break;
    case wire::Command::kQueryCancel: Cancel(request, now_ns, answer); break;
  }
  return Progress::kDone;
}

CommandRunner::Progress CommandRunner::Continue(std::uint64_t deadline_ns, std::uint64_t now_ns,
                                                CommandAnswer& answer) {
  answer = {};
  if (deadline_ns <= now_ns && running_ != wire::Command::kPublishCommit) {
    Cancel(now_ns);
    answer.status = wire::AnswerStatus::kTimedOut;
    return Progress::kDone;
  }
  switch (running_) {
    case wire::Command::kQuerySubmit: return QueryStep(service_.ContinueQuery(session_, now_ns), answer);
    case wire::Command::kPublishReserve:
      return ReserveStep(service_.ContinueReserve(session_, now_ns, entries_), answer);
    case wire::Command::kPublishCommit: return CommitStep(service_.ContinueCommit(session_, now_ns, outcomes_), answer);
    case wire::Command::kRestoreBegin: return BeginStep(service_.ContinueBegin(session_, now_ns), answer);
    case wire::Command::kRestorePlan: return PlanStep(service_.ContinuePlan(session_, now_ns, plan_), answer);
    default: break;
  }
  ORBITKV_CHECK(false);
  return Progress::kDone;
}

void CommandRunner::Cancel(std::uint64_t now_ns) { service_.CancelStep(session_, now_ns); }

CommandRunner::Progress CommandRunner::Query(const CommandRequest& request, std::uint64_t now_ns,
                                             CommandAnswer& answer) {
  const auto query = abi_ == 1 ? wire::DecodeQueryV1(request.args) : wire::DecodeQuery(request.args, abi_);
  service::Ticket ticket;
  if (abi_ > 1) ticket.operation = request.scalar0;
  if (!query || (abi_ > 1 && !Narrow(request.scalar1, ticket.revision))) {
    Refuse(answer, query ? Error{} : query.error());
    return Progress::kDone;
  }
  running_ = wire::Command::kQuerySubmit;
  cost_ = Cost(query->header.hash_count);
  return QueryStep(service_.StartQuery(session_, *query, now_ns, ticket), answer);
}

CommandRunner::Progress CommandRunner::QueryStep(const Result<service::QueryOutcome>& outcome, CommandAnswer& answer) {
  if (!outcome) {
    Refuse(answer, outcome.error());
    return Progress::kDone;
  }
  if (outcome->more) return Progress::kMore;
  if (outcome->loading) {
    answer.status = wire::AnswerStatus::kNotYet;
    return Progress::kDone;
  }
  answer.scalar0 = outcome->lease.value();
  answer.scalar1 = outcome->found_blocks | static_cast<std::uint64_t>(outcome->miss_reason) << 32U;
  if (abi_ == 1 && !outcome->boundaries.empty()) {
    // This session cannot be told where it may stop: it is offered nothing that it could take a part of.
    static_cast<void>(service_.Release(session_, wire::ReleaseKind::kLease, answer.scalar0, 0));
    answer.scalar0 = 0;
    answer.scalar1 = static_cast<std::uint64_t>(wire::MissReason::kAbsent) << 32U;
    return Progress::kDone;
  }
  if (outcome->tiers) {
    payload_ = wire::EncodeDiscovery(outcome->boundaries, *outcome->tiers);
    answer.payload = payload_;
    return Progress::kDone;
  }
  boundaries_ = outcome->boundaries;
  answer.payload = std::as_bytes(std::span(boundaries_));
  return Progress::kDone;
}

void CommandRunner::Poll(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer) {
  const auto poll = wire::DecodePoll(request.args);
  if (!poll) return Refuse(answer, poll.error());
  if (auto done = service_.PollQueries(session_, *poll, now_ns, polled_, boundaries_); !done) {
    return Refuse(answer, done.error());
  }
  payload_ = wire::EncodePollAnswer(polled_, boundaries_);
  answer.scalar0 = polled_.size();
  answer.payload = payload_;
}

void CommandRunner::Claim(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer) {
  const auto claim = wire::DecodeClaim(request.args);
  if (!claim) return Refuse(answer, claim.error());
  static_cast<void>(QueryStep(service_.ClaimQuery(session_, *claim, now_ns), answer));
}

void CommandRunner::Cancel(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer) {
  service::Ticket ticket{.operation = request.scalar0};
  if (!Narrow(request.scalar1, ticket.revision)) return Refuse(answer, Error{});
  if (auto done = service_.CancelQuery(session_, ticket, now_ns); !done) Refuse(answer, done.error());
}

CommandRunner::Progress CommandRunner::Reserve(const CommandRequest& request, std::uint64_t now_ns,
                                               CommandAnswer& answer) {
  const auto reserve = wire::DecodeReserve(request.args);
  if (!reserve) {
    Refuse(answer, reserve.error());
    return Progress::kDone;
  }
  running_ = wire::Command::kPublishReserve;
  cost_ = Cost(reserve->header.block_count);
  return ReserveStep(service_.StartReserve(session_, *reserve, now_ns, entries_), answer);
}

CommandRunner::Progress CommandRunner::ReserveStep(const Result<service::ReserveOutcome>& outcome,
                                                   CommandAnswer& answer) {
  if (!outcome) {
    Refuse(answer, outcome.error());
    return Progress::kDone;
  }
  if (outcome->more) return Progress::kMore;
  answer.scalar0 = outcome->reservation.value();
  answer.payload = std::as_bytes(std::span(entries_));
  return Progress::kDone;
}

CommandRunner::Progress CommandRunner::Commit(const CommandRequest& request, std::uint64_t now_ns,
                                              CommandAnswer& answer) {
  const auto commit = wire::DecodeCommit(request.args);
  if (!commit) {
    Refuse(answer, commit.error());
    return Progress::kDone;
  }
  running_ = wire::Command::kPublishCommit;
  cost_ = Cost(commit->entries.size());
  return CommitStep(service_.StartCommit(session_, ReservationId(request.scalar0), *commit, now_ns, outcomes_), answer);
}

CommandRunner::Progress CommandRunner::CommitStep(const Result<service::CommitProgress>& progress,
                                                  CommandAnswer& answer) {
  if (!progress) {
    Refuse(answer, progress.error());
    return Progress::kDone;
  }
  if (progress->more) return Progress::kMore;
  answer.scalar0 = progress->stored;
  answer.payload = std::as_bytes(std::span(outcomes_));
  return Progress::kDone;
}

CommandRunner::Progress CommandRunner::Begin(const CommandRequest& request, std::uint64_t now_ns,
                                             CommandAnswer& answer) {
  const auto begin = wire::DecodeBegin(request.args);
  if (!begin) {
    Refuse(answer, begin.error());
    return Progress::kDone;
  }
  running_ = wire::Command::kRestoreBegin;
  cost_ = Cost(begin->header.boundary_blocks);
  return BeginStep(service_.StartBegin(session_, LeaseId(request.scalar0), *begin, GrantId(request.scalar1), now_ns),
                   answer);
}

CommandRunner::Progress CommandRunner::BeginStep(const Result<service::BeginProgress>& progress,
                                                 CommandAnswer& answer) {
  if (progress && progress->more) return Progress::kMore;
  if (!progress) Refuse(answer, progress.error());
  return Progress::kDone;
}

CommandRunner::Progress CommandRunner::Plan(const CommandRequest& request, std::uint64_t now_ns,
                                            CommandAnswer& answer) {
  std::uint32_t rank = 0;
  if (!Narrow(request.scalar1, rank)) {
    Refuse(answer, Error{});
    return Progress::kDone;
  }
  running_ = wire::Command::kRestorePlan;
  return PlanStep(service_.StartPlan(session_, GrantId(request.scalar0), Rank(rank), now_ns, plan_), answer);
}

CommandRunner::Progress CommandRunner::PlanStep(const Result<service::PlanProgress>& progress, CommandAnswer& answer) {
  if (!progress) {
    Refuse(answer, progress.error());
    return Progress::kDone;
  }
  cost_ = Cost(plan_.size());
  if (progress->more) return Progress::kMore;
  answer.status = StatusOfPlan(progress->status);
  if (progress->status != service::PlanStatus::kArmed) return Progress::kDone;
  answer.scalar0 = plan_.size();
  answer.payload = std::as_bytes(std::span(plan_));
  if (abi_ > 1) return Progress::kDone;
  plan_v1_.clear();
  for (const wire::PlanEntry& entry : plan_) {
    plan_v1_.push_back({.offset = entry.offset,
                        .generation = entry.generation,
                        .slot_checksum = entry.slot_checksum,
                        .slot_bytes = entry.slot_bytes,
                        .slab = entry.slab});
  }
  answer.payload = std::as_bytes(std::span(plan_v1_));
  return Progress::kDone;
}

std::uint32_t CommandRunner::Cost(std::size_t blocks) const {
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(std::max<std::size_t>(blocks, 1), service_.limits().step_hashes));
}

void CommandRunner::End(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer) {
  const auto rank = static_cast<std::uint32_t>(request.scalar1);
  const auto result = static_cast<std::uint32_t>(request.scalar1 >> 32U);
  if (result < static_cast<std::uint32_t>(wire::EndResult::kOk) ||
      result > static_cast<std::uint32_t>(wire::EndResult::kFailed)) {
    return Refuse(answer, Error{});
  }
  mismatches_.clear();
  // An end without mismatches may come without a header.
  if (!request.args.empty() && abi_ == 1) {
    const auto end = wire::DecodeEndV1(request.args);
    if (!end) return Refuse(answer, end.error());
    for (const std::uint32_t index : end->indices) mismatches_.push_back({.index = index});
  } else if (!request.args.empty()) {
    const auto end = wire::DecodeEnd(request.args);
    if (!end) return Refuse(answer, end.error());
    mismatches_.assign(end->mismatches.begin(), end->mismatches.end());
  }
  if (auto done = service_.RestoreEnd(session_, GrantId(request.scalar0), Rank(rank),
                                      static_cast<wire::EndResult>(result), mismatches_, now_ns);
      !done) {
    Refuse(answer, done.error());
  }
}

void CommandRunner::Release(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer) {
  if (request.scalar0 != static_cast<std::uint64_t>(wire::ReleaseKind::kLease) &&
      request.scalar0 != static_cast<std::uint64_t>(wire::ReleaseKind::kGrant)) {
    return Refuse(answer, Error{});
  }
  if (auto done = service_.Release(session_, static_cast<wire::ReleaseKind>(request.scalar0), request.scalar1, now_ns);
      !done) {
    Refuse(answer, done.error());
  }
}

}  // namespace orbitkv::manager
