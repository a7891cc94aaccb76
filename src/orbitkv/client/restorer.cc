#include "orbitkv/client/restorer.h"

#include <algorithm>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/base/log.h"
#include "orbitkv/client/answers.h"
#include "orbitkv/client/time_point.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kInlineWaitNs = 200'000;  // of the calling thread, for the plan of a small job
constexpr std::uint64_t kFirstPauseNs = 200'000;  // before a plan that was not there yet is asked for again
constexpr std::uint64_t kLongestPauseNs = 5 * kNsPerMs;
constexpr std::uint64_t kThreadWaitNs = kNsPerMs;  // of the thread for one plan, while other jobs are due

std::uint8_t Byte(Outcome outcome) { return static_cast<std::uint8_t>(outcome); }

Status CheckNoPageTwice(const JobBlocks& blocks) {
  std::size_t first = 0;
  for (const state::GroupDemand& run : blocks.runs) {
    const auto ids = std::span(blocks.block_ids).subspan(first, run.block_count);
    std::vector<std::uint32_t> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    const auto twice = std::ranges::adjacent_find(sorted);
    if (twice != sorted.end()) {
      return Fail(Code::kInvalid, "a block id is given twice; each block needs pages of its own", *twice);
    }
    first += run.block_count;
  }
  return {};
}

std::vector<AskedBlock> AskedOf(const EngineLayout& layout, const JobBlocks& blocks) {
  std::vector<AskedBlock> asked;
  asked.reserve(blocks.size());
  for (const state::GroupDemand& run : blocks.runs) {
    const std::uint32_t slot_bytes = layout.group(run.group).slot_bytes();
    for (std::uint32_t i = 0; i < run.block_count; ++i) {
      asked.push_back({run.group, blocks.places[asked.size()], slot_bytes});
    }
  }
  return asked;
}

}  // namespace

Status Restorer::Start() {
  return thread_.Start("orbitkv-load", [this] { Run(); });
}

Status Restorer::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  thread_.Join();
  {
    const MutexLock lock(mutex_);
    while (submitting_ > 0) work_.Wait(mutex_);
  }
  engine_.Stop();  // finishes what it has accepted, as far as the device does
  const Status drained = engine_.Drain(os::DeadlineAfter(options_.drain_patience_ms * kNsPerMs));
  std::vector<JobPtr> rest;
  std::vector<JobPtr> undrained;
  {
    const MutexLock lock(mutex_);
    for (auto it = copying_.begin(); !drained && it != copying_.end();) {
      if (!it->second) {
        ++it;  // its end is being told right now
        continue;
      }
      undrained.push_back(std::move(it->second));
      it = copying_.erase(it);
    }
    while (!copying_.empty()) work_.Wait(mutex_);
    rest.swap(waiting_);
  }
  for (JobPtr& job : undrained) Keep(std::move(job));
  for (JobPtr& job : rest) {
    if (job->mismatched.empty()) {
      Fail(std::move(job), "the client was closed");
    } else {
      Withdraw(std::move(job));
    }
  }
  if (undrained_.empty()) return {};
  return orbitkv::Fail(Code::kIo, kUndrainedText, undrained_.size());
}

// Its pages and its slots may still be moving: nobody is told that it has ended, and nothing of it goes before the
// process does.
void Restorer::Keep(JobPtr job) {
  Count(counters_.undrained_jobs);
  log::Error("client", "a copy into the engine's pages cannot be drained name={} job={}; its pages are lost",
             options_.name, job->id.value());
  job->life.KeepForEver();
  undrained_.push_back(std::move(job));
}

Result<JobId> Restorer::Submit(const EngineLayout& layout, const RestoreRequest& request) {
  const HashChain chain{request.hashes, request.prefix_blocks};
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<state::GroupDemand> demand, layout.DemandOf(chain));
  ORBITKV_ASSIGN_OR_RETURN(JobBlocks blocks, layout.Name(chain, demand, {request.block_ids, request.generations}));
  ORBITKV_TRY(CheckNoPageTwice(blocks));
  if (request.grant.is_none()) return orbitkv::Fail(Code::kInvalid, "grant 0 was never begun");
  {
    const MutexLock lock(mutex_);
    if (stopping_) return orbitkv::Fail(Code::kCancelled, "the client is closed");
    ++submitting_;
  }
  const auto id = completions_.Admit();
  if (id) {
    auto job = std::make_unique<Job>();
    job->id = *id;
    job->layout = &layout;
    job->grant = request.grant;
    job->blocks = std::move(blocks);
    job->completion.tag = request.tag;
    Accept(std::move(job), request.incarnation);
  }
  const MutexLock lock(mutex_);
  --submitting_;
  work_.NotifyAll();
  return id;
}

