// One store: a file of blocks that survives its Manager, and the machine's loss of power as far as it was written.
//
// Owns: index, segments, engine and log; not the port, which outlives it. Threads: Locate, Kept, losses and the gauges
//       any, the rest one. Blocks: Open, for the device; nothing else.
// Units: bytes; nanoseconds; seconds since 1970. Limits: max_records in the index.
// Errors: Open as recovery.h and LogConfig say. Later ones are ends of loads and saves, and counters.
// Invariants: the file never grows. What Locate names was written completely; what is loaded matches its checksum.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/orbite/engine.h"
#include "orbitkv/store/index.h"
#include "orbitkv/store/log.h"
#include "orbitkv/store/recovery.h"
#include "orbitkv/store/segments.h"

namespace orbitkv::store {

struct StoreConfig {
  std::uint64_t file_bytes = 0;
  std::uint64_t segment_bytes = 0;  // 0: chosen from the size
  std::uint32_t align = 512;        // of the device
  std::uint32_t max_records = 0;    // 0: one for each 32 KiB
  wire::StoreUuid uuid{};           // for a new store: random
  std::uint64_t seed = 0;           // of the index: random
  std::uint32_t skip = 0;           // sequences of segments that this opening leaves out: random
  LogConfig log{};
};

struct StoreGauges {
  std::uint64_t file_bytes = 0;
  std::uint32_t segments = 0;
  std::uint32_t free_segments = 0;
  std::uint32_t records = 0;
  std::uint64_t index_bytes = 0;
  bool readable = true;
  bool writable = true;
};

class Store {
 public:
  static std::uint64_t SegmentBytesFor(std::uint64_t file_bytes);
  static Result<std::unique_ptr<Store>> Open(orbite::Port& port, const StoreConfig& config,
                                             const BlockingFile::Wait& wait, std::uint64_t unix_s);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // What can be read now.
  std::optional<Facts> Locate(const state::StateKey& key) const;
  // What is there, readable now or not.
  std::optional<Facts> Kept(const state::StateKey& key) const;
  // Records that are there no more, and were not replaced; rises after they went.
  std::uint64_t losses() const { return losses_.load(std::memory_order_relaxed); }

  Log& log() { return *log_; }
  // Log::Step, then what other threads may see of it.
  void Step(std::uint64_t now_ns, std::uint64_t unix_s) ORBITKV_EXCLUDES(mutex_);
  LogCounters counters() const ORBITKV_EXCLUDES(mutex_);
  StoreGauges gauges() const ORBITKV_EXCLUDES(mutex_);
  const RecoveryReport& recovered() const { return report_; }
  const wire::Superblock& superblock() const { return superblock_; }
  const Index& index() const { return *index_; }

 private:
  explicit Store(orbite::Port& port) : engine_(port) {}
  void Publish(std::uint64_t now_ns) ORBITKV_EXCLUDES(mutex_);

  orbite::Engine engine_;
  wire::Superblock superblock_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Segments> segments_;
  std::unique_ptr<Log> log_;
  RecoveryReport report_;
  std::atomic<bool> readable_{true};
  std::atomic<std::uint64_t> losses_{0};
  mutable Mutex mutex_;
  LogCounters counters_ ORBITKV_GUARDED_BY(mutex_);
  StoreGauges gauges_ ORBITKV_GUARDED_BY(mutex_);
};

}  // namespace orbitkv::store
