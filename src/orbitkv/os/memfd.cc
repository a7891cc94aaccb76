#include "orbitkv/os/memfd.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "orbitkv/os/file.h"

namespace orbitkv::os {

namespace {

// log2 of the page size, in the bits that the kernel's MFD_HUGE_2MB has; the C library names only MFD_HUGETLB.
constexpr unsigned kHuge2MiB = 21U << 26U;

Result<UniqueFd> Create(const char* name, std::uint64_t bytes, unsigned flags) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.valid()) return FailErrno("cannot create a memfd");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return FailErrno("cannot size a memfd", bytes);
  return fd;
}

}  // namespace

Result<UniqueFd> CreateMemfd(const char* name, std::uint64_t bytes) { return Create(name, bytes, 0); }

Result<UniqueFd> CreateHugeMemfd(const char* name, std::uint64_t bytes) {
  auto fd = Create(name, bytes, MFD_HUGETLB | kHuge2MiB);
  if (!fd) fd.error().code = Code::kUnsupported;
  return fd;
}

std::uint64_t FreeHugePageBytes() {
  const auto text = ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", 64);
  if (!text) return 0;
  return std::strtoull(text->c_str(), nullptr, 10) << 21U;
}

bool IsHuge(int fd) {
  struct stat info = {};
  constexpr blksize_t kHugePage = 2 << 20;
  return ::fstat(fd, &info) == 0 && info.st_blksize >= kHugePage;
}

Status SealSize(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return FailErrno("cannot seal the size of a memfd");
  }
  return {};
}

Result<bool> HasSizeSeals(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    if (errno == EINVAL) return false;
    return FailErrno("cannot read the seals of a file");
  }
  return (seals & (F_SEAL_GROW | F_SEAL_SHRINK)) == (F_SEAL_GROW | F_SEAL_SHRINK);
}

Result<std::uint64_t> FileBytes(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return FailErrno("cannot read the size of a file");
  return static_cast<std::uint64_t>(info.st_size);
}

Result<std::uint64_t> AllocatedBytes(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return FailErrno("cannot read how much memory a file has");
  constexpr std::uint64_t kBlockBytes = 512;  // the unit of st_blocks, whatever the file system
  return static_cast<std::uint64_t>(info.st_blocks) * kBlockBytes;
}

namespace {

Status Allocate(int fd, int mode, std::uint64_t offset, std::uint64_t bytes, const char* text) {
  while (::fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    auto error = FailErrno(text, offset, bytes);
    if (error.error().sys_errno == ENOSPC || error.error().sys_errno == ENOMEM) error.error().code = Code::kExhausted;
    return error;
  }
  return {};
}

}  // namespace

Status Reserve(int fd, std::uint64_t offset, std::uint64_t bytes) {
  return Allocate(fd, 0, offset, bytes, "cannot reserve memory");
}

Status Discard(int fd, std::uint64_t offset, std::uint64_t bytes) {
  return Allocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes, "cannot give memory back");
}

Result<UniqueFd> ReopenReadOnly(int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  UniqueFd copy(::open(path, O_RDONLY | O_CLOEXEC));
  if (!copy.valid()) return FailErrno("cannot reopen a memfd for reading (is /proc mounted?)");
  return copy;
}

}  // namespace orbitkv::os
