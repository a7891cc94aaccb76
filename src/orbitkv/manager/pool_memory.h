// The memory behind the pool: one memfd of the pool's full size, sealed against resizing before anybody maps it, whose
// pages are reserved and cleared from the front, step by step, never beyond what the machine and the control group
// leave.
//
// PoolMemory owns: the memfd and the Manager's own mapping of it, for reading.
// PoolReserver owns: the thread that reserves the rest; its callback runs on that thread.
// Threads: PoolMemory is constant after Create. ReserveFirst, Start and Stop by the owner; Start and Stop are
//          idempotent.
// Blocks: ReserveFirst and Stop, for the kernel while it clears at most one step; ReserveFirst also while there is no
//         room, until its deadline.
// Units: bytes; every size is a multiple of 2 MiB.
// Errors: kExhausted when there is no room for the first step; a is the room, b what was needed.
// Invariant: memory that the callback reported stays reserved until the file's last descriptor and mapping are gone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::manager {

// One line for people when a pool of this size can never fit into the machine or its control group; empty otherwise.
// limit 0 means none.
std::string PoolTooLarge(std::uint64_t pool_bytes, std::uint64_t total_bytes, std::uint64_t limit_bytes);
// The same for the machine that this process runs on.
std::string PoolTooLarge(std::uint64_t pool_bytes);
// The same for the tables, which may take half of the memory.
std::string TablesTooLarge(std::uint64_t table_bytes, std::uint64_t total_bytes, std::uint64_t limit_bytes);
std::string TablesTooLarge(std::uint64_t table_bytes);

class PoolMemory {
 public:
  static Result<PoolMemory> Create(std::uint64_t bytes, HugePages huge_pages);
  // Of a file of that size that is there already.
  static Result<PoolMemory> Of(os::UniqueFd fd, std::uint64_t bytes, bool huge);

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return mapping_.size(); }
  std::span<const std::byte> view() const { return mapping_.bytes(); }
  bool huge() const { return huge_; }

 private:
  PoolMemory(os::UniqueFd fd, os::Mapping mapping, bool huge)
      : fd_(std::move(fd)), mapping_(std::move(mapping)), huge_(huge) {}
  os::UniqueFd fd_;
  os::Mapping mapping_;
  bool huge_;
};

class PoolReserver {
 public:
  struct Options {
    int fd = -1;
    std::uint64_t pool_bytes = 0;
    std::uint64_t reserved_bytes = 0;  // from the front, by an earlier Manager
    std::uint64_t step_bytes = std::uint64_t{64} << 20;
    std::uint64_t keep_free_bytes = 0;
    std::uint64_t poll_ns = 1'000'000'000;                             // while there is no room
    std::function<Result<std::uint64_t>()> room;                       // what may be used now
    std::function<Status(int, std::uint64_t, std::uint64_t)> reserve;  // and clear
  };
  // The machine's own room and memory.
  static Options ForMachine(const PoolMemory& memory, std::uint64_t reserved_bytes, const Config& config);

  explicit PoolReserver(Options options) : options_(std::move(options)), reserved_(options_.reserved_bytes) {}
  ~PoolReserver() { Stop(); }
  PoolReserver(const PoolReserver&) = delete;
  PoolReserver& operator=(const PoolReserver&) = delete;

  // Reserves one step on the calling thread and returns its bytes; 0 when an earlier Manager has reserved some.
  Result<std::uint64_t> ReserveFirst(std::uint64_t deadline_ns);
  // Reserves the rest on a thread of its own; on_reserved gets the bytes of each further step.
  Status Start(std::function<void(std::uint64_t)> on_reserved);
  void Stop() ORBITKV_EXCLUDES(mutex_);

 private:
  void Run(const std::function<void(std::uint64_t)>& on_reserved) ORBITKV_EXCLUDES(mutex_);
  // Reserves the next step if there is room: its bytes, 0 when there is none.
  Result<std::uint64_t> Step();
  // True when told to stop.
  bool Pause() ORBITKV_EXCLUDES(mutex_);

  const Options options_;
  std::uint64_t reserved_;  // of whoever reserves: the owner before Start, then the thread
  std::uint64_t last_room_ = 0;
  os::Thread thread_;
  Mutex mutex_;
  CondVar wake_;
  bool stop_ ORBITKV_GUARDED_BY(mutex_) = false;
};

}  // namespace orbitkv::manager
