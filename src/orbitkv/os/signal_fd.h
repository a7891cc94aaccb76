// Signals as a readable descriptor, so that a thread waits for them like for anything else.
// Owns: the descriptor. Threads: create it before any other thread starts, since the signals are blocked in the calling
// thread and in those that it starts. Blocks: no. Errors: kIo.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

class SignalFd {
 public:
  static Result<SignalFd> Create(std::initializer_list<int> signals);

  int fd() const { return fd_.get(); }
  // The next signal that arrived, or none.
  std::optional<int> Take() const;

 private:
  explicit SignalFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// What asks a process to end: SIGTERM, SIGINT and SIGHUP. SIGPIPE is taken and ignored, because a reader of our output
// that goes away is no reason to end.
class ShutdownSignals {
 public:
  static Result<ShutdownSignals> Create();
  // Blocks until the process is asked to end; the signal.
  int Wait() const;

 private:
  explicit ShutdownSignals(SignalFd signals) : signals_(std::move(signals)) {}
  SignalFd signals_;
};

}  // namespace orbitkv::os
