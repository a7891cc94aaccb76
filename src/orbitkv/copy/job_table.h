// States of the jobs of one copy engine: what Poll, Wait, Take and Drain answer from.
// Owns: the results of finished jobs until they are taken or pushed out.
// Threads: safe. Blocks: Wait and Drain until their deadline.
// Units: at most max_jobs jobs that are not drained, and the last 4,096 or more finished ones.
// Errors: as in engine.h.
// Invariant: a job is finished exactly once; ids rise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/copy/engine.h"

namespace orbitkv::copy {

class JobTable {
 public:
  explicit JobTable(std::uint32_t max_jobs);

  Result<JobId> Admit() ORBITKV_EXCLUDES(mutex_);
  void Close() ORBITKV_EXCLUDES(mutex_);
  // Steps of an admitted job.
  void SetEnqueued(JobId id) ORBITKV_EXCLUDES(mutex_);
  void SetLayersDone(JobId id, std::uint32_t layers) ORBITKV_EXCLUDES(mutex_);
  void Finish(JobId id, JobResult&& result) ORBITKV_EXCLUDES(mutex_);

  Result<JobState> Poll(JobId id) const ORBITKV_EXCLUDES(mutex_);
  Result<JobState> Wait(JobId id, std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);
  Result<std::uint32_t> LayersDone(JobId id) const ORBITKV_EXCLUDES(mutex_);
  Result<JobResult> Take(JobId id) ORBITKV_EXCLUDES(mutex_);
  Status Drain(std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);

 private:
  struct Entry {
    JobId id;
    JobState state = JobState::kDrainedOk;
    std::uint32_t layers_done = 0;
    bool has_result = false;
    JobResult result;
  };

  Entry& At(JobId id) ORBITKV_REQUIRES(mutex_) { return entries_[id.value() % entries_.size()]; }
  Result<const Entry*> Find(JobId id) const ORBITKV_REQUIRES(mutex_);

  const std::uint32_t max_jobs_;
  mutable Mutex mutex_;
  CondVar finished_;
  std::vector<Entry> entries_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t last_id_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint32_t active_ ORBITKV_GUARDED_BY(mutex_) = 0;
  bool closed_ ORBITKV_GUARDED_BY(mutex_) = false;
};

}  // namespace orbitkv::copy
