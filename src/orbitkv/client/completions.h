// The completions of a client's jobs, on their way to the caller: a bounded queue and a descriptor to wait on.
// Owns: the queue and an eventfd of the client's own (the Manager never sees it).
// Threads: any. Blocks: never.
// Errors: Admit says kBusy when `limit` jobs were accepted whose completion has not been taken.
// Invariant: Admit counts a job before it starts, so Push never finds the queue full and no completion is ever dropped.
//            The descriptor is readable while a completion waits.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/client/types.h"
#include "orbitkv/os/eventfd.h"

namespace orbitkv::client {

class Completions {
 public:
  explicit Completions(std::uint32_t limit) : limit_(limit) {}

  Status Open();
  Result<JobId> Admit() ORBITKV_EXCLUDES(mutex_);
  // Takes back an Admit whose job was not started after all.
  void Withdraw() ORBITKV_EXCLUDES(mutex_);
  void Push(Completion&& completion) ORBITKV_EXCLUDES(mutex_);
  std::vector<Completion> Take() ORBITKV_EXCLUDES(mutex_);
  int fd() const { return event_.fd(); }

 private:
  const std::uint32_t limit_;
  os::EventFd event_;
  Mutex mutex_;
  std::deque<Completion> waiting_ ORBITKV_GUARDED_BY(mutex_);
  std::uint32_t outstanding_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_job_ ORBITKV_GUARDED_BY(mutex_) = 1;
};

}  // namespace orbitkv::client
