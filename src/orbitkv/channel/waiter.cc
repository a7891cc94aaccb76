#include "orbitkv/channel/waiter.h"

#include <algorithm>
#include <array>
#include <new>

#include "orbitkv/base/check.h"
#include "orbitkv/channel/waiting.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::channel {
namespace {

constexpr int kLooksPerClock = 16;
constexpr std::uint64_t kNotifyTag = 0;  // no session's id

}  // namespace

Result<std::unique_ptr<DispatcherWaiter>> DispatcherWaiter::Create(const Options& options) {
  std::unique_ptr<DispatcherWaiter> waiter(new DispatcherWaiter(options));
  ORBITKV_ASSIGN_OR_RETURN(waiter->page_fd_, os::CreateMemfd("orbitkv-manager", wire::kPageBytes));
  ORBITKV_TRY(os::SealSize(waiter->page_fd_.get()));
  ORBITKV_ASSIGN_OR_RETURN(waiter->read_only_page_, os::ReopenReadOnly(waiter->page_fd_.get()));
  ORBITKV_ASSIGN_OR_RETURN(waiter->page_,
                           os::Mapping::Map(waiter->page_fd_.get(), wire::kPageBytes, os::Access::kReadWrite));
  auto* page = new (waiter->page_.data()) wire::ManagerPage{};
  page->magic = wire::kManagerMagic;
  page->abi = wire::kAbiMax;
  page->incarnation_hi = options.incarnation.hi;
  page->incarnation_lo = options.incarnation.lo;
  ORBITKV_ASSIGN_OR_RETURN(waiter->epoll_, os::Epoll::Create());
  ORBITKV_ASSIGN_OR_RETURN(waiter->event_, os::EventFd::Create());
  // Edges only: nothing here is ever read, so a counter that a client left at its maximum cannot hold anybody up.
  ORBITKV_TRY(waiter->epoll_.Add(waiter->event_.fd(), EPOLLIN | EPOLLET, kNotifyTag));
  return waiter;
}

Status DispatcherWaiter::Watch(const ServerSession& session) {
  return epoll_.Add(session.doorbell_fd(), EPOLLIN | EPOLLET, session.id().value());
}

// Needed although the session closes its copy: the client's copy would keep the watch alive.
void DispatcherWaiter::Unwatch(const ServerSession& session) { epoll_.Remove(session.doorbell_fd()); }

void DispatcherWaiter::Notify() {
  notified_.store(true, std::memory_order_release);
  if (SleeperAnnounced(asleep())) event_.Signal();
}

void DispatcherWaiter::Sleep(std::uint64_t until_ns, const std::function<bool()>& has_work) {
  rung_count_ = 0;
  const auto done = [this, &has_work] { return TakeNotified() || has_work(); };
  if (options_.spin_ns > 0) {
    // The first looks do not wait for the clock: a client that asks again at once is heard then.
    std::uint64_t spin_end = 0;
    do {
      for (int i = 0; i < kLooksPerClock; ++i) {
        if (done()) return;
        SpinPause();
      }
      if (spin_end == 0) spin_end = std::min(os::DeadlineAfter(options_.spin_ns), until_ns);
    } while (os::MonotonicNs() < spin_end);
  }
  AnnounceSleep(asleep());
  if (!done()) {
    std::array<os::Epoll::Event, kMostEvents> events;
    const auto woken = epoll_.Wait(events, until_ns);
    ORBITKV_CHECK(woken.has_value());
    for (const os::Epoll::Event& event : std::span(events).first(*woken)) {
      if (event.tag != kNotifyTag) rung_[rung_count_++] = SessionId(event.tag);
    }
    ++sleeps_;
    TakeNotified();
  }
  asleep().store(0, std::memory_order_relaxed);
}

}  // namespace orbitkv::channel
