// Tells a process that was forked from the one that made an object, for the price of one load.
// Shared mappings are absent from a forked child and its threads do not exist, so calls on inherited objects are
// refused; objects that the child makes itself work. Threads: any. Blocks: no.
#pragma once

#include <cstdint>
#include <utility>

#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

// Counts the forks between this process and the first one that asked.
std::uint32_t ForkGeneration();

// The descriptor is closed in a child that is forked from now on, before fork returns there: for open files whose being
// open means something. At most kMostClosedInChild at a time; beyond that nothing happens.
inline constexpr int kMostClosedInChild = 1024;
void CloseInChild(int fd);
// Before it is closed here.
void KeepInChild(int fd);

class ForkGuard {
 public:
  ForkGuard() : generation_(ForkGeneration()) {}
  bool InChild() const { return ForkGeneration() != generation_; }

 private:
  std::uint32_t generation_;
};

// A descriptor that is open in this process alone: a forked child has it closed before it runs.
class OwnProcessFd {
 public:
  OwnProcessFd() = default;
  explicit OwnProcessFd(UniqueFd fd) : fd_(std::move(fd)) {
    if (fd_.valid()) CloseInChild(fd_.get());
  }
  OwnProcessFd(OwnProcessFd&& other) noexcept : fd_(std::move(other.fd_)), guard_(other.guard_) {}
  OwnProcessFd& operator=(OwnProcessFd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::move(other.fd_);
      guard_ = other.guard_;
    }
    return *this;
  }
  OwnProcessFd(const OwnProcessFd&) = delete;
  OwnProcessFd& operator=(const OwnProcessFd&) = delete;
  ~OwnProcessFd() { Close(); }
  bool valid() const { return fd_.valid(); }

 private:
  void Close() {
    if (!fd_.valid()) return;
    if (guard_.InChild()) {
      (void)fd_.release();  // its number may be somebody else's by now
      return;
    }
    KeepInChild(fd_.get());
    fd_.reset();
  }
  UniqueFd fd_;
  ForkGuard guard_;
};

}  // namespace orbitkv::os
