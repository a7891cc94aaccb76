// Brings granted blocks into the engine's pages: fetch the plan, check every range, copy and verify, tell the Manager.
//
// A job asks for its plan until it comes ("not yet" while the begin is on its way), the load deadline passes, or the
// Manager has been silent for so long that the engine does better to compute. Giving up is safe at any time: the end
// that is sent follows the question in the same ring, so it also ends a pin that the question may still arm. A small
// job whose plan is there at once runs on the calling thread. The blocks of one cache group are one copy; the next
// group's follows when it is good. Good jobs complete when their copies are done; a job with mismatched blocks
// completes after the Manager has withdrawn them, so that nobody is offered them again.
//
// Owns: jobs and one thread. The layout, the engine and the link must outlive it. Threads: Submit and Wake from any
// thread. Blocks: Submit for small jobs (a bounded wait for the plan, then the copy); Stop until copies have ended or
// are given up. Errors: Submit kBusy, kInvalid; everything later is in the job's completion. Units: bytes;
// CLOCK_MONOTONIC ns. Invariants: one completion for each accepted job. A job that failed has sent its RestoreEnd. A
// job holds its LifePin
//             from Submit to the end, so the mapping stays while bytes move, also after the Manager's death.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/client/answers.h"
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

struct RestoreRequest {
  GrantId grant;
  std::span<const state::BlockHash> hashes;  // behind the prefix, up to the boundary that the grant is of
  // Where each block goes that the boundary demands (RecoveryContract::Demand), group by group, each in prefix order;
  // no page of a group twice. With one group of full attention: one for each hash.
  std::span<const std::uint32_t> block_ids;
  std::optional<Incarnation> incarnation;  // of the Manager that granted; another one: failed at once
  std::uint64_t tag = 0;
  std::span<const std::uint64_t> generations{};  // of the pages: none, one for all, or one for each block
  std::uint32_t prefix_blocks = 0;               // hash blocks before the first hash, as the query said
};

class Restorer {
 public:
  static constexpr std::uint64_t kInlineBytes = 256ULL << 10U;

  Restorer(const ClientOptions& options, Link& link, copy::CopyEngine& engine, const PageGenerations& pages,
           Completions& completions, Counters& counters)
      : options_(options),
        link_(link),
        engine_(engine),
        pages_(pages),
        completions_(completions),
        counters_(counters) {}
  ~Restorer() { static_cast<void>(Stop()); }
  Restorer(const Restorer&) = delete;
  Restorer& operator=(const Restorer&) = delete;

  Status Start();
  // Ends what waits, stops the engine, which finishes what copies. Idempotent. kIo when copies cannot be drained within
  // the patience of the options: this object and the engine must then live as long as the process.
  Status Stop() ORBITKV_EXCLUDES(mutex_);
  Result<JobId> Submit(const EngineLayout& layout, const RestoreRequest& request) ORBITKV_EXCLUDES(mutex_);
  // The state of the link has changed.
  void Wake() ORBITKV_EXCLUDES(mutex_);

 private:
  struct Job {
    JobId id;
    const EngineLayout* layout = nullptr;
    GrantId grant;
    JobBlocks blocks;
    std::vector<AskedBlock> asked;  // what its plan must name
    LifePin life;
    std::optional<channel::RequestId> plan_request;
    std::uint64_t asked_ns = 0;  // when plan_request was posted
    bool blamed = false;         // its silence was reported
    std::uint64_t deadline_ns = 0;
    std::uint64_t next_try_ns = 0;
    std::uint64_t pause_ns = 0;
    std::vector<wire::PlanEntry> plan;
    std::size_t run = 0;                    // that is copied, or comes next
    std::size_t first = 0;                  // block of that run
    std::uint32_t layers = 0;               // of the runs before it
    std::vector<std::uint32_t> mismatched;  // a job that waits for its withdrawal
    Completion completion;
  };
  using JobPtr = std::unique_ptr<Job>;
  enum class Step : std::uint8_t { kPlanned, kWaiting, kFailed };

  void Accept(JobPtr job, const std::optional<Incarnation>& incarnation) ORBITKV_EXCLUDES(mutex_);
  void Run() ORBITKV_EXCLUDES(mutex_);
  // The next job that is due, or null when it is time to end.
  JobPtr NextJob() ORBITKV_EXCLUDES(mutex_);
  void Advance(JobPtr job) ORBITKV_EXCLUDES(mutex_);
  // Waits for the plan until then at most; kFailed fills the completion's error.
  Step Plan(Job& job, std::uint64_t until_ns);
  Step TakePlan(Job& job, const channel::Answer& answer);
  // Why the plan is waited for no longer; null while it is.
  const char* WhyGiveUp(Job& job, std::uint64_t now_ns);
  void Queue(JobPtr job) ORBITKV_EXCLUDES(mutex_);
  // Of the job's next run; the runs behind it follow by themselves.
  void StartCopy(JobPtr job) ORBITKV_EXCLUDES(mutex_);
  copy::CopyJob CopyOf(Job& job);
  void CopyDone(std::uint64_t id, const copy::JobResult& result) ORBITKV_EXCLUDES(mutex_);
  // Notes what became of the run. True when the job goes on with its next one.
  bool TakeRun(Job& job, const copy::JobResult& result);
  void Settle(JobPtr job, const copy::JobResult& result) ORBITKV_EXCLUDES(mutex_);
  // Tells the Manager and waits for its word, so that the blocks are withdrawn.
  void Withdraw(JobPtr job);
  void Fail(JobPtr job, const char* error);
  void Keep(JobPtr job);
  void Finish(JobPtr job);
  void End(Job& job, wire::EndResult result);

  const ClientOptions& options_;
  Link& link_;
  copy::CopyEngine& engine_;
  const PageGenerations& pages_;
  Completions& completions_;
  Counters& counters_;

  Mutex mutex_;
  CondVar work_;
  std::vector<JobPtr> waiting_ ORBITKV_GUARDED_BY(mutex_);  // for a plan, or with mismatches to withdraw
  std::map<std::uint64_t, JobPtr> copying_ ORBITKV_GUARDED_BY(mutex_);
  std::uint32_t submitting_ ORBITKV_GUARDED_BY(mutex_) = 0;  // threads within Submit
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;
  std::vector<JobPtr> undrained_;  // of the owner, since Stop
  os::Thread thread_;
};

}  // namespace orbitkv::client
