#include "orbitkv/os/epoll.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <time.h>

#include "orbitkv/os/clock.h"

namespace orbitkv::os {

Result<Epoll> Epoll::Create() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd.valid()) return FailErrno("cannot create an epoll descriptor");
  return Epoll(std::move(fd));
}

Status Epoll::Add(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return FailErrno("cannot watch a descriptor");
  return {};
}

Status Epoll::Change(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) return FailErrno("cannot change a watched descriptor");
  return {};
}

void Epoll::Remove(int fd) { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

Result<std::size_t> Epoll::Wait(std::span<Event> out, std::uint64_t deadline_ns) {
  std::array<epoll_event, 64> ready = {};
  timespec timeout = {};
  if (deadline_ns != kNoDeadline) {
    const std::uint64_t now = MonotonicNs();
    const std::uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000U);
    timeout.tv_nsec = static_cast<long>(left % 1'000'000'000U);
  }
  const int wanted = static_cast<int>(std::min(out.size(), ready.size()));
  const int got =
      ::epoll_pwait2(fd_.get(), ready.data(), wanted, deadline_ns == kNoDeadline ? nullptr : &timeout, nullptr);
  if (got < 0) {
    if (errno == EINTR) return 0;
    return FailErrno("cannot wait for events");
  }
  for (int i = 0; i < got; ++i) {
    const auto& event = ready[static_cast<std::size_t>(i)];
    out[static_cast<std::size_t>(i)] = {event.events, event.data.u64};
  }
  return static_cast<std::size_t>(got);
}

}  // namespace orbitkv::os
