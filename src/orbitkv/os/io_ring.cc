#include "orbitkv/os/io_ring.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <liburing.h>

#include "orbitkv/base/check.h"

namespace orbitkv::os {
namespace {

static_assert(sizeof(IoPiece) == sizeof(iovec));
static_assert(offsetof(IoPiece, data) == offsetof(iovec, iov_base));
static_assert(offsetof(IoPiece, bytes) == offsetof(iovec, iov_len));

// liburing answers with a negative errno instead of setting it.
std::unexpected<Error> FailUring(Code code, int answer, const char* what, std::uint64_t bytes = 0) {
  errno = -answer;
  auto error = FailErrno(what, bytes);
  error.error().code = code;
  return error;
}

}  // namespace

void IoRing::Close::operator()(io_uring* ring) const {
  io_uring_queue_exit(ring);
  delete ring;
}

Result<IoRing> IoRing::Create(std::uint32_t capacity, int event_fd) {
  auto opened = std::make_unique<io_uring>();
  if (const int answer = io_uring_queue_init(capacity, opened.get(), IORING_SETUP_CLAMP); answer < 0) {
    return FailUring(Code::kUnsupported, answer, "the kernel permits no io_uring here");
  }
  IoRing ring;
  ring.ring_.reset(opened.release());
  if (const int answer = io_uring_register_eventfd(ring.ring_.get(), event_fd); answer < 0) {
    return FailUring(Code::kUnsupported, answer, "io_uring cannot signal an eventfd");
  }
  ring.capacity_ = std::min(capacity, ring.ring_->sq.ring_entries);
  return ring;
}

Status IoRing::RegisterBuffer(std::span<std::byte> memory) {
  const iovec piece{memory.data(), memory.size()};
  if (const int answer = io_uring_register_buffers(ring_.get(), &piece, 1); answer < 0) {
    return FailUring(Code::kExhausted, answer, "memory for reads and writes cannot be locked", memory.size());
  }
  buffer_ = memory;
  return {};
}

bool IoRing::Push(const Request& request) {
  if (under_way_ == capacity_) return false;
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  if (entry == nullptr) return false;  // not submitted yet
  if (request.op == Op::kSync) {
    io_uring_prep_fsync(entry, request.fd, IORING_FSYNC_DATASYNC);
  } else if (const IoPiece& first = request.pieces.front();
             request.pieces.size() == 1 && !buffer_.empty() && first.data >= buffer_.data() &&
             first.data + first.bytes <= buffer_.data() + buffer_.size()) {
    const auto bytes = static_cast<unsigned>(first.bytes);
    if (request.op == Op::kRead) {
      io_uring_prep_read_fixed(entry, request.fd, first.data, bytes, request.offset, 0);
    } else {
      io_uring_prep_write_fixed(entry, request.fd, first.data, bytes, request.offset, 0);
    }
  } else {
    const auto* pieces = reinterpret_cast<const iovec*>(request.pieces.data());
    const auto count = static_cast<unsigned>(request.pieces.size());
    if (request.op == Op::kRead) {
      io_uring_prep_readv(entry, request.fd, pieces, count, request.offset);
    } else {
      io_uring_prep_writev(entry, request.fd, pieces, count, request.offset);
    }
  }
  entry->user_data = request.token;
  ++under_way_;
  return true;
}

Status IoRing::Submit() {
  while (io_uring_sq_ready(ring_.get()) > 0) {
    const int answer = io_uring_submit(ring_.get());
    if (answer == -EINTR) continue;
    if (answer < 0) return FailUring(Code::kIo, answer, "io_uring takes no operations");
    if (answer == 0) return Fail(Code::kBusy, "io_uring takes no operations");
  }
  return {};
}

std::size_t IoRing::Reap(std::span<Completion> out) {
  std::array<io_uring_cqe*, 64> entries{};
  std::size_t count = 0;
  while (count < out.size()) {
    const auto wanted = static_cast<unsigned>(std::min(entries.size(), out.size() - count));
    const unsigned got = io_uring_peek_batch_cqe(ring_.get(), entries.data(), wanted);
    if (got == 0) break;
    for (unsigned i = 0; i < got; ++i) out[count++] = {entries[i]->user_data, entries[i]->res};
    io_uring_cq_advance(ring_.get(), got);
  }
  ORBITKV_CHECK(count <= under_way_);
  under_way_ -= static_cast<std::uint32_t>(count);
  return count;
}

}  // namespace orbitkv::os
