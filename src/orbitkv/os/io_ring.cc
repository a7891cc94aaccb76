#include "orbitkv/os/io_ring.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

static_assert(sizeof(IoPiece) == sizeof(iovec));
static_assert(offsetof(IoPiece, data) == offsetof(iovec, iov_base));
static_assert(offsetof(IoPiece, bytes) == offsetof(iovec, iov_len));

std::uint32_t& WordAt(const Mapping& mapping, std::uint32_t offset) {
  return *reinterpret_cast<std::uint32_t*>(mapping.data() + offset);
}

long Enter(int fd, std::uint32_t to_submit) {
  return ::syscall(__NR_io_uring_enter, fd, to_submit, 0U, 0U, nullptr, std::size_t{0});
}

}  // namespace

Result<IoRing> IoRing::Create(std::uint32_t capacity, int event_fd) {
  io_uring_params parameters = {};
  parameters.flags = IORING_SETUP_CLAMP;
  IoRing ring;
  ring.fd_ = UniqueFd(static_cast<int>(::syscall(__NR_io_uring_setup, capacity, &parameters)));
  if (!ring.fd_.valid()) {
    auto error = FailErrno("the kernel permits no io_uring here");
    error.error().code = Code::kUnsupported;
    return error;
  }
  if ((parameters.features & IORING_FEAT_SINGLE_MMAP) == 0) {
    return Fail(Code::kUnsupported, "this kernel's io_uring is too old");
  }
  const std::uint64_t bytes =
      std::max(parameters.sq_off.array + parameters.sq_entries * sizeof(std::uint32_t),
               static_cast<std::size_t>(parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe)));
  const int fd = ring.fd_.get();
  ORBITKV_ASSIGN_OR_RETURN(ring.ring_, Mapping::Map(fd, bytes, Access::kReadWrite, IORING_OFF_SQ_RING));
  ORBITKV_ASSIGN_OR_RETURN(ring.entries_, Mapping::Map(fd, parameters.sq_entries * sizeof(io_uring_sqe),
                                                       Access::kReadWrite, IORING_OFF_SQES));
  if (::syscall(__NR_io_uring_register, fd, IORING_REGISTER_EVENTFD, &event_fd, 1) != 0) {
    auto error = FailErrno("io_uring cannot signal an eventfd");
    error.error().code = Code::kUnsupported;
    return error;
  }
  ring.capacity_ = std::min(capacity, parameters.sq_entries);
  ring.submit_tail_at_ = parameters.sq_off.tail;
  ring.submit_array_at_ = parameters.sq_off.array;
  ring.submit_mask_ = WordAt(ring.ring_, parameters.sq_off.ring_mask);
  ring.submit_tail_ = WordAt(ring.ring_, parameters.sq_off.tail);
  ring.done_head_at_ = parameters.cq_off.head;
  ring.done_tail_at_ = parameters.cq_off.tail;
  ring.done_mask_ = WordAt(ring.ring_, parameters.cq_off.ring_mask);
  ring.done_at_ = parameters.cq_off.cqes;
  return ring;
}

Status IoRing::RegisterBuffer(std::span<std::byte> memory) {
  const iovec piece{memory.data(), memory.size()};
  if (::syscall(__NR_io_uring_register, fd_.get(), IORING_REGISTER_BUFFERS, &piece, 1) != 0) {
    auto error = FailErrno("memory for reads and writes cannot be locked", memory.size());
    error.error().code = Code::kExhausted;
    return error;
  }
  buffer_ = memory;
  return {};
}

bool IoRing::Push(const Request& request) {
  if (under_way_ == capacity_) return false;
  io_uring_sqe entry = {};
  entry.fd = request.fd;
  entry.off = request.offset;
  entry.user_data = request.token;
  if (request.op == Op::kSync) {
    entry.opcode = IORING_OP_FSYNC;
    entry.fsync_flags = IORING_FSYNC_DATASYNC;
    entry.off = 0;
  } else if (const IoPiece& first = request.pieces.front();
             request.pieces.size() == 1 && !buffer_.empty() && first.data >= buffer_.data() &&
             first.data + first.bytes <= buffer_.data() + buffer_.size()) {
    entry.opcode = request.op == Op::kRead ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
    entry.addr = reinterpret_cast<std::uint64_t>(first.data);
    entry.len = static_cast<std::uint32_t>(first.bytes);
  } else {
    entry.opcode = request.op == Op::kRead ? IORING_OP_READV : IORING_OP_WRITEV;
    entry.addr = reinterpret_cast<std::uint64_t>(request.pieces.data());
    entry.len = static_cast<std::uint32_t>(request.pieces.size());
  }
  const std::uint32_t slot = submit_tail_ & submit_mask_;
  std::memcpy(entries_.data() + slot * sizeof entry, &entry, sizeof entry);
  WordAt(ring_, submit_array_at_ + slot * static_cast<std::uint32_t>(sizeof(std::uint32_t))) = slot;
  ++submit_tail_;
  ++under_way_;
  ++unsubmitted_;
  // The kernel reads entries up to the tail: they must be complete before it moves.
  std::atomic_ref<std::uint32_t>(WordAt(ring_, submit_tail_at_)).store(submit_tail_, std::memory_order_release);
  return true;
}

Status IoRing::Submit() {
  while (unsubmitted_ > 0) {
    const long taken = Enter(fd_.get(), unsubmitted_);
    if (taken < 0) {
      if (errno == EINTR) continue;
      return FailErrno("io_uring takes no operations", unsubmitted_);
    }
    if (taken == 0) return Fail(Code::kBusy, "io_uring takes no operations", unsubmitted_);
    unsubmitted_ -= static_cast<std::uint32_t>(taken);
  }
  return {};
}

std::size_t IoRing::Reap(std::span<Completion> out) {
  std::uint32_t head = WordAt(ring_, done_head_at_);
  const std::uint32_t tail =
      std::atomic_ref<std::uint32_t>(WordAt(ring_, done_tail_at_)).load(std::memory_order_acquire);
  std::size_t count = 0;
  for (; head != tail && count < out.size(); ++head, ++count) {
    io_uring_cqe entry = {};
    std::memcpy(&entry, ring_.data() + done_at_ + (head & done_mask_) * sizeof entry, sizeof entry);
    out[count] = {entry.user_data, entry.res};
  }
  // The kernel may write over entries before the head: they must have been read before it moves.
  std::atomic_ref<std::uint32_t>(WordAt(ring_, done_head_at_)).store(head, std::memory_order_release);
  under_way_ -= static_cast<std::uint32_t>(count);
  return count;
}

}  // namespace orbitkv::os
