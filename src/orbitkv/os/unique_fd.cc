#include "orbitkv/os/unique_fd.h"

#include <unistd.h>

namespace orbitkv::os {

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace orbitkv::os
