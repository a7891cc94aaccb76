// The log of one store while it runs: keeps records, reads them back, and makes room.
//
// Records go one behind the other into the open segment (writer.h). When no segment is free the oldest is given up: of
// the records that were read since they were written, those that were read most go into the open segment again, up to
// half a segment; the others are forgotten. Reads come first: while some wait, one write at most is under way.
//
// Everything is driven by Step, with the time given; nothing here waits, so a test or a simulation can be the clock and
// the disk.
//
// Owns: the state of reads and writes and their buffers. Index, segments and engine belong to the caller and outlive
// it. Threads: one. Blocks: no. Units: bytes; nanoseconds; times on disk in seconds since 1970. Errors: what cannot be
// read or kept is reported as such. A device that fails again and again is left alone for a
//         while, then tried again; meanwhile readable() or writable() is false.
// Invariants: each load and each save ends once. Nothing ends as read whose checksum does not bind it to its key. A
//             record is in the index when all its bytes were written, until its segment is given up.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/orbite/engine.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/store/backoff.h"
#include "orbitkv/store/index.h"
#include "orbitkv/store/reader.h"
#include "orbitkv/store/segments.h"
#include "orbitkv/store/writer.h"
#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

struct LogConfig {
  std::uint64_t write_bytes = std::uint64_t{1} << 20U;     // of one write
  std::uint32_t writes = 8;                                // under way
  std::uint32_t reads = 64;                                // under way
  std::uint64_t read_bytes = std::uint64_t{64} << 20U;     // under way; one read is always permitted
  std::uint64_t save_bytes = std::uint64_t{64} << 20U;     // waiting and under way; one save is always permitted
  std::uint64_t reinsert_bytes = std::uint64_t{4} << 20U;  // larger records are not written again
  std::uint64_t flush_after_ns = 3'000'000;
  std::uint64_t deadline_ns = 30'000'000'000;  // after which a read or write counts as failed

  Status Validate() const;
};

struct LogCounters {
  std::uint64_t saves = 0;
  std::uint64_t saved_bytes = 0;  // of payload, first writes only
  std::uint64_t saves_no_room = 0;
  std::uint64_t saves_failed = 0;
  std::uint64_t reinserted = 0;
  std::uint64_t reinserted_bytes = 0;
  std::uint64_t written_bytes = 0;  // to the device, everything counted
  std::uint64_t loads = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t loads_failed = 0;
  std::uint64_t loads_wrong = 0;  // another record, or bytes that do not match
  std::uint64_t write_errors = 0;
  std::uint64_t read_errors = 0;
  std::uint64_t slow = 0;  // reads and writes that took longer than their deadline
  std::uint64_t pauses = 0;
  std::uint64_t evicted_segments = 0;
  std::uint64_t evicted_records = 0;
  std::uint64_t forgotten_records = 0;  // that could not be read
};

struct LoadJob {
  std::uint64_t id = 0;
  state::StateKey key;
  std::uint32_t payload_bytes = 0;
  std::uint64_t offset = 0;  // in the pool
};

struct SaveJob {
  std::uint64_t id = 0;
  state::StateKey key;
  Facts facts;
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t offset = 0;  // in the pool
};

struct LogEnd {
  enum class Result : std::uint8_t { kOk, kNoRoom, kShort, kFailed };
  bool load = false;
  std::uint64_t id = 0;
  Result result = Result::kFailed;
  std::uint64_t checksum = 0;  // of the slot that was loaded
};

// A segment that is being given up.
struct Eviction {
  std::uint32_t segment = 0;
  std::vector<EntryId> hot;
  std::size_t next = 0;
  std::uint64_t budget_bytes = 0;  // that may be written again
  bool busy = false;               // one of them is being read or written
};

class Log {
 public:
  struct Parts {
    orbite::Engine* engine = nullptr;
    orbite::RegionId file;
    const wire::Superblock* superblock = nullptr;
    Index* index = nullptr;
    Segments* segments = nullptr;
  };
  static Result<std::unique_ptr<Log>> Create(const LogConfig& config, const Parts& parts);

