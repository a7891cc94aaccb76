// One SSD store at work: its file, the way to the device, and the thread that carries loads and saves out.
//
// Owns: all of them. Threads: Open, Start and Stop by the owner; Locate, Kept, losses, Load, Save and the figures any;
//       the reports run on the runner's thread.
// Blocks: Open, for the device, and while a process that ends still has the file, until its deadline; Stop, until
//         nothing moves any more.
// Units: bytes; nanoseconds. Errors: Open with one line for people that names the file and the remedy.
// Invariants: each load and save is reported once, or Stop comes first. Between Start and the end of Stop the pool
//             stays.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/log.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/orbite/port.h"
#include "orbitkv/os/direct_file.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/store/store.h"

namespace orbitkv::manager {

class SsdRunner {
 public:
  // Puts something between the store and the port to its device. Whatever it finishes by itself it signals at event_fd.
  using Around = std::function<std::unique_ptr<orbite::Port>(std::unique_ptr<orbite::Port> port, int event_fd)>;
  struct Options {
    std::string path;
    std::uint64_t bytes = 0;        // 0: what is there
    std::uint64_t deadline_ns = 0;  // for another process to let the file go
    bool ring = true;               // false: threads, whatever the kernel permits
    Around around{};                // none: nothing
    store::LogConfig log{};
  };
  using Report = std::function<void(const store::LogEnd&)>;

  static std::expected<std::unique_ptr<SsdRunner>, std::string> Open(const Options& options);
  ~SsdRunner() { Stop(); }
  SsdRunner(const SsdRunner&) = delete;
  SsdRunner& operator=(const SsdRunner&) = delete;

  Status Start(std::span<std::byte> pool, Report report);
  void Stop() ORBITKV_EXCLUDES(mutex_);

  std::optional<store::Facts> Locate(const state::StateKey& key) const { return store_->Locate(key); }
  std::optional<store::Facts> Kept(const state::StateKey& key) const { return store_->Kept(key); }
  std::uint64_t losses() const { return store_->losses(); }
  void Load(const store::LoadJob& job) ORBITKV_EXCLUDES(mutex_);
  void Save(const store::SaveJob& job) ORBITKV_EXCLUDES(mutex_);

  const std::string& path() const { return options_.path; }
  bool uses_ring() const { return uses_ring_; }
  store::LogCounters counters() const { return store_->counters(); }
  store::StoreGauges gauges() const { return store_->gauges(); }
  const store::RecoveryReport& recovered() const { return store_->recovered(); }
  std::uint64_t recovery_ns() const { return recovery_ns_; }

 private:
  explicit SsdRunner(const Options& options) : options_(options) {}
  std::string OpenFile();
  std::string OpenStore();
  void Run() ORBITKV_EXCLUDES(mutex_);
  // Whether the thread may end.
  bool Turn() ORBITKV_EXCLUDES(mutex_);
  void TellFaults(const store::LogCounters& counters);

  const Options options_;
  std::optional<os::DirectFile> file_;
  os::EventFd event_;
  std::unique_ptr<orbite::Port> port_;
  bool uses_ring_ = false;
  std::unique_ptr<store::Store> store_;
  std::uint64_t recovery_ns_ = 0;
  Report report_;
  store::LogCounters told_;
  log::RateLimit faults_{std::chrono::seconds(5)};
  os::Thread thread_;

  Mutex mutex_;
  std::vector<store::LoadJob> loads_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<store::SaveJob> saves_ ORBITKV_GUARDED_BY(mutex_);
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
};

}  // namespace orbitkv::manager
