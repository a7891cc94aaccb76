// Looks now and then whether the processes of earlier sessions are gone: a lock does not say when it becomes free.
// Owns: its thread, which ends when nothing is left to watch. Refers to the rows, which outlive it.
// Threads: Start and Stop the owner, idempotent; Forget any; gone is called on the watch's own thread, once per row.
// Blocks: Stop, for one look at most. Units: nanoseconds. Errors: of starting a thread.
// Invariant: a row is reported at most once, and not after Forget has returned.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::manager {

class LivenessWatch {
 public:
  struct Options {
    std::set<std::uint32_t> rows;
    std::function<bool(std::uint32_t)> locked;
    std::function<void(std::uint32_t)> gone;
    std::uint64_t poll_ns = 100'000'000;
  };
  explicit LivenessWatch(Options options) : options_(std::move(options)), rows_(options_.rows) {}
  ~LivenessWatch() { Stop(); }
  LivenessWatch(const LivenessWatch&) = delete;
  LivenessWatch& operator=(const LivenessWatch&) = delete;

  Status Start();
  void Stop() ORBITKV_EXCLUDES(mutex_);
  void Forget(std::uint32_t row) ORBITKV_EXCLUDES(mutex_);

 private:
  void Run() ORBITKV_EXCLUDES(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar wake_;
  std::set<std::uint32_t> rows_ ORBITKV_GUARDED_BY(mutex_);
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
  os::Thread thread_;
};

}  // namespace orbitkv::manager
