// Saves blocks in the background: reserve slots, copy pages into them, commit. One thread, one job at a time, in order,
// on a publish session of its own that is opened at the first save.
//
// A job waits in the queue, then reserves (nothing of its pages is read), then copies (pages are read), then commits
// (pages are free again). The Manager can hold up the first two and the last, never the third: its stall, restart or
// death cannot keep a source page.
//
// Owns: the queue, the thread. The layout, the engine and the link must outlive it. Threads: every call from any
// thread. Blocks: WaitSourcesFree until its deadline; Stop until the running job has ended.
// Errors: Submit kBusy when the queue is full (counted; nothing is kept), kInvalid for arguments the layout does not
// allow. Units: deadlines are CLOCK_MONOTONIC ns.
// Invariant: every accepted job gives one completion, also when it is dropped or cancelled. The one exception is a job
//            whose copy cannot be drained: it stays enqueued and its pages are never reported free.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/client/completions.h"
#include "orbitkv/client/layout.h"
#include "orbitkv/client/link.h"
#include "orbitkv/client/options.h"
#include "orbitkv/client/page_generations.h"
#include "orbitkv/client/types.h"
#include "orbitkv/copy/engine.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {

struct PublishRequest {
  std::span<const state::BlockHash> hashes;  // of hash blocks in prefix order, each the child of the one before
  std::span<const std::uint32_t> block_ids;  // of the engine, one for each block, in the order of the runs
  std::uint32_t first_depth = 0;             // hash blocks before the first one
  state::BlockHash parent;                   // the hash block before the first one; ignored at depth 0
  std::uint32_t prompt_tokens = 0;           // of the request, for the eviction policy
  std::uint32_t answer_tokens = 0;
  std::uint64_t tag = 0;
  std::span<const std::uint64_t> generations{};  // of the pages: none, one for all, or one for each block
  // Which blocks, as blocks of their groups counted from the prompt's start; none: all that lie in the hashes whole.
  // The hashes begin no later than the first block of each run does.
  std::span<const state::GroupDemand> runs{};
};

class Publisher {
 public:
  Publisher(const ClientOptions& options, Link& link, copy::CopyEngine& engine, const PageGenerations& pages,
            Completions& completions, Counters& counters)
      : options_(options),
        link_(link),
        engine_(engine),
        pages_(pages),
        completions_(completions),
        counters_(counters) {}
  ~Publisher() { static_cast<void>(Stop()); }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  Status Start();
  // Saves what is queued until the deadline, as long as there is a Manager; drops the rest, finishes what copies.
  // Idempotent.
  // kIo when a copy could not be drained: this object and the engine must then live as long as the process.
  Status Stop(std::uint64_t drain_deadline_ns = 0) ORBITKV_EXCLUDES(mutex_);

  // layout stays valid until the job's sources are free.
  Result<JobId> Submit(const EngineLayout& layout, const PublishRequest& request) ORBITKV_EXCLUDES(mutex_);
  // True when no page of the job was read and none will be. False: it is unknown, done, or has begun to copy; the rest
  // of it is dropped then too.
  bool Cancel(JobId id) ORBITKV_EXCLUDES(mutex_);
  // True when none of the jobs reads its source pages any more: queued ones are dropped, a running copy is waited for.
  bool WaitSourcesFree(std::span<const JobId> ids, std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);
  // The state of the link has changed.
  void Wake() ORBITKV_EXCLUDES(mutex_);

 private:
  enum class Stage : std::uint8_t { kQueued, kReserving, kCopying, kSourcesFree, kUndrained };

  struct Job {
    JobId id;
    const EngineLayout* layout = nullptr;
    JobBlocks blocks;
    std::vector<state::BlockHash> parents;  // of each run, the group's block before its first one
    PublishRequest request;                 // its spans are not used
    std::uint64_t accepted_ns = 0;
    Completion completion;
    Stage stage = Stage::kQueued;  // guarded by mutex_, as the next two
    bool cancelled = false;
    bool read = false;       // some page was read
    bool stale = false;      // of the thread alone, as the next one
    bool undrained = false;  // its copy cannot be drained
  };
  // One reservation: blocks [first, first + count) of a job, which are of one of its runs.
  struct Piece {
    Job* job = nullptr;
    std::size_t run = 0;
    std::size_t before = 0;  // blocks of the run before it
    std::size_t first = 0;
    std::size_t count = 0;