  // Where loads go to and saves come from. Before the first of them.
  void AttachPool(std::span<std::byte> pool);
  void Load(const LoadJob& job);
  void Save(const SaveJob& job);
  void Step(std::uint64_t now_ns, std::uint64_t unix_s);
  // Nothing more will come: what waits is carried out within this time, or reported as failed. Call it with each Step.
  void Finish(std::uint64_t now_ns, std::uint64_t within_ns);
  // What is in buffers goes out now.
  void Flush(std::uint64_t now_ns) { writer_->Flush(now_ns); }
  std::vector<LogEnd> TakeEnds() { return std::exchange(ends_, {}); }

  std::span<std::byte> write_buffers() const { return arena_.bytes().first(config_.writes * config_.write_bytes); }
  // Nothing is under way or waits.
  bool idle() const;
  // When there is something to do without a completion; ~0 for never.
  std::uint64_t next_due_ns() const;
  bool readable(std::uint64_t now_ns) const { return !read_backoff_.Pausing(now_ns); }
  bool writable(std::uint64_t now_ns) const { return !write_backoff_.Pausing(now_ns); }
  const LogCounters& counters() const { return counters_; }
  // The last failure, for the log.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  enum class Reinsert : std::uint8_t { kStarted, kWait, kNone };

  Log(const LogConfig& config, const Parts& parts) : config_(config), parts_(parts) {}
  static std::uint64_t ArenaBytes(const LogConfig& config);
  void Dispatch(const orbite::Completion& completion, std::uint64_t now_ns);
  void ReadEnded(const Reader::Ended& ended, std::uint64_t now_ns);
  void EndLoad(std::uint64_t id, LogEnd::Result result, std::uint64_t checksum = 0);
  void EndSave(const SaveJob& job, LogEnd::Result result);
  void DropSaves();
  // Whether there was something.
  bool Harvest();
  void WriteEnded(const Writer::Ended& ended);
  bool Keep(const Writer::Ended& ended, std::optional<Location> known);
  void PumpReads(std::uint64_t now_ns);
  void PumpWrites(std::uint64_t now_ns, std::uint64_t unix_s);
  // False when nothing can begin now.
  bool BeginNext(std::uint64_t unix_s);
  bool OpenSegment(std::uint64_t unix_s);
  void PumpEviction(std::uint64_t now_ns);
  void BeginEviction();
  Reinsert ReinsertNext(std::uint64_t now_ns);
  void FinishEviction();
  void ReinsertEnded() {
    if (eviction_) eviction_->busy = false;
  }
  void NoteReadError(const Error& error, std::uint64_t now_ns);
  void NoteWriteError(const Error& error, std::uint64_t now_ns);

  const LogConfig config_;
  const Parts parts_;
  os::Mapping arena_;
  std::span<std::byte> reinsert_bytes_;
  std::uint64_t reinsert_offset_ = 0;
  orbite::RegionId memory_;
  orbite::RegionId pool_region_;
  std::span<std::byte> pool_;
  std::unique_ptr<Writer> writer_;
  std::unique_ptr<Reader> reader_;

  std::deque<LoadJob> loads_;
  std::deque<SaveJob> saves_;                 // waiting
  std::uint64_t save_bytes_ = 0;              // waiting and under way
  std::map<std::uint64_t, SaveJob> writing_;  // by the writer's id
  std::uint64_t next_write_id_ = 1;
  std::optional<Eviction> eviction_;
  std::optional<RecordJob> reinsert_;  // read, waits for the writer
  Backoff read_backoff_;
  Backoff write_backoff_;
  std::vector<orbite::Completion> completions_;
  std::vector<LogEnd> ends_;
  LogCounters counters_;
  std::optional<Error> last_error_;
  std::uint64_t last_step_ns_ = 0;
  std::uint64_t finish_ns_ = ~std::uint64_t{0};
};

}  // namespace orbitkv::store
