// Waits for readiness of many descriptors.
// Owns: the epoll descriptor, not the watched ones; closing a watched descriptor's last copy removes it.
// Threads: Add and Remove any; Wait one. Blocks: Wait, until an event or the deadline. Units: CLOCK_MONOTONIC ns.
// Errors: kIo with errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/epoll.h>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

class Epoll {
 public:
  struct Event {
    std::uint32_t events = 0;
    std::uint64_t tag = 0;
  };

  static Result<Epoll> Create();
  Epoll() = default;

  // events: EPOLLIN, EPOLLOUT, EPOLLET ...
  Status Add(int fd, std::uint32_t events, std::uint64_t tag);
  Status Change(int fd, std::uint32_t events, std::uint64_t tag);
  void Remove(int fd);
  // The number of events written to out; 0 at the deadline or after a signal. A deadline in the past polls.
  Result<std::size_t> Wait(std::span<Event> out, std::uint64_t deadline_ns);

 private:
  explicit Epoll(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace orbitkv::os