void Restorer::Accept(JobPtr job, const std::optional<Incarnation>& incarnation) {
  Count(counters_.restore_jobs);
  job->asked = AskedOf(*job->layout, job->blocks);
  job->deadline_ns = os::DeadlineAfter(options_.load_deadline_ms * kNsPerMs);
  job->completion.job = job->id;
  job->completion.kind = JobKind::kRestore;
  job->completion.outcomes.assign(job->blocks.size(), Byte(Outcome::kFailed));
  job->life = link_.Pin();
  if (!job->life) {
    Fail(std::move(job), "the Manager is away");
  } else if (incarnation && *incarnation != job->life->incarnation()) {
    Fail(std::move(job), "the grant is of an earlier Manager");
  } else if (job->layout->BytesOf(job->blocks.runs) <= kInlineBytes && link_.state() == State::kUp) {
    const Step step = Plan(*job, os::DeadlineAfter(kInlineWaitNs));
    if (step == Step::kPlanned) {
      Count(counters_.restore_inline_jobs);
      StartCopy(std::move(job));
    } else if (step == Step::kWaiting) {
      Queue(std::move(job));
    } else {
      Finish(std::move(job));
    }
  } else {
    Queue(std::move(job));
  }
}

void Restorer::Queue(JobPtr job) {
  const MutexLock lock(mutex_);
  waiting_.push_back(std::move(job));
  work_.NotifyAll();
}

void Restorer::Wake() {
  const MutexLock lock(mutex_);
  work_.NotifyAll();
}

Restorer::JobPtr Restorer::NextJob() {
  const MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return nullptr;
    const auto first = std::ranges::min_element(
        waiting_, {}, [](const JobPtr& job) { return job->life->lost() ? 0 : job->next_try_ns; });
    if (first == waiting_.end()) {
      work_.Wait(mutex_);
      continue;
    }
    const std::uint64_t due = (*first)->life->lost() ? 0 : (*first)->next_try_ns;
    if (due > os::MonotonicNs()) {
      work_.WaitUntil(mutex_, TimePoint(due));
      continue;
    }
    JobPtr job = std::move(*first);
    waiting_.erase(first);
    return job;
  }
}

void Restorer::Run() {
  while (JobPtr job = NextJob()) Advance(std::move(job));
}

void Restorer::Advance(JobPtr job) {
  if (!job->mismatched.empty()) {
    Withdraw(std::move(job));
    return;
  }
  switch (Plan(*job, os::DeadlineAfter(kThreadWaitNs))) {
    case Step::kPlanned: StartCopy(std::move(job)); break;
    case Step::kWaiting: Queue(std::move(job)); break;
    case Step::kFailed: Finish(std::move(job)); break;
  }
}

Restorer::Step Restorer::Plan(Job& job, std::uint64_t until_ns) {
  const auto failed = [&](const char* error) {
    if (job.plan_request) job.life->control().Abandon(*job.plan_request);
    job.plan_request.reset();
    job.completion.error = error;
    End(job, wire::EndResult::kFailed);
    return Step::kFailed;
  };
  const std::uint64_t now = os::MonotonicNs();
  if (const char* const why = WhyGiveUp(job, now)) return failed(why);
  channel::ClientSession& session = job.life->control();
  if (!job.plan_request) {
    if (link_.state() == State::kSuspect) {
      job.next_try_ns = now + kThreadWaitNs;
      return Step::kWaiting;
    }
    const auto posted = session.Post({.command = wire::Command::kRestorePlan,
                                      .scalar0 = job.grant.value(),
                                      .scalar1 = options_.rank,
                                      .deadline_ns = job.deadline_ns});
    if (!posted && posted.error().code == Code::kBusy) {
      job.next_try_ns = now + kFirstPauseNs;
      return Step::kWaiting;
    }
    if (!posted) {
      link_.ReportFailure(posted.error());
      return failed(posted.error().text);
    }
    job.plan_request = *posted;
    job.asked_ns = now;
    job.blamed = false;
  }
  auto answer = session.Wait(*job.plan_request, std::min(until_ns, job.deadline_ns));
  if (!answer) {
    if (answer.error().code != Code::kTimedOut) {
      link_.ReportFailure(answer.error());
      return failed(answer.error().text);
    }
    job.next_try_ns = os::MonotonicNs();
    return Step::kWaiting;
  }
  job.plan_request.reset();
  const Step step = TakePlan(job, *answer);
  return step == Step::kFailed ? failed(job.completion.error.c_str()) : step;
}

