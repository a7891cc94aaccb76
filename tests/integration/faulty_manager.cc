// A Manager whose SSDs fail as it is told by lines on standard input, each answered by "ok" on standard output:
//   faulty_manager SEED MANAGER_ARGUMENTS...
//   fault KIND PERMILLE     from now on so many of a thousand operations of the stores go wrong in this way; KIND is
//                           none, io-error, no-space, gone, read-only, short, torn, flip or hold
// Held operations go on when another kind is told.
#include <atomic>
#include <cstdio>
#include <fmt/format.h>
#include <iostream>
#include <map>
#include <memory>
#include <poll.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/manager.h"
#include "orbitkv/manager/ssd_backing.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/signal_fd.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/testing/faulty_port.h"

namespace orbitkv::integration {
namespace {

using orbite::OperationKind;
using testing::Fault;

const std::map<std::string, Fault>& Kinds() {
  static const std::map<std::string, Fault> kinds = {
      {"none", Fault::kNone}, {"io-error", Fault::kIoError},   {"no-space", Fault::kNoSpace},
      {"gone", Fault::kGone}, {"read-only", Fault::kReadOnly}, {"short", Fault::kShort},
      {"torn", Fault::kTorn}, {"flip", Fault::kFlip},          {"hold", Fault::kHold},
  };
  return kinds;
}

bool Concerns(Fault fault, OperationKind kind) {
  if (fault == Fault::kFlip) return kind == OperationKind::kRead;
  if (fault == Fault::kNoSpace || fault == Fault::kReadOnly) return kind != OperationKind::kRead;
  return true;
}

// What the test has told, for the ports of all stores.
class Steering {
 public:
  void Tell(Fault fault, std::uint32_t permille) ORBITKV_EXCLUDES(mutex_) {
    permille_ = 0;
    fault_ = fault;
    permille_ = permille;
    const MutexLock lock(mutex_);
    for (const int fd : events_) os::SignalEventFd(fd);
  }
  // The descriptor outlives every call of Tell.
  void Add(int event_fd) ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    events_.push_back(event_fd);
  }
  Fault Choose(OperationKind kind, Prng& prng) const {
    const Fault fault = fault_;
    return Concerns(fault, kind) && prng.Below(1000) < permille_ ? fault : Fault::kNone;
  }
  bool holds() const { return fault_ == Fault::kHold; }

 private:
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<std::uint32_t> permille_{0};
  Mutex mutex_;
  std::vector<int> events_ ORBITKV_GUARDED_BY(mutex_);
};

class SteeredPort final : public orbite::Port {
 public:
  SteeredPort(std::unique_ptr<orbite::Port> inner, int event_fd, Steering& steering, std::uint64_t seed)
      : inner_(std::move(inner)), event_fd_(event_fd), steering_(steering), prng_(seed) {
    steering_.Add(event_fd);
    faulty_.set_fault([this](const orbite::Operation& operation) {
      const Fault fault = steering_.Choose(operation.kind, prng_);
      ended_here_ |= fault != Fault::kNone;
      return fault;
    });
  }
  bool Start(const orbite::Operation& operation) override { return faulty_.Start(operation); }
  void Flush() override {
    faulty_.Flush();
    if (std::exchange(ended_here_, false)) os::SignalEventFd(event_fd_);
  }
  void Reap(std::vector<orbite::Outcome>& out) override {
    if (!steering_.holds() && faulty_.held() != 0) faulty_.ReleaseHeld();
    faulty_.Reap(out);
  }
  void Pin(std::span<std::byte> memory) override { faulty_.Pin(memory); }

 private:
  const std::unique_ptr<orbite::Port> inner_;
  const int event_fd_;
  Steering& steering_;
  Prng prng_;
  testing::FaultyPort faulty_{*inner_};
  bool ended_here_ = false;
};

// Obeys until the other end is closed or `stop` is readable.
void Listen(Steering& steering, int stop_fd) {
  std::string text;
  for (;;) {
    pollfd watched[2] = {{0, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    char buffer[256];
    if (::poll(watched, 2, -1) < 0 || watched[1].revents != 0) return;
    const ssize_t got = ::read(0, buffer, sizeof buffer);
    if (got <= 0) return;
    text.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
      std::istringstream line(text.substr(0, end));
      text.erase(0, end + 1);
      std::string word;
      std::string kind;
      std::uint32_t permille = 0;
      line >> word >> kind >> permille;
      const bool known = word == "fault" && Kinds().contains(kind);
      if (known) steering.Tell(Kinds().at(kind), permille);
      fmt::print("{}\n", known ? "ok" : "unknown");
      std::fflush(stdout);
    }
  }
}

int Run(int argc, char** argv, char** envp) {
  if (argc < 2) return 2;
  std::uint64_t seed = std::stoull(argv[1]);
  argv[1] = argv[0];
  const auto line = manager::ParseCommandLine(argc - 1, argv + 1, envp);
  ORBITKV_CHECK(line.has_value());
  const auto signals = os::ShutdownSignals::Create();
  ORBITKV_CHECK(signals.has_value());
  Steering steering;
  auto backing = std::make_unique<manager::SsdBacking>(
      manager::SsdBacking::Options{.paths = line->config.ssd_paths,
                                   .bytes = line->config.ssd_bytes,
                                   .around = [&](std::unique_ptr<orbite::Port> port, int event_fd) {
                                     return std::make_unique<SteeredPort>(std::move(port), event_fd, steering, ++seed);
                                   }});
  const auto manager = manager::Manager::Start(line->config, std::move(backing));
  if (!manager) {
    fmt::print(stderr, "{}\n", manager.error().text);
    return 1;
  }
  fmt::print("{}\n", (*manager)->ReadyLine());
  std::fflush(stdout);
  const os::EventFd stop = os::EventFd::Create().value();
  os::Thread listener;
  ORBITKV_CHECK(listener.Start("listener", [&] { Listen(steering, stop.fd()); }).has_value());
  static_cast<void>(signals->Wait());
  stop.Signal();
  listener.Join();
  (*manager)->Stop();
  return 0;
}

}  // namespace
}  // namespace orbitkv::integration

int main(int argc, char** argv, char** envp) { return orbitkv::integration::Run(argc, argv, envp); }
