#include "orbitkv/os/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

namespace orbitkv::os {

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<UniqueFd> Duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FailErrno("cannot duplicate a descriptor");
  return copy;
}

}  // namespace orbitkv::os
