#include "orbitkv/os/file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

std::unexpected<Error> FailFile(const char* text) {
  auto error = FailErrno(text);
  if (error.error().sys_errno == ENOENT) error.error().code = Code::kNotFound;
  if (error.error().sys_errno == ENOSPC) error.error().code = Code::kExhausted;
  return error;
}

std::uint64_t Nanoseconds(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

FileIdentity Identity(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .bytes = static_cast<std::uint64_t>(info.st_size),
          .mtime_ns = Nanoseconds(info.st_mtim),
          .ctime_ns = Nanoseconds(info.st_ctim)};
}

Status WriteAll(int fd, std::string_view content) {
  while (!content.empty()) {
    const auto wrote = ::write(fd, content.data(), content.size());
    if (wrote < 0) {
      if (errno == EINTR) continue;
      return FailFile("cannot write a file");
    }
    content.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

}  // namespace

Result<FileIdentity> IdentityOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return FailFile("cannot stat a file");
  return Identity(info);
}

Result<FileIdentity> IdentityOf(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return FailFile("cannot stat a descriptor");
  return Identity(info);
}

Result<std::string> ReadFile(const std::string& path, std::uint64_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FailFile("cannot open a file");
  std::string content;
  char buffer[4096];
  for (;;) {
    const auto got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0) {
      if (errno == EINTR) continue;
      return FailFile("cannot read a file");
    }
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > max_bytes) return Fail(Code::kInvalid, "the file is larger than allowed", max_bytes);
  }
}

Result<UniqueFd> OpenForReading(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FailFile("cannot open a file");
  return fd;
}

Result<std::size_t> ReadAt(int fd, std::uint64_t offset, std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const auto got = ::pread(fd, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return FailFile("cannot read a file");
    }
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Status ReplaceFile(const std::string& path, std::string_view content) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return FailFile("cannot create a file");
  Status written = WriteAll(fd.get(), content);
  if (written && ::fsync(fd.get()) != 0) written = FailFile("cannot write a file");
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) written = FailFile("cannot replace a file");
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return FailFile("cannot remove a file");
  return {};
}

Status EnsureDirectory(const std::string& path, std::uint32_t mode) {
  if (::mkdir(path.c_str(), mode) == 0) return {};
  if (errno != EEXIST) return FailFile("cannot create a directory");
  return DirectoryFactsOf(path) ? Status() : Fail(Code::kInvalid, "the path exists and is not a directory");
}

Result<DirectoryFacts> DirectoryFactsOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return FailFile("cannot stat a directory");
  if (!S_ISDIR(info.st_mode)) return Fail(Code::kInvalid, "the path is not a directory");
  return DirectoryFacts{.uid = info.st_uid, .mode = info.st_mode & 07777U};
}

Result<std::optional<FileLock>> FileLock::TryAcquire(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return FailFile("cannot open the lock file (is its directory writable?)");
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return std::optional<FileLock>();
    return FailFile("cannot lock a file");
  }
  return std::optional<FileLock>(FileLock(std::move(fd)));
}

Status FileLock::Write(std::string_view text) const {
  if (::ftruncate(fd_.get(), 0) != 0 || ::lseek(fd_.get(), 0, SEEK_SET) != 0) return FailFile("cannot write a file");
  return WriteAll(fd_.get(), text);
}

}  // namespace orbitkv::os