    std::uint32_t group() const { return job->blocks.runs[run].group; }
    const Layout& layout() const { return job->layout->group(group()); }
    const state::BlockHash& parent() const { return before == 0 ? job->parents[run] : job->blocks.hashes[first - 1]; }
    std::span<const state::BlockHash> hashes() const { return std::span(job->blocks.hashes).subspan(first, count); }
    std::span<const std::uint32_t> block_ids() const { return std::span(job->blocks.block_ids).subspan(first, count); }
    std::span<const std::uint64_t> generations() const {
      return PageGenerations::Part(job->blocks.generations, first, count);
    }
  };

  void Run();
  Job* NextJob() ORBITKV_EXCLUDES(mutex_);
  void DropStale(std::uint64_t now_ns) ORBITKV_REQUIRES(mutex_);
  void RunJob(Job& job) ORBITKV_EXCLUDES(mutex_);
  // Saves the job's blocks piece by piece, as far as there is room.
  Status SavePieces(const LifePin& life, channel::ClientSession& session, Job& job) ORBITKV_EXCLUDES(mutex_);
  bool IsCurrent(const Piece& piece) const {
    return pages_.Current(piece.group(), piece.block_ids(), piece.generations());
  }
  // False when the rest of the job cannot be saved now.
  Result<bool> SavePiece(const LifePin& life, channel::ClientSession& session, const Piece& piece)
      ORBITKV_EXCLUDES(mutex_);
  Result<std::vector<wire::ReserveEntry>> Reserve(const LifePin& life, channel::ClientSession& session,
                                                  const Piece& piece, ReservationId* reservation);
  Result<std::vector<wire::CommitEntry>> CopyPiece(const LifePin& life, const Piece& piece,
                                                   std::span<const wire::ReserveEntry> entries)
      ORBITKV_EXCLUDES(mutex_);
  static Result<std::vector<wire::CommitEntry>> FailStale(const Piece& piece) {
    piece.job->stale = true;
    return Fail(Code::kStale, kStalePages);
  }
  Result<std::vector<wire::CommitEntry>> WaitForCopy(copy::JobId copy, const Piece& piece,
                                                     std::span<const wire::ReserveEntry> entries,
                                                     std::span<const std::uint32_t> copied);
  Status Commit(channel::ClientSession& session, const Piece& piece, ReservationId reservation,
                std::span<const wire::CommitEntry> commits);
  bool EnterCopying(Job& job) ORBITKV_EXCLUDES(mutex_);
  void LeaveCopying(Job& job, bool last) ORBITKV_EXCLUDES(mutex_);
  void EndJob(Job& job, const Status& status) ORBITKV_EXCLUDES(mutex_);
  bool AllDone() const ORBITKV_REQUIRES(mutex_);
  // Whether the end has waited long enough for a copy.
  bool GivesUp() const ORBITKV_EXCLUDES(mutex_);
  void SetOutcome(Job& job, std::size_t index, Outcome outcome) { job.completion.outcomes[index] = Byte(outcome); }
  static std::uint8_t Byte(Outcome outcome) { return static_cast<std::uint8_t>(outcome); }
  // Gives the completion and forgets the job.
  void Finish(std::uint64_t id, const char* error) ORBITKV_REQUIRES(mutex_);

  const ClientOptions& options_;
  Link& link_;
  copy::CopyEngine& engine_;
  const PageGenerations& pages_;
  Completions& completions_;
  Counters& counters_;

  mutable Mutex mutex_;
  CondVar work_;                                                                   // a job, a changed link, or the end
  CondVar sources_;                                                                // a job's sources became free
  std::map<std::uint64_t, std::unique_ptr<Job>> jobs_ ORBITKV_GUARDED_BY(mutex_);  // by id, which is their order
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;
  std::uint64_t give_up_ns_ ORBITKV_GUARDED_BY(mutex_) = 0;  // once stopping
  os::Thread thread_;
};

}  // namespace orbitkv::client
