// Memory with a name: files on a file system that lies in memory, so that they outlive the process that made them.
// Owns: nothing; descriptors are the caller's. Threads: any. Blocks: no.
// Units: bytes. Errors: kNotFound when a path does not exist, kRefused for a path that is no plain file of this user,
//        kIo otherwise.
// Invariant: files are created with mode 0600 and never through a symbolic link.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

struct MemoryFileSystem {
  enum class Kind : std::uint8_t { kTmpfs, kHugetlbfs, kOther };
  Kind kind = Kind::kOther;
  std::uint64_t page_bytes = 0;   // of its files; sizes are multiples of it
  std::uint64_t total_bytes = 0;  // 0: without a limit of its own
  std::uint64_t free_bytes = 0;
};
Result<MemoryFileSystem> MemoryFileSystemOf(const std::string& directory);

// A file that is there, for reading and writing; none when it is not.
Result<std::optional<UniqueFd>> OpenNamedMemory(const std::string& path);
// A new file of that size, which must not be there.
Result<UniqueFd> CreateNamedMemory(const std::string& path, std::uint64_t bytes);

}  // namespace orbitkv::os
