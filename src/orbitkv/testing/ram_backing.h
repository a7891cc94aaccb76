// A RamSource behind a whole Manager: reads and saves are carried out by a thread, into and out of the pool.
//
// Owns: the source, its thread, its mapping of the pool. Threads: Fill from any; the rest as Backing says.
// Blocks: Stop, until the thread has ended. Units: nanoseconds of the monotonic clock.
// Errors: Start when the pool cannot be mapped.
// Invariant: what is not due when it is stopped is never reported. Of what is due at once, reads are reported first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "orbitkv/base/mutex.h"
#include "orbitkv/manager/backing.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::testing {

class RamBacking final : public manager::Backing {
 public:
  ~RamBacking() override { Stop(); }

  void Fill(const std::function<void(RamSource&)>& fill) ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    fill(source_);
  }

  Status Start(int pool_fd, std::uint64_t pool_bytes, Reports reports) override;
  void Stop() override ORBITKV_EXCLUDES(mutex_);
  void Submit(const service::LoadRequest& request) override ORBITKV_EXCLUDES(mutex_);
  void Save(const service::SaveRequest& request) override ORBITKV_EXCLUDES(mutex_);
  std::optional<service::SourceRecord> Locate(const service::ComponentKey& key) const override ORBITKV_EXCLUDES(mutex_);
  bool Keeps(const service::ComponentKey& key, std::uint64_t checksum) const override ORBITKV_EXCLUDES(mutex_);
  std::uint64_t losses() const override ORBITKV_EXCLUDES(mutex_);

 private:
  void Run() ORBITKV_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  RamSource source_ ORBITKV_GUARDED_BY(mutex_);
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
  os::Mapping pool_;
  Reports reports_;
  os::Thread thread_;
};

}  // namespace orbitkv::testing
