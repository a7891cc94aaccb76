#include "orbitkv/testing/ram_backing.h"

#include <chrono>
#include <utility>

#include "orbitkv/os/clock.h"

namespace orbitkv::testing {

Status RamBacking::Start(int pool_fd, std::uint64_t pool_bytes, Reports reports) {
  ORBITKV_ASSIGN_OR_RETURN(pool_, os::Mapping::Map(pool_fd, pool_bytes, os::Access::kReadWrite));
  reports_ = std::move(reports);
  return thread_.Start("okv-ram-source", [this] { Run(); });
}

void RamBacking::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

void RamBacking::Submit(const service::LoadRequest& request) {
  {
    const MutexLock lock(mutex_);
    source_.Submit(request, os::MonotonicNs());
  }
  changed_.NotifyAll();
}

void RamBacking::Save(const service::SaveRequest& request) {
  {
    const MutexLock lock(mutex_);
    source_.Save(request, os::MonotonicNs());
  }
  changed_.NotifyAll();
}

std::optional<service::SourceRecord> RamBacking::Locate(const service::ComponentKey& key) const {
  const MutexLock lock(mutex_);
  return source_.Locate(key);
}

bool RamBacking::Keeps(const service::ComponentKey& key, std::uint64_t checksum) const {
  const MutexLock lock(mutex_);
  return source_.Keeps(key, checksum);
}

std::uint64_t RamBacking::losses() const {
  const MutexLock lock(mutex_);
  return source_.losses();
}

void RamBacking::Run() {
  while (true) {
    std::vector<RamSource::Done> done;
    std::vector<RamSource::Saved> saved;
    {
      const MutexLock lock(mutex_);
      while (!stop_ && source_.next_due_ns().value_or(os::kNoDeadline) > os::MonotonicNs()) {
        if (const auto due_ns = source_.next_due_ns()) {
          changed_.WaitUntil(mutex_, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(*due_ns)));
        } else {
          changed_.Wait(mutex_);
        }
      }
      if (stop_) return;
      done = source_.Step(os::MonotonicNs(), pool_.bytes());
      saved = source_.StepSaves(os::MonotonicNs(), pool_.bytes());
    }
    for (const RamSource::Done& one : done) reports_.loaded(one.id, one.result, one.checksum);
    for (const RamSource::Saved& one : saved) reports_.saved(one.id, one.result);
  }
}

}  // namespace orbitkv::testing
