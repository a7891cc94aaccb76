// Hashes suspect slots again, off the dispatcher: an engine reported that a block's bytes did not match, and this
// thread says whether that is so.
//
// Owns: its thread and a bounded queue. Refers to the Manager's mapping of the pool, which outlives it.
// Threads: Submit any; Start and Stop by the owner, both idempotent. The verdict callback runs on the verifier's
// thread. Blocks: Stop, for one slot at most. Errors: Submit returns false when the queue is full or the verifier has
// stopped. Invariant: a job that was accepted gets exactly one verdict, unless Stop comes first; a range outside the
// pool is
//            "different".
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::manager {

class Verifier {
 public:
  struct Job {
    std::uint64_t id = 0;
    std::uint64_t offset = 0;  // in the pool
    std::uint32_t slot_bytes = 0;
    copy::SlotShape shape;
    state::StateKey identity;
    std::uint64_t slot_checksum = 0;
  };
  using Verdict = std::function<void(std::uint64_t id, bool equal)>;
  static constexpr std::size_t kMaxQueued = 1024;

  Verifier(std::span<const std::byte> pool, Verdict verdict) : pool_(pool), verdict_(std::move(verdict)) {}
  ~Verifier() { Stop(); }
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  Status Start();
  bool Submit(const Job& job) ORBITKV_EXCLUDES(mutex_);
  void Stop() ORBITKV_EXCLUDES(mutex_);

  // What the thread says about one job.
  static bool Equal(std::span<const std::byte> pool, const Job& job);

 private:
  void Run() ORBITKV_EXCLUDES(mutex_);

  const std::span<const std::byte> pool_;
  const Verdict verdict_;
  os::Thread thread_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<Job> queue_ ORBITKV_GUARDED_BY(mutex_);
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
};

}  // namespace orbitkv::manager
