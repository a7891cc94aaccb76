// Rows of the session table, as the bootstrap server hands them to new sessions, and the liveness file whose locks say
// which of them belong to a process that still runs.
//
// A row's lock is held by an open file that only the client has: it ends when the client's session is gone, or with its
// process. A row that was given back is taken again only when its lock is free.
// Owns: which rows are taken. The liveness file is the caller's and outlives it.
// Threads: any. Blocks: for its own lock only. Errors: Take kBusy when no row is free.
// Invariant: a row has one owner at a time, of this life or an earlier one.
#pragma once

#include <cstdint>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/seat.h"

namespace orbitkv::manager {

class SessionRows final : public channel::Seats {
 public:
  SessionRows(int liveness_fd, std::uint32_t rows) : liveness_fd_(liveness_fd), taken_(rows) {}

  Result<Taken> Take(bool watched) override ORBITKV_EXCLUDES(mutex_);
  void Give(std::uint32_t row) override ORBITKV_EXCLUDES(mutex_);
  // A session of an earlier life has it.
  void Keep(std::uint32_t row) ORBITKV_EXCLUDES(mutex_);
  // Whether somebody holds the row's lock; also when nobody can tell.
  bool Locked(std::uint32_t row) const;

 private:
  const int liveness_fd_;
  Mutex mutex_;
  std::vector<bool> taken_ ORBITKV_GUARDED_BY(mutex_);
  std::uint32_t next_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

}  // namespace orbitkv::manager
