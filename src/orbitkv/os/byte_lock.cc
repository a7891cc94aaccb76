#include "orbitkv/os/byte_lock.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>

namespace orbitkv::os {
namespace {

struct flock Exclusive(std::uint64_t byte) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

std::unexpected<Error> FailLock(const char* text, std::uint64_t byte) {
  auto error = FailErrno(text, byte);
  if (error.error().sys_errno == EINVAL) error.error().code = Code::kUnsupported;
  return error;
}

}  // namespace

Result<bool> TryLockByte(int fd, std::uint64_t byte) {
  struct flock lock = Exclusive(byte);
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return FailLock("cannot lock a byte of a file", byte);
}

Result<bool> ByteIsLocked(int fd, std::uint64_t byte) {
  struct flock lock = Exclusive(byte);
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0) return FailLock("cannot ask for the lock of a byte of a file", byte);
  return lock.l_type != F_UNLCK;
}

Result<UniqueFd> OpenAgain(int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  UniqueFd again(::open(path, O_RDWR | O_CLOEXEC));
  if (!again.valid()) return FailErrno("cannot open a file again (is /proc mounted?)");
  return again;
}

}  // namespace orbitkv::os
