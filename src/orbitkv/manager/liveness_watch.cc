#include "orbitkv/manager/liveness_watch.h"

#include <chrono>

namespace orbitkv::manager {

Status LivenessWatch::Start() {
  if (thread_.running() || options_.rows.empty()) return {};
  return thread_.Start("okv-liveness", [this] { Run(); });
}

void LivenessWatch::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

void LivenessWatch::Forget(std::uint32_t row) {
  const MutexLock lock(mutex_);
  rows_.erase(row);
}

void LivenessWatch::Run() {
  const MutexLock lock(mutex_);
  while (!stop_ && !rows_.empty()) {
    for (auto row = rows_.begin(); row != rows_.end();) {
      const auto next = std::next(row);
      if (!options_.locked(*row)) {
        options_.gone(*row);
        rows_.erase(row);
      }
      row = next;
    }
    if (rows_.empty()) return;
    wake_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.poll_ns));
  }
}

}  // namespace orbitkv::manager
