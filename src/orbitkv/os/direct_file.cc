#include "orbitkv/os/direct_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

#include "orbitkv/os/mapping.h"

namespace orbitkv::os {
namespace {

constexpr std::uint32_t kCoarseAlign = 4096;
constexpr std::uint64_t kBlankPieceBytes = 1U << 20U;

std::unexpected<Error> FailDevice(const char* text, std::uint64_t a = 0) {
  auto error = FailErrno(text, a);
  if (error.error().sys_errno == ENOENT) error.error().code = Code::kNotFound;
  if (error.error().sys_errno == ENOSPC || error.error().sys_errno == EDQUOT || error.error().sys_errno == EFBIG) {
    error.error().code = Code::kExhausted;
  }
  return error;
}

int OpenFlags(DirectFile::Use use) {
  switch (use) {
    case DirectFile::Use::kReadOnly: return O_RDONLY | O_CLOEXEC;
    case DirectFile::Use::kReadWrite: return O_RDWR | O_CLOEXEC;
    case DirectFile::Use::kCreateIfAbsent: return O_RDWR | O_CREAT | O_CLOEXEC;
  }
  return O_RDONLY | O_CLOEXEC;
}

using Transfer = ssize_t (*)(int, const iovec*, int, off_t);

Result<std::uint64_t> MovePieces(Transfer transfer, int fd, std::uint64_t offset, std::span<const IoPiece> pieces,
                                 const char* text) {
  const auto* first = reinterpret_cast<const iovec*>(pieces.data());
  std::vector<iovec> rest(first, first + pieces.size());
  std::uint64_t done = 0;
  std::size_t at = 0;
  while (at < rest.size()) {
    const ssize_t moved =
        transfer(fd, rest.data() + at, static_cast<int>(rest.size() - at), static_cast<off_t>(offset + done));
    if (moved < 0) {
      if (errno == EINTR) continue;
      return FailDevice(text, offset + done);
    }
    if (moved == 0) break;
    done += static_cast<std::uint64_t>(moved);
    auto left = static_cast<std::size_t>(moved);
    while (at < rest.size() && left >= rest[at].iov_len) left -= rest[at++].iov_len;
    if (at < rest.size() && left > 0) {
      rest[at].iov_base = static_cast<std::byte*>(rest[at].iov_base) + left;
      rest[at].iov_len -= left;
    }
  }
  return done;
}

}  // namespace

Result<DirectFile> DirectFile::Open(const std::string& path, Use use) {
  DirectFile file;
  // Without O_DIRECT first: what it is must be known before it is touched, and a file system may refuse the flag.
  file.fd_ = UniqueFd(::open(path.c_str(), OpenFlags(use) | O_NONBLOCK, 0600));
  if (!file.fd_.valid()) return FailDevice("cannot open a file");
  struct stat info = {};
  if (::fstat(file.fd_.get(), &info) != 0) return FailDevice("cannot stat a file");
  file.block_device_ = S_ISBLK(info.st_mode);
  if (!file.block_device_ && !S_ISREG(info.st_mode)) {
    return Fail(Code::kInvalid, "it is neither a regular file nor a block device");
  }
  file.bytes_ = static_cast<std::uint64_t>(info.st_size);
  if (file.block_device_ && ::ioctl(file.fd_.get(), BLKGETSIZE64, &file.bytes_) != 0) {
    return FailDevice("cannot ask a device for its size");
  }
  if (use != Use::kReadOnly) ORBITKV_TRY(file.Lock());
  const int flags = ::fcntl(file.fd_.get(), F_GETFL);
  if (flags < 0) return FailDevice("cannot ask for a file's flags");
  file.direct_ = ::fcntl(file.fd_.get(), F_SETFL, (flags & ~O_NONBLOCK) | O_DIRECT) == 0;
  if (!file.direct_ && ::fcntl(file.fd_.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return FailDevice("cannot set a file's flags");
  }
  file.ProbeAlign();
  return file;
}

// The lock of the open file decides. Beside it lies a record lock of this process, which only serves to name its pid.
Status DirectFile::Lock() {
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return FailDevice("cannot lock a file");
    struct flock holder = {};
    holder.l_type = F_WRLCK;
    holder.l_whence = SEEK_SET;
    const bool known = ::fcntl(fd_.get(), F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0;
    return Fail(Code::kRefused, "another process has it", known ? static_cast<std::uint64_t>(holder.l_pid) : 0);
  }
  struct flock own = {};
  own.l_type = F_WRLCK;
  own.l_whence = SEEK_SET;
  static_cast<void>(::fcntl(fd_.get(), F_SETLK, &own));
  return {};
}

// A device whose sectors are larger than 512 bytes refuses a smaller read.
void DirectFile::ProbeAlign() {
  if (!direct_) return;
  alignas(kCoarseAlign) static thread_local std::array<std::byte, kCoarseAlign> buffer;
  // Not at 0: an offset that is a multiple of 4096 would pass on every device.
  const ssize_t got = ::pread(fd_.get(), buffer.data(), 512, 512);
  align_ = got < 0 && errno == EINVAL ? kCoarseAlign : 512;
}

Status DirectFile::Reserve(std::uint64_t bytes) {
  if (block_device_) {
    return bytes <= bytes_ ? Status() : Fail(Code::kExhausted, "the device is smaller", bytes_, bytes);
  }
  while (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP) return Fail(Code::kUnsupported, "its file system cannot reserve space");
    auto error = FailDevice("cannot reserve its space", bytes);
    // What was reserved before there was no more.
    static_cast<void>(::ftruncate(fd_.get(), static_cast<off_t>(bytes_)));
    return error;
  }
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) return FailDevice("cannot stat a file");
  bytes_ = static_cast<std::uint64_t>(info.st_size);
  ProbeAlign();
  return {};
}

Result<bool> DirectFile::IsBlank() const {
  ORBITKV_ASSIGN_OR_RETURN(const Mapping memory, Mapping::Anonymous(kBlankPieceBytes));
  for (std::uint64_t at = 0; at < bytes_;) {
    // Where the file system does not say, everything counts as written.
    const off_t written = ::lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
    if (written < 0 && errno == ENXIO) break;
    if (written > 0) at = static_cast<std::uint64_t>(written) / kCoarseAlign * kCoarseAlign;
    const IoPiece piece{memory.data(), kBlankPieceBytes};
    ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t got, ReadPieces(fd_.get(), at, {&piece, 1}));
    if (std::ranges::any_of(memory.bytes().first(got), [](std::byte byte) { return byte != std::byte{0}; })) {
      return false;
    }
    if (got < kBlankPieceBytes) break;
    at += got;
  }
  return true;
}

Result<std::uint64_t> ReadPieces(int fd, std::uint64_t offset, std::span<const IoPiece> pieces) {
  return MovePieces(&::preadv, fd, offset, pieces, "cannot read a file");
}

Result<std::uint64_t> WritePieces(int fd, std::uint64_t offset, std::span<const IoPiece> pieces) {
  return MovePieces(&::pwritev, fd, offset, pieces, "cannot write a file");
}

Status SyncData(int fd) {
  while (::fdatasync(fd) != 0) {
    if (errno != EINTR) return FailDevice("cannot sync a file");
  }
  return {};
}

}  // namespace orbitkv::os
