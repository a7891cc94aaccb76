#include "orbitkv/client/publisher.h"

#include <algorithm>
#include <utility>

#include "orbitkv/base/log.h"
#include "orbitkv/client/answers.h"
#include "orbitkv/client/time_point.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
// One reservation: enough to keep the copy threads busy, small enough to leave the session's budget to others.
constexpr std::uint64_t kPieceBytes = 64ULL << 20U;
constexpr std::size_t kPieceBlocks = 512;
constexpr std::uint64_t kDrainLookNs = 100 * kNsPerMs;  // between two looks at whether a copy can still be drained

// Of each run the group's block before its first one.
Result<std::vector<state::BlockHash>> ParentsOf(const state::RecoveryContract& contract,
                                                std::span<const state::GroupDemand> runs, const HashChain& chain,
                                                const state::BlockHash& before_chain) {
  std::vector<state::BlockHash> parents;
  for (const state::GroupDemand& run : runs) {
    const std::uint32_t begin = run.first_block * contract.ratio(run.group);
    if (begin < chain.first_position) {
      return Fail(Code::kInvalid, "a block begins before the hashes; give all hashes of it", run.group,
                  run.first_block);
    }
    parents.push_back(begin == chain.first_position ? before_chain : chain.hashes[begin - chain.first_position - 1]);
  }
  return parents;
}

}  // namespace

Status Publisher::Start() {
  return thread_.Start("orbitkv-save", [this] { Run(); });
}

Status Publisher::Stop(std::uint64_t drain_deadline_ns) {
  {
    const MutexLock lock(mutex_);
    while (!stopping_ && !AllDone() && link_.state() == State::kUp && os::MonotonicNs() < drain_deadline_ns) {
      sources_.WaitUntil(mutex_, TimePoint(drain_deadline_ns));
    }
    stopping_ = true;
    give_up_ns_ = os::DeadlineAfter(options_.drain_patience_ms * kNsPerMs);
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      const auto next = std::next(it);
      it->second->cancelled = true;
      if (it->second->stage == Stage::kQueued) Finish(it->first, "the client was closed");
      it = next;
    }
    work_.NotifyAll();
    sources_.NotifyAll();
  }
  thread_.Join();
  const MutexLock lock(mutex_);
  const auto undrained =
      std::ranges::count(jobs_, Stage::kUndrained, [](const auto& entry) { return entry.second->stage; });
  if (undrained == 0) return {};
  return Fail(Code::kIo, kUndrainedText, static_cast<std::uint64_t>(undrained));
}

bool Publisher::GivesUp() const {
  const MutexLock lock(mutex_);
  return stopping_ && os::MonotonicNs() >= give_up_ns_;
}

Result<JobId> Publisher::Submit(const EngineLayout& layout, const PublishRequest& request) {
  const HashChain chain{request.hashes, request.first_depth};
  std::vector<state::GroupDemand> runs(request.runs.begin(), request.runs.end());
  if (runs.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(runs, layout.WholeBlocks(chain));
  }
  ORBITKV_ASSIGN_OR_RETURN(JobBlocks blocks, layout.Name(chain, runs, {request.block_ids, request.generations}));
  ORBITKV_ASSIGN_OR_RETURN(std::vector<state::BlockHash> parents,
                           ParentsOf(layout.contract(), blocks.runs, chain, request.parent));
  const MutexLock lock(mutex_);
  if (stopping_) return Fail(Code::kCancelled, "the client is closed");
  if (jobs_.size() >= options_.max_queued_saves) {
    Count(counters_.publish_jobs_refused);
    return Fail(Code::kBusy, "too many saves are waiting; this one is dropped", jobs_.size());
  }
  auto id = completions_.Admit();
  if (!id) {
    Count(counters_.publish_jobs_refused);
    return id;
  }
  auto job = std::make_unique<Job>();
  job->id = *id;
  job->layout = &layout;
  job->blocks = std::move(blocks);
  job->parents = std::move(parents);
  job->request = request;
  job->request.hashes = {};
  job->request.block_ids = {};
  job->request.generations = {};
  job->request.runs = {};
  job->accepted_ns = os::MonotonicNs();
  job->completion.job = *id;
  job->completion.kind = JobKind::kPublish;
  job->completion.tag = request.tag;
  job->completion.outcomes.assign(job->blocks.size(), Byte(Outcome::kLost));
  jobs_.emplace(id->value(), std::move(job));
  Count(counters_.publish_jobs);
  work_.NotifyOne();
  return *id;
}