const char* Restorer::WhyGiveUp(Job& job, std::uint64_t now_ns) {
  if (job.life->lost()) return "the Manager went away";
  // Only silence speaks against the Manager; "not yet" until the deadline means that the grant never came.
  const bool silent = job.plan_request && now_ns - job.asked_ns >= options_.query_deadline_ms * kNsPerMs;
  if (silent && !std::exchange(job.blamed, true)) link_.ReportMissedDeadline();
  if (now_ns >= job.deadline_ns) return "no plan came within the load deadline";
  const std::uint64_t since = link_.suspect_since_ns();
  if (since != 0 && now_ns >= since + options_.silent_load_ms * kNsPerMs) return "the Manager does not answer";
  return nullptr;
}

Restorer::Step Restorer::TakePlan(Job& job, const channel::Answer& answer) {
  const auto bad = [&](const char* error) {
    job.completion.error = error;
    return Step::kFailed;
  };
  if (answer.status == wire::AnswerStatus::kNotYet || answer.status == wire::AnswerStatus::kBusy) {
    Count(counters_.restore_plan_retries);
    job.pause_ns = std::clamp(job.pause_ns * 2, kFirstPauseNs, kLongestPauseNs);
    job.next_try_ns = os::MonotonicNs() + job.pause_ns;
    return Step::kWaiting;
  }
  if (answer.status == wire::AnswerStatus::kGone) return bad("the grant was released or has ended");
  if (answer.status != wire::AnswerStatus::kOk) return bad("the Manager gave no plan");
  auto plan = ReadPlan(job.life->control().abi(), answer.payload.bytes(), *job.life->pool(), job.asked);
  if (!plan) {
    Count(counters_.bad_answers);
    return bad(plan.error().text);
  }
  job.plan = std::move(*plan);
  return Step::kPlanned;
}

copy::CopyJob Restorer::CopyOf(Job& job) {
  const state::GroupDemand& run = job.blocks.runs[job.run];
  copy::CopyJob copy;
  copy.direction = copy::Direction::kRestore;
  copy.stores = options_.restore_stores;
  copy.layout = &job.layout->group(run.group).pages;
  PoolMap* const pool = job.life->pool();
  for (std::size_t i = job.first; i < job.first + run.block_count; ++i) {
    const wire::PlanEntry& entry = job.plan[i];
    const auto slot = pool->Slot(entry.offset, entry.slot_bytes);
    ORBITKV_CHECK(slot.has_value());
    const state::StateKey identity = job.layout->Identity(run.group, job.blocks.hashes[i], options_.shard);
    copy.blocks.push_back({job.blocks.block_ids[i], *slot, identity, entry.slot_checksum});
  }
  copy.on_layer = [this, id = job.id, before = job.layers](copy::JobId, std::uint32_t layer) {
    completions_.SetLayers(id, before + layer + 1);
  };
  // A job whose first copy has begun is not stopped.
  if (job.run > 0) return copy;
  copy.prepare = [this, work = &job]() -> Status {
    std::size_t first = 0;
    for (const state::GroupDemand& part : work->blocks.runs) {
      const auto ids = std::span(work->blocks.block_ids).subspan(first, part.block_count);
      const auto numbers = PageGenerations::Part(work->blocks.generations, first, part.block_count);
      if (!pages_.Current(part.group, ids, numbers)) return orbitkv::Fail(Code::kStale, kStalePages);
      first += part.block_count;
    }
    return {};
  };
  return copy;
}

void Restorer::StartCopy(JobPtr job) {
  copy::CopyJob copy = CopyOf(*job);
  const std::uint64_t id = job->id.value();
  copy.on_done = [this, id](copy::JobId, const copy::JobResult& result) { CopyDone(id, result); };
  {
    const MutexLock lock(mutex_);
    copying_[id] = std::move(job);
  }
  completions_.SetState(JobId(id), JobState::kEnqueued);
  const auto submitted = engine_.Submit(std::move(copy));
  if (submitted) return;
  JobPtr back;
  {
    const MutexLock lock(mutex_);
    const auto node = copying_.extract(id);
    ORBITKV_CHECK(!node.empty());
    back = std::move(node.mapped());
    work_.NotifyAll();
  }
  if (submitted.error().code == Code::kBusy && os::MonotonicNs() < back->deadline_ns && !back->life->lost()) {
    // The plan stays armed; the same session may fetch it again.
    if (back->run == 0) completions_.SetState(back->id, JobState::kPending);
    back->next_try_ns = os::MonotonicNs() + kNsPerMs;
    Queue(std::move(back));
    return;
  }
  Fail(std::move(back), submitted.error().text);
}

