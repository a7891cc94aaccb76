// How the dispatcher sleeps: a bounded spin, then until a client rings, another thread notifies or the time comes.
//
// Also owns the Manager page, which clients map read-only: it says whose life this is and whether the dispatcher
// sleeps. Owns: the page's memfd, the epoll descriptor, an eventfd for Notify. Watched doorbells stay the sessions'.
// Threads: Notify any; everything else the dispatcher. Blocks: Sleep, until its time; no client can prolong it.
// Units: nanoseconds, absolute CLOCK_MONOTONIC where named until.
// Errors: Create and Watch fail with kIo or kExhausted.
// Invariant: a request posted, or a Notify made, before or during Sleep ends it (waiting.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::channel {

class DispatcherWaiter {
 public:
  struct Options {
    Incarnation incarnation{};
    std::uint64_t spin_ns = 20'000;
  };
  static Result<std::unique_ptr<DispatcherWaiter>> Create(const Options& options);

  // Read-only descriptor of the Manager page, to be passed to clients.
  int page_fd() const { return read_only_page_.get(); }

  // From OnOpened until the session is destroyed. Look at its rings once after Watch.
  Status Watch(const ServerSession& session);
  void Unwatch(const ServerSession& session);

  // Ends the current or the next Sleep.
  void Notify();

  // Returns when has_work() is true, after a Notify, or at until_ns (os::kNoDeadline for never). has_work looks at
  // every ring; it is called many times.
  void Sleep(std::uint64_t until_ns, const std::function<bool()>& has_work);

  // Sessions whose doorbells ended the last Sleep; valid until the next one.
  std::span<const SessionId> rung() const { return std::span(rung_).first(rung_count_); }

  // Times that it really slept, for the idle gauge.
  std::uint64_t sleeps() const { return sleeps_; }

 private:
  static constexpr std::size_t kMostEvents = 64;

  explicit DispatcherWaiter(const Options& options) : options_(options) {}
  std::atomic<std::uint32_t>& asleep() const {
    return reinterpret_cast<wire::ManagerPage*>(page_.data())->dispatcher_asleep;
  }
  bool TakeNotified() {
    return notified_.load(std::memory_order_relaxed) && notified_.exchange(false, std::memory_order_acquire);
  }

  const Options options_;
  os::UniqueFd page_fd_;
  os::UniqueFd read_only_page_;
  os::Mapping page_;
  os::Epoll epoll_;
  os::EventFd event_;
  std::atomic<bool> notified_{false};
  std::array<SessionId, kMostEvents> rung_;
  std::size_t rung_count_ = 0;
  std::uint64_t sleeps_ = 0;
};

}  // namespace orbitkv::channel
