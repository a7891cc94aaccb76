#include "orbitkv/os/named_memory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

// As linux/magic.h has them.
constexpr std::uint32_t kTmpfsMagic = 0x01021994;
constexpr std::uint32_t kHugetlbfsMagic = 0x958458f6;

}  // namespace

Result<MemoryFileSystem> MemoryFileSystemOf(const std::string& directory) {
  struct statfs info = {};
  if (::statfs(directory.c_str(), &info) != 0) {
    auto error = FailErrno("cannot ask for a directory's file system");
    if (error.error().sys_errno == ENOENT) error.error().code = Code::kNotFound;
    return error;
  }
  MemoryFileSystem facts;
  const auto magic = static_cast<std::uint32_t>(info.f_type);
  if (magic == kTmpfsMagic) facts.kind = MemoryFileSystem::Kind::kTmpfs;
  if (magic == kHugetlbfsMagic) facts.kind = MemoryFileSystem::Kind::kHugetlbfs;
  facts.page_bytes = static_cast<std::uint64_t>(info.f_bsize);
  // Without a limit both are zero or all ones, as the file system likes.
  const bool limited = info.f_blocks != 0 && info.f_blocks != ~decltype(info.f_blocks){0};
  if (limited) {
    facts.total_bytes = static_cast<std::uint64_t>(info.f_blocks) * facts.page_bytes;
    facts.free_bytes = static_cast<std::uint64_t>(info.f_bfree) * facts.page_bytes;
  }
  return facts;
}

Result<std::optional<UniqueFd>> OpenNamedMemory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::optional<UniqueFd>();
    return FailErrno("cannot open a file of the pool");
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return FailErrno("cannot stat a file of the pool");
  if (!S_ISREG(info.st_mode)) return Fail(Code::kRefused, "a file of the pool is no plain file", info.st_mode);
  if (info.st_uid != ::getuid()) return Fail(Code::kRefused, "a file of the pool is another user's", info.st_uid);
  return std::optional(std::move(fd));
}

Result<UniqueFd> CreateNamedMemory(const std::string& path, std::uint64_t bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FailErrno("cannot create a file of the pool");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return FailErrno("cannot size a file of the pool", bytes);
  return fd;
}

}  // namespace orbitkv::os