void Restorer::CopyDone(std::uint64_t id, const copy::JobResult& result) {
  JobPtr job;
  {
    const MutexLock lock(mutex_);
    const auto it = copying_.find(id);
    if (it == copying_.end()) return;  // too late: it was given up
    job = std::move(it->second);
  }
  if (TakeRun(*job, result)) {
    StartCopy(std::move(job));  // its end is that of the job
    return;
  }
  Settle(std::move(job), result);
  // Stop waits for the entry, so it goes last.
  const MutexLock lock(mutex_);
  copying_.erase(id);
  work_.NotifyAll();
}

bool Restorer::TakeRun(Job& job, const copy::JobResult& result) {
  if (result.error && result.error->code == Code::kStale) return false;
  Completion& done = job.completion;
  const state::GroupDemand& run = job.blocks.runs[job.run];
  const auto outcomes = std::span(done.outcomes).subspan(job.first, run.block_count);
  std::ranges::fill(outcomes, Byte(Outcome::kRestored));
  for (const std::uint32_t index : result.unfinished) outcomes[index] = Byte(Outcome::kFailed);
  for (const std::uint32_t index : result.mismatched) {
    outcomes[index] = Byte(Outcome::kMismatch);
    job.mismatched.push_back(static_cast<std::uint32_t>(job.first) + index);
  }
  const std::size_t restored = run.block_count - result.unfinished.size() - result.mismatched.size();
  const std::uint64_t bytes = restored * job.layout->group(run.group).block_bytes();
  done.bytes += bytes;
  Count(counters_.restored_blocks, restored);
  Count(counters_.restored_bytes, bytes);
  Count(counters_.mismatched_blocks, result.mismatched.size());
  job.first += run.block_count;
  job.layers += job.layout->group(run.group).pages.layer_count();
  ++job.run;
  return result.state == copy::JobState::kDrainedOk && job.run < job.blocks.runs.size();
}

void Restorer::Settle(JobPtr job, const copy::JobResult& result) {
  Completion& done = job->completion;
  if (result.error && result.error->code == Code::kStale) {
    Count(counters_.jobs_with_stale_pages);
    std::ranges::fill(done.outcomes, Byte(Outcome::kStale));
    Fail(std::move(job), result.error->text);
    return;
  }
  if (!job->mismatched.empty()) {
    done.error = "a block in the pool does not match its checksum; it is withdrawn";
    job->next_try_ns = 0;
    Queue(std::move(job));
  } else if (result.state == copy::JobState::kDrainedOk) {
    done.ok = true;
    End(*job, wire::EndResult::kOk);
    Finish(std::move(job));
  } else {
    Fail(std::move(job), result.error ? result.error->text : "the copy failed");
  }
}

void Restorer::End(Job& job, wire::EndResult result) {
  if (job.life->lost()) return;  // its pins died with it
  const std::vector<std::byte> args = wire::EncodeEnd({});
  (void)job.life->control().PostNeverLost(wire::Command::kRestoreEnd, job.grant.value(),
                                          options_.rank | (static_cast<std::uint64_t>(result) << 32U), args);
}

void Restorer::Withdraw(JobPtr job) {
  channel::ClientSession& session = job->life->control();
  const std::uint64_t scalar1 = options_.rank | (static_cast<std::uint64_t>(wire::EndResult::kMismatch) << 32U);
  std::vector<wire::EndEntry> mismatches;
  for (const std::uint32_t index : job->mismatched) {
    mismatches.push_back({.generation = job->plan[index].generation, .index = index});
  }
  const std::vector<std::byte> args = wire::EncodeEndFor(session.abi(), mismatches);
  const auto answer = link_.Ask(
      session,
      {.command = wire::Command::kRestoreEnd, .scalar0 = job->grant.value(), .scalar1 = scalar1, .args = args});
  if (!answer && !job->life->lost()) {
    // Not acknowledged in time: it is repeated until it is, and the caller is not kept waiting for that.
    (void)session.PostNeverLost(wire::Command::kRestoreEnd, job->grant.value(), scalar1, args);
    if (answer.error().code == Code::kTimedOut) link_.ReportMissedDeadline();
  }
  Finish(std::move(job));
}

void Restorer::Fail(JobPtr job, const char* error) {
  job->completion.error = error;
  if (job->life) {
    if (job->plan_request) job->life->control().Abandon(*job->plan_request);
    End(*job, wire::EndResult::kFailed);
  }
  Finish(std::move(job));
}

void Restorer::Finish(JobPtr job) {
  if (!job->completion.ok) Count(counters_.restore_jobs_failed);
  Completion completion = std::move(job->completion);
  job->life.Reset();
  completions_.Push(std::move(completion));
}

}  // namespace orbitkv::client
