#include <algorithm>
#include <deque>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/orbite/file/file_port.h"
#include "orbitkv/os/direct_file.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::orbite {
namespace {

class ThreadPort final : public Port {
 public:
  explicit ThreadPort(const FilePortOptions& options) : options_(options) {}
  ~ThreadPort() override {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    for (const auto& thread : threads_) thread->Join();
  }

  Status StartThreads() {
    for (std::uint32_t i = 0; i < std::max(options_.fallback_threads, 1U); ++i) {
      threads_.push_back(std::make_unique<os::Thread>());
      ORBITKV_TRY(threads_.back()->Start("okv-file", [this] { Run(); }));
    }
    return {};
  }

  bool Start(const Operation& operation) override {
    const MutexLock lock(mutex_);
    if (under_way_ >= options_.operations) return false;
    ++under_way_;
    queue_.push_back(operation);
    return true;
  }

  void Flush() override { changed_.NotifyAll(); }

  void Reap(std::vector<Outcome>& out) override {
    const MutexLock lock(mutex_);
    under_way_ -= static_cast<std::uint32_t>(done_.size());
    out.insert(out.end(), done_.begin(), done_.end());
    done_.clear();
  }

 private:
  void Run() ORBITKV_EXCLUDES(mutex_) {
    for (;;) {
      Operation operation;
      {
        const MutexLock lock(mutex_);
        while (queue_.empty() && !stop_) changed_.Wait(mutex_);
        if (queue_.empty()) return;
        operation = queue_.front();
        queue_.pop_front();
      }
      const Outcome outcome = Do(operation);
      {
        const MutexLock lock(mutex_);
        done_.push_back(outcome);
      }
      os::SignalEventFd(options_.event_fd);
    }
  }

  Outcome Do(const Operation& operation) const {
    const int fd = options_.fds[operation.far];
    Result<std::uint64_t> moved = 0;
    switch (operation.kind) {
      case OperationKind::kRead: moved = os::ReadPieces(fd, operation.offset, operation.pieces); break;
      case OperationKind::kWrite: moved = os::WritePieces(fd, operation.offset, operation.pieces); break;
      case OperationKind::kSync:
        if (const Status synced = os::SyncData(fd); !synced) moved = std::unexpected(synced.error());
        break;
    }
    return {operation.token, moved ? 0 : moved.error().sys_errno, moved.value_or(0)};
  }

  const FilePortOptions options_;
  std::vector<std::unique_ptr<os::Thread>> threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Operation> queue_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<Outcome> done_ ORBITKV_GUARDED_BY(mutex_);
  std::uint32_t under_way_ ORBITKV_GUARDED_BY(mutex_) = 0;
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
};

}  // namespace

Result<std::unique_ptr<Port>> MakeThreadPort(const FilePortOptions& options) {
  auto port = std::make_unique<ThreadPort>(options);
  ORBITKV_TRY(port->StartThreads());
  return port;
}

}  // namespace orbitkv::orbite
