#include "orbitkv/os/signal_fd.h"

#include <csignal>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::os {

Result<SignalFd> SignalFd::Create(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return Fail(Code::kIo, "cannot block signals");
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return FailErrno("cannot create a signalfd");
  return SignalFd(std::move(fd));
}

std::optional<int> SignalFd::Take() const {
  signalfd_siginfo info = {};
  if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

Result<ShutdownSignals> ShutdownSignals::Create() {
  ORBITKV_ASSIGN_OR_RETURN(SignalFd signals, SignalFd::Create({SIGTERM, SIGINT, SIGHUP, SIGPIPE}));
  return ShutdownSignals(std::move(signals));
}

int ShutdownSignals::Wait() const {
  for (;;) {
    while (const auto signal = signals_.Take()) {
      if (*signal != SIGPIPE) return *signal;
    }
    WaitReadable(signals_.fd(), kNoDeadline);
  }
}

}  // namespace orbitkv::os
