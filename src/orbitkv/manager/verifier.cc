#include "orbitkv/manager/verifier.h"

namespace orbitkv::manager {

Status Verifier::Start() {
  if (thread_.running()) return {};
  return thread_.Start("okv-verify", [this] { Run(); });
}

bool Verifier::Submit(const Job& job) {
  {
    MutexLock lock(mutex_);
    if (stop_ || queue_.size() >= kMaxQueued) return false;
    queue_.push_back(job);
  }
  wake_.NotifyOne();
  return true;
}

void Verifier::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

bool Verifier::Equal(std::span<const std::byte> pool, const Job& job) {
  if (job.offset > pool.size() || job.slot_bytes > pool.size() - job.offset) return false;
  const std::uint64_t bytes = copy::SlotBytes(job.shape.layer_count, job.shape.page_bytes);
  if (bytes > job.slot_bytes) return false;
  return copy::CheckSlot(pool.subspan(job.offset, bytes), job.shape, job.identity, job.slot_checksum).has_value();
}

void Verifier::Run() {
  for (;;) {
    Job job;
    {
      MutexLock lock(mutex_);
      while (!stop_ && queue_.empty()) wake_.Wait(mutex_);
      if (stop_) return;
      job = queue_.front();
      queue_.pop_front();
    }
    verdict_(job.id, Equal(pool_, job));
  }
}

}  // namespace orbitkv::manager
