#include "orbitkv/copy/job_table.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "orbitkv/base/check.h"

namespace orbitkv::copy {
namespace {

constexpr std::uint32_t kKeptJobs = 4096;

// steady_clock is CLOCK_MONOTONIC.
using TimePoint = std::chrono::steady_clock::time_point;
TimePoint ToTimePoint(std::uint64_t deadline_ns) {
  constexpr auto kLatest = static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count());
  return TimePoint(std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(deadline_ns, kLatest))));
}

}  // namespace

Status ValidateJob(const CopyJob& job) {
  if (job.layout == nullptr) return Fail(Code::kInvalid, "a copy job needs a page layout");
  ORBITKV_TRY(job.layout->Validate());
  if (job.blocks.empty()) return Fail(Code::kInvalid, "a copy job needs at least one block");
  for (std::size_t i = 0; i < job.blocks.size(); ++i) {
    const BlockCopy& copy = job.blocks[i];
    if (copy.block >= job.layout->block_count) {
      return Fail(Code::kInvalid, "the layout has no such block", copy.block, job.layout->block_count);
    }
    if (copy.slot == nullptr) return Fail(Code::kInvalid, "a block of a copy job has no slot", i);
  }
  return {};
}

// Twice the bound on running jobs on top of the kept ones: a free entry is always near.
JobTable::JobTable(std::uint32_t max_jobs) : max_jobs_(max_jobs), entries_(kKeptJobs + 2 * std::size_t{max_jobs}) {}

Result<JobId> JobTable::Admit() {
  const MutexLock lock(mutex_);
  if (closed_) return Fail(Code::kCancelled, "the copy engine is stopped");
  if (active_ >= max_jobs_) return Fail(Code::kBusy, "the copy engine's queue is full; ask again later", active_);
  // A job that runs for a very long time keeps its entry; its successors step over it.
  do {
    ++last_id_;
  } while (!IsDrained(At(JobId(last_id_)).state));
  ++active_;
  Entry& entry = At(JobId(last_id_));
  entry = Entry{};
  entry.id = JobId(last_id_);
  entry.state = JobState::kPending;
  return entry.id;
}

void JobTable::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
}

void JobTable::SetEnqueued(JobId id) {
  const MutexLock lock(mutex_);
  ORBITKV_CHECK(At(id).id == id && At(id).state == JobState::kPending);
  At(id).state = JobState::kEnqueued;
}

void JobTable::SetLayersDone(JobId id, std::uint32_t layers) {
  const MutexLock lock(mutex_);
  ORBITKV_CHECK(At(id).id == id && !IsDrained(At(id).state));
  At(id).layers_done = layers;
}

void JobTable::Finish(JobId id, JobResult&& result) {
  {
    const MutexLock lock(mutex_);
    Entry& entry = At(id);
    ORBITKV_CHECK(entry.id == id && !IsDrained(entry.state) && IsDrained(result.state));
    entry.state = result.state;
    entry.result = std::move(result);
    entry.has_result = true;
    --active_;
  }
  finished_.NotifyAll();
}

Result<const JobTable::Entry*> JobTable::Find(JobId id) const {
  const Entry& entry = entries_[id.value() % entries_.size()];
  if (id.is_none() || entry.id != id) return Fail(Code::kStale, "the copy engine does not know this job", id.value());
  return &entry;
}

Result<JobState> JobTable::Poll(JobId id) const {
  const MutexLock lock(mutex_);
  ORBITKV_ASSIGN_OR_RETURN(const Entry* const entry, Find(id));
  return entry->state;
}

Result<JobState> JobTable::Wait(JobId id, std::uint64_t deadline_ns) {
  const TimePoint deadline = ToTimePoint(deadline_ns);
  const MutexLock lock(mutex_);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const Entry* const entry, Find(id));
    if (IsDrained(entry->state)) return entry->state;
    if (std::chrono::steady_clock::now() >= deadline) {
      return Fail(Code::kTimedOut, "the copy is still running", id.value());
    }
    finished_.WaitUntil(mutex_, deadline);
  }
}

Result<std::uint32_t> JobTable::LayersDone(JobId id) const {
  const MutexLock lock(mutex_);
  ORBITKV_ASSIGN_OR_RETURN(const Entry* const entry, Find(id));
  return entry->layers_done;
}

Result<JobResult> JobTable::Take(JobId id) {
  const MutexLock lock(mutex_);
  ORBITKV_TRY(Find(id));
  Entry& entry = At(id);
  if (!entry.has_result) return Fail(Code::kNotFound, "the job is not drained or its result was taken", id.value());
  entry.has_result = false;
  return std::exchange(entry.result, JobResult{});
}

Status JobTable::Drain(std::uint64_t deadline_ns) {
  const TimePoint deadline = ToTimePoint(deadline_ns);
  const MutexLock lock(mutex_);
  while (active_ != 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return Fail(Code::kTimedOut, "copies are still running", active_);
    }
    finished_.WaitUntil(mutex_, deadline);
  }
  return {};
}

}  // namespace orbitkv::copy
