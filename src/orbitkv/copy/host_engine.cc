#include "orbitkv/copy/host_engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "orbitkv/base/log.h"

namespace orbitkv::copy {
namespace {
constexpr std::uint32_t kMaxThreads = 256;
}  // namespace

Status HostEngineOptions::Validate() const {
  if (threads == 0 || threads > kMaxThreads) return Fail(Code::kInvalid, "copy threads must be 1 to 256", threads);
  if (max_jobs == 0 || max_jobs > 1U << 20U) return Fail(Code::kInvalid, "copy jobs must be 1 to 1048576", max_jobs);
  return {};
}

HostCopyEngine::QueuedJob::QueuedJob(JobId job_id, CopyJob&& job, HostCopyEngine& engine)
    : id(job_id), run(job_id, std::move(job), engine.options_.threads, [job_id, &engine](std::uint32_t layers) {
        engine.table_.SetLayersDone(job_id, layers);
      }) {}

HostCopyEngine::HostCopyEngine(const HostEngineOptions& options) : options_(options), table_(options.max_jobs) {}

HostCopyEngine::~HostCopyEngine() { Stop(); }

Result<std::unique_ptr<HostCopyEngine>> HostCopyEngine::Create(const HostEngineOptions& options) {
  ORBITKV_TRY(options.Validate());
  std::unique_ptr<HostCopyEngine> engine(new HostCopyEngine(options));
  for (std::uint32_t i = 0; i < options.threads; ++i) {
    auto thread = std::make_unique<os::Thread>();
    // A failure ends the threads that run already: the engine's destructor stops them.
    ORBITKV_TRY(thread->Start("okv-copy-" + std::to_string(i), [self = engine.get(), i] { self->Run(i); }));
    engine->threads_.push_back(std::move(thread));
  }
  return engine;
}

bool HostCopyEngine::IsInline(const CopyJob& job) const {
  const std::uint64_t block_bytes = PayloadBytes(job.layout->layer_count(), job.layout->page_bytes);
  return job.direction == Direction::kRestore && job.blocks.size() <= options_.inline_restore_bytes / block_bytes;
}

Result<JobId> HostCopyEngine::Submit(CopyJob&& job) {
  ORBITKV_TRY(ValidateJob(job));
  ORBITKV_ASSIGN_OR_RETURN(const JobId id, table_.Admit());
  const bool is_inline = IsInline(job);
  auto queued = std::make_unique<QueuedJob>(id, std::move(job), *this);
  if (is_inline) {
    table_.SetEnqueued(id);
    queued->run.Begin();
    queued->run.Work();
    table_.Finish(id, queued->run.Finish());
    return id;
  }
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(queued));
  }
  work_.NotifyAll();
  return id;
}

Status HostCopyEngine::Cancel(JobId id) {
  ORBITKV_TRY(table_.Poll(id));
  const MutexLock lock(mutex_);
  for (const auto& job : queue_) {
    if (job->id == id) job->run.Cancel();
  }
  return {};
}

void HostCopyEngine::Stop() {
  // Every accepted job is in the queue, or in a Submit that has not returned, before the workers are told to end.
  table_.Close();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.NotifyAll();
  for (const auto& thread : threads_) thread->Join();
  threads_.clear();
}

HostCopyEngine::QueuedJob* HostCopyEngine::PickLocked() {
  for (const auto& job : queue_) {
    if (!job->begun || (job->ready && job->run.has_pages())) return job.get();
  }
  return nullptr;
}

void HostCopyEngine::Run(std::uint32_t worker) {
  if (!options_.cpus.empty()) {
    const int cpu = options_.cpus[worker % options_.cpus.size()];
    if (const Status status = os::PinThread(cpu); !status) {
      log::Warning("copy", "cannot pin a copy thread to cpu {}: {}", cpu, ToString(status.error()));
    }
  }
  for (;;) {
    QueuedJob* job = nullptr;
    bool first = false;
    {
      const MutexLock lock(mutex_);
      while ((job = PickLocked()) == nullptr) {
        if (stopping_ && queue_.empty()) return;
        work_.Wait(mutex_);
      }
      first = !std::exchange(job->begun, true);
      ++job->users;
    }
    if (first) {
      table_.SetEnqueued(job->id);
      job->run.Begin();
      {
        const MutexLock lock(mutex_);
        job->ready = true;
      }
      work_.NotifyAll();
    }
    job->run.Work();
    Leave(*job);
  }
}

// The last worker to leave a job that has no page left finishes it: nobody can join it any more.
void HostCopyEngine::Leave(QueuedJob& job) {
  std::unique_ptr<QueuedJob> finished;
  {
    const MutexLock lock(mutex_);
    if (--job.users != 0) return;
    const auto at = std::find_if(queue_.begin(), queue_.end(), [&](const auto& entry) { return entry.get() == &job; });
    finished = std::move(*at);
    queue_.erase(at);
    if (stopping_ && queue_.empty()) work_.NotifyAll();
  }
  table_.Finish(finished->id, finished->run.Finish());
}

}  // namespace orbitkv::copy
