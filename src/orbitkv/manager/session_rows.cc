#include "orbitkv/manager/session_rows.h"

#include <utility>

#include "orbitkv/os/byte_lock.h"

namespace orbitkv::manager {

Result<channel::Seats::Taken> SessionRows::Take(bool watched) {
  os::UniqueFd liveness;
  ORBITKV_ASSIGN_OR_RETURN(liveness, os::OpenAgain(liveness_fd_));
  const MutexLock lock(mutex_);
  const auto rows = static_cast<std::uint32_t>(taken_.size());
  for (std::uint32_t tries = 0; tries < rows; ++tries) {
    const std::uint32_t row = next_;
    next_ = (next_ + 1) % rows;
    if (taken_[row]) continue;
    ORBITKV_ASSIGN_OR_RETURN(const bool locked, os::TryLockByte(liveness.get(), row));
    if (!locked) continue;
    taken_[row] = true;
    if (!watched) liveness.reset();
    return Taken{.row = row, .liveness = std::move(liveness)};
  }
  return Fail(Code::kBusy, "all rows for sessions are taken, some by processes of earlier Managers; end those", rows);
}

void SessionRows::Give(std::uint32_t row) {
  const MutexLock lock(mutex_);
  taken_[row] = false;
}

void SessionRows::Keep(std::uint32_t row) {
  const MutexLock lock(mutex_);
  taken_[row] = true;
}

bool SessionRows::Locked(std::uint32_t row) const { return os::ByteIsLocked(liveness_fd_, row).value_or(true); }

}  // namespace orbitkv::manager
