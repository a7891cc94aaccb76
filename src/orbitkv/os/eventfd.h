// A counter that epoll can wait for: Signal makes it readable, Drain makes it unreadable.
// Owns: the descriptor. Threads: any. Blocks: never (a counter at its maximum stays readable, Signal then does
// nothing). Errors: kIo or kExhausted from Create.
#pragma once

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

// Signals any eventfd, for one that came from another process.
void SignalEventFd(int fd);

class EventFd {
 public:
  static Result<EventFd> Create();
  EventFd() = default;

  void Signal() const { SignalEventFd(fd_.get()); }
  // Whether it was signalled since the last Drain.
  bool Drain() const;
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  UniqueFd Take() && { return std::move(fd_); }

 private:
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace orbitkv::os