bool Publisher::AllDone() const {
  return std::ranges::all_of(jobs_, [](const auto& entry) { return entry.second->stage == Stage::kUndrained; });
}

bool Publisher::Cancel(JobId id) {
  const MutexLock lock(mutex_);
  const auto it = jobs_.find(id.value());
  if (it == jobs_.end()) return false;
  Job& job = *it->second;
  job.cancelled = true;
  const bool untouched = !job.read && job.stage != Stage::kCopying;
  if (job.stage == Stage::kQueued) Finish(it->first, "cancelled");
  return untouched;
}

bool Publisher::WaitSourcesFree(std::span<const JobId> ids, std::uint64_t deadline_ns) {
  const MutexLock lock(mutex_);
  for (const JobId id : ids) {
    for (;;) {
      const auto it = jobs_.find(id.value());
      if (it == jobs_.end()) break;
      Job& job = *it->second;
      job.cancelled = true;
      if (job.stage == Stage::kQueued) {
        Finish(it->first, "its pages were taken back before they were saved");
        break;
      }
      if (job.stage == Stage::kUndrained) return false;
      // A job that reserves sees the mark before it reads a page.
      if (job.stage != Stage::kCopying) break;
      if (os::MonotonicNs() >= deadline_ns) return false;
      sources_.WaitUntil(mutex_, TimePoint(deadline_ns));
    }
  }
  return true;
}

void Publisher::Wake() {
  const MutexLock lock(mutex_);
  work_.NotifyAll();
  sources_.NotifyAll();
}

void Publisher::Finish(std::uint64_t id, const char* error) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return;
  Completion completion = std::move(it->second->completion);
  if (it->second->cancelled) Count(counters_.publish_jobs_cancelled);
  jobs_.erase(it);
  std::uint64_t stored = 0;
  std::uint64_t there = 0;
  for (const std::uint8_t outcome : completion.outcomes) {
    stored += outcome == Byte(Outcome::kStored) ? 1 : 0;
    there += outcome == Byte(Outcome::kAlreadyThere) ? 1 : 0;
  }
  Count(counters_.stored_blocks, stored);
  Count(counters_.already_there_blocks, there);
  Count(counters_.lost_blocks, completion.outcomes.size() - stored - there);
  Count(counters_.published_bytes, completion.bytes);
  completion.ok = stored + there == completion.outcomes.size();
  if (!completion.ok) completion.error = error;
  completions_.Push(std::move(completion));
  sources_.NotifyAll();
}

void Publisher::DropStale(std::uint64_t now_ns) {
  const std::uint64_t age = options_.save_max_age_ms * kNsPerMs;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto next = std::next(it);
    if (it->second->stage == Stage::kQueued && now_ns - it->second->accepted_ns >= age) {
      Count(counters_.publish_jobs_stale);
      Finish(it->first, "dropped: the Manager was away for too long");
    }
    it = next;
  }
}

Publisher::Job* Publisher::NextJob() {
  const MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return nullptr;
    const auto first = std::ranges::find_if(jobs_, [](const auto& e) { return e.second->stage == Stage::kQueued; });
    if (first == jobs_.end()) {
      work_.Wait(mutex_);
      continue;
    }
    if (link_.state() == State::kUp) {
      first->second->stage = Stage::kReserving;
      return first->second.get();
    }
    const std::uint64_t now = os::MonotonicNs();
    const std::uint64_t stale = first->second->accepted_ns + options_.save_max_age_ms * kNsPerMs;
    if (now >= stale) {
      DropStale(now);
    } else {
      work_.WaitUntil(mutex_, TimePoint(stale));
    }
  }
}

void Publisher::Run() {
  while (Job* job = NextJob()) RunJob(*job);
}

void Publisher::RunJob(Job& job) {
  Status status;
  {
    LifePin life = link_.Pin();
    auto session = life ? link_.OpenPublish(life) : Fail(Code::kUnavailable, "the Manager is away");
    status = session ? SavePieces(life, **session, job) : std::unexpected(session.error());
    if (job.undrained) life.KeepForEver();
  }
  if (!status) link_.ReportFailure(status.error());
  EndJob(job, status);
}

