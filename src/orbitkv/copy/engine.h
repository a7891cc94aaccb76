// The asynchronous copy interface: a job moves whole blocks between an engine's pages and slots of the pool.
//
// Publish copies pages into slots, hashing in the same pass, writes each slot's checksum list and returns the slot
// checksums. Restore copies layer by layer across all blocks and checks every page against the slot's list, of which it
// uses one copy that was checked against the expected slot checksum before a page of that block is touched. A layer is
// reported only when every block's page of it and of all layers before it is there and verified.
//
// Owns: nothing of the bytes. The layout, the pages and the slots stay valid and belong to the job until its state is
//       drained-ok or drained-failed; a timeout, a cancel or an error of Wait or Drain changes nothing about that.
// Threads: all calls are safe from any thread. Callbacks run on a worker or inside Submit, without a lock; they may
//          call Submit, Poll, LayersDone and Cancel, never Wait, Drain or Stop. Most of a job's callbacks run one after
//          the other: prepare, on_layer by rising layer, on_done exactly once. before_block runs on the thread that is
//          about to touch the block, for several blocks at the same time, at most once for each.
// Blocks: Wait and Drain until their deadline; Stop until all work has ended; Submit for the time of the copy when the
//         engine copies small restores on the calling thread.
// Units: bytes; deadlines are CLOCK_MONOTONIC nanoseconds.
// Errors: Submit kInvalid, kBusy when full, kCancelled after Stop: the job is unchanged. Poll, Wait, LayersDone, Take
//         and Cancel kStale for a job that is unknown or was forgotten (the last 4,096 finished ones are kept). Wait
//         and Drain kTimedOut at the deadline; kIo when the device cannot be drained: no page may be used again.
// Invariants: a drained state means that no byte of the job moves any more and that all stores are visible. Wait, Drain
//             and Stop return after on_done has returned. Ranges are checked against the mapping by the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"

namespace orbitkv::copy {

using JobId = StrongId<struct JobIdTag, std::uint64_t>;

enum class Direction : std::uint8_t { kPublish, kRestore };

enum class JobState : std::uint8_t {
  kPending,        // accepted; nothing has moved
  kEnqueued,       // bytes may be moving
  kDrainedOk,      // all bytes are there and verified
  kDrainedFailed,  // ended; the result says which blocks are missing
};
constexpr bool IsDrained(JobState state) { return state == JobState::kDrainedOk || state == JobState::kDrainedFailed; }

struct BlockCopy {
  std::uint32_t block = 0;    // in the layout
  std::byte* slot = nullptr;  // SlotBytes() long; a restore only reads it
  state::StateKey identity;
  std::uint64_t slot_checksum = 0;  // restore: what the plan says
};

struct JobResult {
  JobState state = JobState::kPending;
  std::vector<std::uint64_t> slot_checksums;  // publish: one for each block, 0 for one that is unfinished
  // Indices into CopyJob::blocks, rising. A mismatched block had a wrong checksum; an unfinished one was not copied
  // completely, which says nothing about its bytes. Pages of either may have been overwritten.
  std::vector<std::uint32_t> mismatched;
  std::vector<std::uint32_t> unfinished;
  std::optional<Error> error;  // why, when drained-failed
};

struct CopyJob {
  Direction direction = Direction::kPublish;
  Stores stores = Stores::kOrdinary;
  const PageLayout* layout = nullptr;
  std::vector<BlockCopy> blocks;
  // Runs before a byte is touched; an error fails the job.
  std::function<Status()> prepare;
  // For work that belongs to a block and is best shared by the threads that copy, such as populating the mapping. A
  // hint: while it runs, another thread may already copy from or to the same block.
  std::function<void(const BlockCopy&)> before_block;
  std::function<void(JobId, std::uint32_t layer)> on_layer;  // restore only
  std::function<void(JobId, const JobResult&)> on_done;
};

// What every engine refuses, with kInvalid: no or a bad layout, no blocks, a block that the layout does not have, no
// slot.
Status ValidateJob(const CopyJob& job);

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  virtual Result<JobId> Submit(CopyJob&& job) = 0;
  virtual Result<JobState> Poll(JobId id) = 0;
  // Returns a drained state.
  virtual Result<JobState> Wait(JobId id, std::uint64_t deadline_ns) = 0;
  // Restore: how many leading layers are verified in all blocks.
  virtual Result<std::uint32_t> LayersDone(JobId id) = 0;
  // The result of a drained job, once; kNotFound when it is not drained or was taken.
  virtual Result<JobResult> Take(JobId id) = 0;
  // Starts no further copy of the job. What runs is finished; the job then drains, as failed unless all was copied.
  virtual Status Cancel(JobId id) = 0;
  // Waits until no accepted job is left.
  virtual Status Drain(std::uint64_t deadline_ns) = 0;
  // Refuses new jobs, finishes the accepted ones, ends the threads. Idempotent. What a device cannot finish stays as it
  // is, and Drain says so.
  virtual void Stop() = 0;
};

}  // namespace orbitkv::copy
