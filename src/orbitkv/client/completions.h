// The jobs of a client as their caller sees them: the state of each, the completions on their way to the caller, and a
// descriptor to wait on.
//
// A job is pending until it touches a page, enqueued while bytes may be moving or its end is not known, and drained
// when its completion is there. Ids begin at a random number, so that one from another client or another process, where
// it means other pages, names nothing here.
//
// Owns: the queue, the states and an eventfd of the client's own (the Manager never sees it).
// Threads: any. Blocks: Wait and WaitLayers, until their deadlines; nothing else.
// Units: deadlines are CLOCK_MONOTONIC ns. Limits: the states of the last 4,096 taken completions are kept.
// Errors: Admit says kBusy when `limit` jobs were accepted whose completion has not been taken; StateOf, Wait and
//         WaitLayers say kNotFound for a job that is not of this client or was forgotten.
// Invariants: Admit counts a job before it starts, so Push never finds the queue full and no completion is ever
//             dropped. The descriptor is readable while a completion waits. A wait changes nothing, whether it ends or
//             times out.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/client/types.h"
#include "orbitkv/os/eventfd.h"

namespace orbitkv::client {

class Completions {
 public:
  static constexpr std::size_t kKeptStates = 4096;

  explicit Completions(std::uint32_t limit) : limit_(limit) {}

  Status Open() ORBITKV_EXCLUDES(mutex_);
  Result<JobId> Admit() ORBITKV_EXCLUDES(mutex_);
  // Enqueued: bytes of the job may move from now on; pending again: they have not, and do not.
  void SetState(JobId job, JobState state) ORBITKV_EXCLUDES(mutex_);
  // Of a restore: so many of its layers, from the first one on, are in their pages and verified.
  void SetLayers(JobId job, std::uint32_t layers) ORBITKV_EXCLUDES(mutex_);
  void Push(Completion&& completion) ORBITKV_EXCLUDES(mutex_);
  std::vector<Completion> Take() ORBITKV_EXCLUDES(mutex_);
  Result<JobState> StateOf(JobId job) const ORBITKV_EXCLUDES(mutex_);
  // The state at the deadline, or as soon as it is drained.
  Result<JobState> Wait(JobId job, std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);
  // The layers at the deadline, or as soon as they are more than `known` or the job is drained.
  Result<std::uint32_t> WaitLayers(JobId job, std::uint32_t known, std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);
  int fd() const { return event_.fd(); }

 private:
  struct Progress {
    JobState state = JobState::kPending;
    std::uint32_t layers = 0;
  };
  Result<Progress> Find(JobId job) const ORBITKV_REQUIRES(mutex_);

  const std::uint32_t limit_;
  os::EventFd event_;
  mutable Mutex mutex_;
  CondVar drained_;
  CondVar advanced_;  // a layer is there, or the job is drained
  std::deque<Completion> waiting_ ORBITKV_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, Progress> states_ ORBITKV_GUARDED_BY(mutex_);  // by job id
  std::deque<JobId> taken_ ORBITKV_GUARDED_BY(mutex_);                             // whose state may be forgotten
  std::uint32_t outstanding_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_job_ ORBITKV_GUARDED_BY(mutex_) = 1;
};

}  // namespace orbitkv::client