Status Publisher::SavePieces(const LifePin& life, channel::ClientSession& session, Job& job) {
  const auto registered = link_.registered();
  Piece piece{.job = &job};
  for (; piece.run < job.blocks.runs.size(); ++piece.run) {
    std::size_t most =
        std::min<std::size_t>(kPieceBlocks, std::max<std::uint64_t>(1, kPieceBytes / piece.layout().slot_bytes()));
    if (registered && registered->max_reserve_blocks > 0) {
      most = std::min<std::size_t>(most, registered->max_reserve_blocks);
    }
    const std::size_t blocks = job.blocks.runs[piece.run].block_count;
    for (piece.before = 0; piece.before < blocks; piece.before += piece.count, piece.first += piece.count) {
      piece.count = std::min(most, blocks - piece.before);
      ORBITKV_ASSIGN_OR_RETURN(const bool all, SavePiece(life, session, piece));
      if (!all) return {};
    }
  }
  return {};
}

void Publisher::EndJob(Job& job, const Status& status) {
  const MutexLock lock(mutex_);
  if (job.undrained) {
    job.stage = Stage::kUndrained;
    Count(counters_.undrained_jobs);
    log::Error("client", "a copy out of the engine's pages cannot be drained name={} job={}; its pages are lost",
               options_.name, job.id.value());
    sources_.NotifyAll();
    return;
  }
  if (job.stale) {
    Count(counters_.jobs_with_stale_pages);
    std::ranges::replace(job.completion.outcomes, Byte(Outcome::kLost), Byte(Outcome::kStale));
  }
  job.stage = Stage::kSourcesFree;
  Finish(job.id.value(), status ? (job.cancelled ? "cancelled" : "no room now") : status.error().text);
}

Result<bool> Publisher::SavePiece(const LifePin& life, channel::ClientSession& session, const Piece& piece) {
  if (!IsCurrent(piece)) return std::unexpected(FailStale(piece).error());
  ReservationId reservation;
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<wire::ReserveEntry> entries, Reserve(life, session, piece, &reservation));
  bool all_placed = true;
  std::size_t slots = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto status = static_cast<wire::ReserveStatus>(entries[i].status);
    if (status == wire::ReserveStatus::kHaveIt) SetOutcome(*piece.job, piece.first + i, Outcome::kAlreadyThere);
    slots += status == wire::ReserveStatus::kSlot ? 1 : 0;
    all_placed = all_placed && status != wire::ReserveStatus::kNotNow;
  }
  if (slots == 0) return all_placed;
  const auto abort = [&] {
    if (!reservation.is_none() && !life->lost()) {
      (void)session.PostNeverLost(wire::Command::kPublishAbort, reservation.value(), 0);
    }
  };
  if (!EnterCopying(*piece.job)) {
    abort();
    return false;
  }
  auto commits = CopyPiece(life, piece, entries);
  // A copy that cannot be drained keeps its pages and its slots: neither is ever given to somebody else.
  if (piece.job->undrained) return std::unexpected(commits.error());
  LeaveCopying(*piece.job, piece.first + piece.count == piece.job->blocks.size());
  Status committed;
  if (!commits) {
    committed = std::unexpected(commits.error());
  } else {
    committed = Commit(session, piece, reservation, *commits);
  }
  // Slots that were not filled go back; an abort leaves committed blocks alone.
  if (!committed || commits->size() < slots) abort();
  if (!committed) return std::unexpected(committed.error());
  return all_placed;
}

bool Publisher::EnterCopying(Job& job) {
  const MutexLock lock(mutex_);
  if (job.cancelled || stopping_) return false;
  job.stage = Stage::kCopying;
  job.read = true;
  completions_.SetState(job.id, JobState::kEnqueued);
  return true;
}

void Publisher::LeaveCopying(Job& job, bool last) {
  const MutexLock lock(mutex_);
  job.stage = last ? Stage::kSourcesFree : Stage::kReserving;
  sources_.NotifyAll();
}

Result<std::vector<wire::ReserveEntry>> Publisher::Reserve(const LifePin& life, channel::ClientSession& session,
                                                           const Piece& piece, ReservationId* reservation) {
  const Job& job = *piece.job;
  wire::ReserveHeader header{};
  header.parent = piece.parent();
  header.group = piece.group();
  header.shard = options_.shard;
  header.first_depth = job.blocks.runs[piece.run].first_block + static_cast<std::uint32_t>(piece.before);
  header.prompt_tokens = job.request.prompt_tokens;
  header.answer_tokens = job.request.answer_tokens;
  header.slot_bytes = piece.layout().slot_bytes();
  const std::vector<std::byte> args = wire::EncodeReserve(header, piece.hashes());
  ORBITKV_ASSIGN_OR_RETURN(const channel::Answer answer,
                           link_.Ask(session, {.command = wire::Command::kPublishReserve, .args = args}));
  *reservation = ReservationId(answer.scalar0);
  auto entries = ReadReserved(answer.payload.bytes(), *life->pool(), {piece.count, header.slot_bytes});
  if (entries) return entries;
  Count(counters_.bad_answers);
  if (answer.scalar0 != 0) (void)session.PostNeverLost(wire::Command::kPublishAbort, answer.scalar0, 0);
  return entries;
}

