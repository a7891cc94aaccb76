#include "orbitkv/os/eventfd.h"

#include <cerrno>
#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>

namespace orbitkv::os {

void SignalEventFd(int fd) {
  const std::uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

Result<EventFd> EventFd::Create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return FailErrno("cannot create an eventfd");
  return EventFd(std::move(fd));
}

bool EventFd::Drain() const {
  std::uint64_t count = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), &count, sizeof count);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof count);
}

}  // namespace orbitkv::os
