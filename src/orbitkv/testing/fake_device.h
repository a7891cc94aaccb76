// A copy engine whose device moves a page only when the test says so: what a GPU with its own copy engine looks like to
// the client. Publish hashes a slot on the CPU after the device has filled it; restore checks a page in the slot before
// it hands it to the device.
// (The namespace is not called testing: that name would hide GoogleTest's inside orbitkv.)
//
// Owns: the jobs until they are drained.
// Threads: Submit, Poll, Wait, Take, Cancel, Drain from any; Step, RunUntilIdle and Stop from one, where callbacks run.
// Blocks: Wait and Drain until their deadline; nothing moves meanwhile unless another thread steps.
// Errors: as copy/engine.h; after Break, Drain and Wait say kIo for what is not drained.
// Invariant: between two steps no byte moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "orbitkv/base/mutex.h"
#include "orbitkv/copy/engine.h"
#include "orbitkv/copy/job_table.h"

namespace orbitkv::doubles {

class FakeDeviceEngine final : public copy::CopyEngine {
 public:
  explicit FakeDeviceEngine(std::uint32_t max_jobs = 1024);
  ~FakeDeviceEngine() override;

  // The device moves one page of the oldest job, or ends that job. False when there was nothing to do.
  bool Step();
  void RunUntilIdle();
  // Whether no job is there.
  bool idle() ORBITKV_EXCLUDES(mutex_);
  // From now on the device does nothing and cannot be drained.
  void Break() { broken_ = true; }
  void Mend() { broken_ = false; }

  Result<copy::JobId> Submit(copy::CopyJob&& job) override;
  Result<copy::JobState> Poll(copy::JobId id) override { return table_.Poll(id); }
  Result<copy::JobState> Wait(copy::JobId id, std::uint64_t deadline_ns) override;
  Result<std::uint32_t> LayersDone(copy::JobId id) override { return table_.LayersDone(id); }
  Result<copy::JobResult> Take(copy::JobId id) override { return table_.Take(id); }
  Status Cancel(copy::JobId id) override;
  Status Drain(std::uint64_t deadline_ns) override;
  // Ends every job by stepping; with a broken device they stay as they are.
  void Stop() override;

 private:
  struct DeviceJob;

  void Begin(DeviceJob& job);
  void MovePage(DeviceJob& job);
  void End(DeviceJob& job);

  copy::JobTable table_;
  std::atomic<bool> broken_ = false;
  Mutex mutex_;
  std::deque<std::unique_ptr<DeviceJob>> jobs_ ORBITKV_GUARDED_BY(mutex_);
};

}  // namespace orbitkv::doubles
