// The kernel's ring for reads and writes that do not block (io_uring, through liburing), as far as files need it.
//
// Owns: the ring. Whatever an operation reads from or writes into must stay where it is until the
//       operation was reaped: closing the ring does not wait for the device.
// Threads: one. Blocks: no; completions are announced on the eventfd that Create was given.
// Units: bytes. Limits: at most capacity() operations between Push and Reap.
// Errors: Create kUnsupported when this kernel or container permits no ring; RegisterBuffer kExhausted when memory may
//         not be locked. An operation's own error comes with its completion, as a negative errno.
// Invariant: each pushed operation is reaped once, after a Submit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/os/io_piece.h"

struct io_uring;  // NOLINT(readability-identifier-naming): the library's name

namespace orbitkv::os {

class IoRing {
 public:
  enum class Op : std::uint8_t { kRead, kWrite, kSync };
  struct Request {
    Op op = Op::kRead;
    int fd = -1;
    std::uint64_t offset = 0;
    std::span<const IoPiece> pieces;  // stays until the operation was reaped
    std::uint64_t token = 0;
  };
  struct Completion {
    std::uint64_t token = 0;
    std::int32_t result = 0;  // bytes, or a negative errno
  };

  static Result<IoRing> Create(std::uint32_t capacity, int event_fd);

  // Operations of one piece that lie inside this memory are cheaper from now on. Once.
  Status RegisterBuffer(std::span<std::byte> memory);
  // False when capacity() operations are under way.
  bool Push(const Request& request);
  // Hands what was pushed to the kernel.
  Status Submit();
  // As many as there are and fit into out.
  std::size_t Reap(std::span<Completion> out);
  std::uint32_t capacity() const { return capacity_; }

 private:
  struct Close {
    void operator()(io_uring* ring) const;
  };
  IoRing() = default;

  std::unique_ptr<io_uring, Close> ring_;
  std::span<std::byte> buffer_;
  std::uint32_t capacity_ = 0;
  std::uint32_t under_way_ = 0;
};

}  // namespace orbitkv::os
