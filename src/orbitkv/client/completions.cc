#include "orbitkv/client/completions.h"

#include <iterator>
#include <span>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/client/time_point.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/random.h"

namespace orbitkv::client {

Status Completions::Open() {
  ORBITKV_ASSIGN_OR_RETURN(event_, os::EventFd::Create());
  std::uint32_t random = 0;
  ORBITKV_TRY(os::RandomBytes(std::as_writable_bytes(std::span(&random, 1))));
  const MutexLock lock(mutex_);
  next_job_ = (std::uint64_t{random | 1U} << 31U) + 1;  // below 2^63, for callers whose integers are signed
  return {};
}

Result<JobId> Completions::Admit() {
  const MutexLock lock(mutex_);
  if (outstanding_ >= limit_) {
    return Fail(Code::kBusy, "too many jobs whose completion was not polled; call poll", outstanding_, limit_);
  }
  ++outstanding_;
  const JobId job(next_job_++);
  states_.emplace(job.value(), Progress{});
  return job;
}

void Completions::SetState(JobId job, JobState state) {
  const MutexLock lock(mutex_);
  states_[job.value()].state = state;
}

void Completions::SetLayers(JobId job, std::uint32_t layers) {
  const MutexLock lock(mutex_);
  states_[job.value()].layers = layers;
  advanced_.NotifyAll();
}

void Completions::Push(Completion&& completion) {
  const MutexLock lock(mutex_);
  states_[completion.job.value()].state = completion.ok ? JobState::kDrainedOk : JobState::kDrainedFailed;
  waiting_.push_back(std::move(completion));
  event_.Signal();
  drained_.NotifyAll();
  advanced_.NotifyAll();
}

std::vector<Completion> Completions::Take() {
  const MutexLock lock(mutex_);
  if (waiting_.empty()) return {};
  std::vector<Completion> taken(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  ORBITKV_CHECK(outstanding_ >= taken.size());
  outstanding_ -= static_cast<std::uint32_t>(taken.size());
  event_.Drain();
  for (const Completion& completion : taken) taken_.push_back(completion.job);
  for (; taken_.size() > kKeptStates; taken_.pop_front()) states_.erase(taken_.front().value());
  return taken;
}

Result<Completions::Progress> Completions::Find(JobId job) const {
  const auto it = states_.find(job.value());
  if (it != states_.end()) return it->second;
  return Fail(Code::kNotFound, "no job of this client: its completion was taken long ago, or another client gave it",
              job.value());
}

Result<JobState> Completions::StateOf(JobId job) const {
  const MutexLock lock(mutex_);
  ORBITKV_ASSIGN_OR_RETURN(const Progress progress, Find(job));
  return progress.state;
}

Result<JobState> Completions::Wait(JobId job, std::uint64_t deadline_ns) {
  const MutexLock lock(mutex_);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const Progress progress, Find(job));
    if (copy::IsDrained(progress.state) || os::MonotonicNs() >= deadline_ns) return progress.state;
    drained_.WaitUntil(mutex_, TimePoint(deadline_ns));
  }
}

Result<std::uint32_t> Completions::WaitLayers(JobId job, std::uint32_t known, std::uint64_t deadline_ns) {
  const MutexLock lock(mutex_);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const Progress progress, Find(job));
    const bool news = progress.layers > known || copy::IsDrained(progress.state);
    if (news || os::MonotonicNs() >= deadline_ns) return progress.layers;
    advanced_.WaitUntil(mutex_, TimePoint(deadline_ns));
  }
}

}  // namespace orbitkv::client