Result<std::vector<wire::CommitEntry>> Publisher::CopyPiece(const LifePin& life, const Piece& piece,
                                                            std::span<const wire::ReserveEntry> entries) {
  const Job& job = *piece.job;
  copy::CopyJob copy;
  copy.direction = copy::Direction::kPublish;
  copy.stores = copy::Stores::kNonTemporal;
  copy.layout = &piece.layout().pages;
  std::vector<std::uint32_t> copied;  // index in the piece of each block of the copy
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    if (entries[i].status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) continue;
    ORBITKV_ASSIGN_OR_RETURN(std::byte* const slot, life->pool()->Slot(entries[i].offset, entries[i].slot_bytes));
    const std::size_t at = piece.first + i;
    const state::StateKey identity = job.layout->Identity(piece.group(), job.blocks.hashes[at], options_.shard);
    copy.blocks.push_back({job.blocks.block_ids[at], slot, identity, 0});
    copied.push_back(i);
  }
  copy.prepare = [this, piece]() -> Status {
    if (!IsCurrent(piece)) return Fail(Code::kStale, kStalePages);
    return {};
  };
  copy.before_block = [pool = life->pool(), slot_bytes = piece.layout().slot_bytes()](const copy::BlockCopy& block) {
    pool->EnsurePopulated(block.slot, slot_bytes);
  };
  // A refused Submit leaves the copy unchanged; the engine is full of restores then, which end by themselves.
  for (;;) {
    auto id = engine_.Submit(std::move(copy));  // NOLINT(bugprone-use-after-move)
    if (id) return WaitForCopy(*id, piece, entries, copied);
    if (id.error().code != Code::kBusy || life->lost()) return std::unexpected(id.error());
    (void)engine_.Drain(os::DeadlineAfter(10 * kNsPerMs));
  }
}

Result<std::vector<wire::CommitEntry>> Publisher::WaitForCopy(copy::JobId copy, const Piece& piece,
                                                              std::span<const wire::ReserveEntry> entries,
                                                              std::span<const std::uint32_t> copied) {
  for (;;) {
    const auto state = engine_.Wait(copy, os::DeadlineAfter(kDrainLookNs));
    if (state) break;
    if (state.error().code == Code::kTimedOut && !GivesUp()) continue;
    piece.job->undrained = true;
    return Fail(Code::kIo, "the copy cannot be drained; its pages are lost");
  }
  ORBITKV_ASSIGN_OR_RETURN(const copy::JobResult result, engine_.Take(copy));
  std::vector<wire::CommitEntry> commits;
  for (std::uint32_t i = 0; i < copied.size(); ++i) {
    if (std::ranges::binary_search(result.unfinished, i)) continue;
    commits.push_back({result.slot_checksums[i], entries[copied[i]].generation, copied[i], 0});
  }
  piece.job->completion.bytes += commits.size() * piece.layout().block_bytes();
  if (result.error && result.error->code == Code::kStale) return FailStale(piece);
  if (commits.empty()) return Fail(Code::kCancelled, "no block was copied");
  return commits;
}

Status Publisher::Commit(channel::ClientSession& session, const Piece& piece, ReservationId reservation,
                         std::span<const wire::CommitEntry> commits) {
  const std::vector<std::byte> args = wire::EncodeCommit(commits);
  ORBITKV_ASSIGN_OR_RETURN(
      const channel::Answer answer,
      link_.Ask(session, {.command = wire::Command::kPublishCommit, .scalar0 = reservation.value(), .args = args}));
  const auto outcomes = ReadCommitted(answer.payload.bytes(), commits.size());
  if (!outcomes) {
    Count(counters_.bad_answers);
    return std::unexpected(outcomes.error());
  }
  for (std::size_t i = 0; i < commits.size(); ++i) {
    Outcome outcome = Outcome::kLost;
    if ((*outcomes)[i] == wire::CommitOutcome::kStored) outcome = Outcome::kStored;
    if ((*outcomes)[i] == wire::CommitOutcome::kAlreadyThere) outcome = Outcome::kAlreadyThere;
    SetOutcome(*piece.job, piece.first + commits[i].index, outcome);
  }
  return {};
}

}  // namespace orbitkv::client
