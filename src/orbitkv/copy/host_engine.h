// The copy engine that moves bytes with this process's own threads.
//
// Large jobs are shared by all workers; a restore of at most inline_restore_bytes is copied inside Submit, because
// waking a worker costs more than copying that much.
//
// Owns: the worker threads; Stop and the destructor join them.
// Threads: as engine.h. Blocks: as engine.h. Idle workers sleep.
// Errors: Create kInvalid for options out of range, kExhausted when no thread can be made. A worker that cannot be
//         pinned runs unpinned.
// Invariant: jobs are begun in the order of submission; they may end in another one.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/copy/copy_run.h"
#include "orbitkv/copy/engine.h"
#include "orbitkv/copy/job_table.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::copy {

struct HostEngineOptions {
  std::uint32_t threads = 2;
  std::vector<int> cpus;  // worker i runs on cpus[i mod size]; empty: wherever the kernel likes
  std::uint32_t max_jobs = 1024;
  std::uint64_t inline_restore_bytes = 256 * 1024;

  Status Validate() const;
};

class HostCopyEngine final : public CopyEngine {
 public:
  static Result<std::unique_ptr<HostCopyEngine>> Create(const HostEngineOptions& options);
  ~HostCopyEngine() override;

  Result<JobId> Submit(CopyJob&& job) override;
  Result<JobState> Poll(JobId id) override { return table_.Poll(id); }
  Result<JobState> Wait(JobId id, std::uint64_t deadline_ns) override { return table_.Wait(id, deadline_ns); }
  Result<std::uint32_t> LayersDone(JobId id) override { return table_.LayersDone(id); }
  Result<JobResult> Take(JobId id) override { return table_.Take(id); }
  Status Cancel(JobId id) override;
  Status Drain(std::uint64_t deadline_ns) override { return table_.Drain(deadline_ns); }
  void Stop() override;

 private:
  // begun: a worker has taken it; ready: its pages may be claimed; users: workers inside it.
  struct QueuedJob {
    QueuedJob(JobId job_id, CopyJob&& job, HostCopyEngine& engine);
    const JobId id;
    CopyRun run;
    bool begun = false;
    bool ready = false;
    std::uint32_t users = 0;
  };
  using Queue = std::list<std::unique_ptr<QueuedJob>>;

  explicit HostCopyEngine(const HostEngineOptions& options);
  bool IsInline(const CopyJob& job) const;
  void Run(std::uint32_t worker);
  QueuedJob* PickLocked() ORBITKV_REQUIRES(mutex_);
  void Leave(QueuedJob& job) ORBITKV_EXCLUDES(mutex_);

  const HostEngineOptions options_;
  JobTable table_;
  Mutex mutex_;  // never held while the table's lock is taken, nor while a callback runs
  CondVar work_;
  Queue queue_ ORBITKV_GUARDED_BY(mutex_);
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<os::Thread>> threads_;
};

}  // namespace orbitkv::copy
