// Small files, directories and lock files.
// Owns: FileLock owns its descriptor; the lock ends with the process at the latest. Threads: any.
// Blocks: for the file system. Errors: kNotFound when the path does not exist, kExhausted when it is full, kIo
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

// What tells two files apart, and one file from its changed self.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::uint64_t mtime_ns = 0;
  std::uint64_t ctime_ns = 0;
  auto operator<=>(const FileIdentity&) const = default;
};

Result<FileIdentity> IdentityOf(const std::string& path);
Result<FileIdentity> IdentityOf(int fd);
// The whole file; kInvalid when it is larger than max_bytes.
Result<std::string> ReadFile(const std::string& path, std::uint64_t max_bytes);
// For large files: the bytes at an offset, fewer than asked for only at the end of the file, 0 behind it.
Result<UniqueFd> OpenForReading(const std::string& path);
Result<std::size_t> ReadAt(int fd, std::uint64_t offset, std::span<std::byte> into);
// Writes a new file beside the path and renames it over it, so that a reader sees the old or the new content.
Status ReplaceFile(const std::string& path, std::string_view content);
Status RemoveFile(const std::string& path);
// Creates the directory with this mode if it is missing; its parent must exist. An existing directory is left as it is.
Status EnsureDirectory(const std::string& path, std::uint32_t mode);
struct DirectoryFacts {
  std::uint32_t uid = 0;
  std::uint32_t mode = 0;  // permission bits
};
Result<DirectoryFacts> DirectoryFactsOf(const std::string& path);

// An exclusive lock on a file that is never removed: removing it would let two owners hold locks on two inodes.
class FileLock {
 public:
  // nullopt when another process holds it.
  static Result<std::optional<FileLock>> TryAcquire(const std::string& path);
  // Replaces what the file says, for people and for those who find it locked.
  Status Write(std::string_view text) const;

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace orbitkv::os
