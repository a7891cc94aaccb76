// A file descriptor that is closed by its owner.
// Owns: the descriptor. Threads: one at a time. Blocks: no.
// Invariant: every descriptor that os/ creates is close-on-exec.
#pragma once

#include <utility>

#include "orbitkv/base/result.h"

namespace orbitkv::os {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// A second descriptor of the same open file.
Result<UniqueFd> Duplicate(int fd);

}  // namespace orbitkv::os
