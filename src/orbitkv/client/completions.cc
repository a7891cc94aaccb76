#include "orbitkv/client/completions.h"

#include <iterator>
#include <utility>

#include "orbitkv/base/check.h"

namespace orbitkv::client {

Status Completions::Open() {
  ORBITKV_ASSIGN_OR_RETURN(event_, os::EventFd::Create());
  return {};
}

Result<JobId> Completions::Admit() {
  const MutexLock lock(mutex_);
  if (outstanding_ >= limit_) {
    return Fail(Code::kBusy, "too many jobs whose completion was not polled; call poll", outstanding_, limit_);
  }
  ++outstanding_;
  return JobId(next_job_++);
}

void Completions::Withdraw() {
  const MutexLock lock(mutex_);
  ORBITKV_CHECK(outstanding_ > 0);
  --outstanding_;
}

void Completions::Push(Completion&& completion) {
  const MutexLock lock(mutex_);
  waiting_.push_back(std::move(completion));
  event_.Signal();
}

std::vector<Completion> Completions::Take() {
  const MutexLock lock(mutex_);
  if (waiting_.empty()) return {};
  std::vector<Completion> taken(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  ORBITKV_CHECK(outstanding_ >= taken.size());
  outstanding_ -= static_cast<std::uint32_t>(taken.size());
  event_.Drain();
  return taken;
}

}  // namespace orbitkv::client
