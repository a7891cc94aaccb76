// How much more memory this process may use: what the kernel calls available, and the room that each memory control
// group up the tree leaves (version 2 memory.max, version 1 memory.limit_in_bytes).
// Threads: any. Blocks: for the file system. Units: bytes.
// Errors: kIo or kInvalid when /proc/meminfo cannot be read; groups that cannot be read count as unlimited.
// Invariant: file pages that the kernel may drop at once (inactive_file) count as room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "orbitkv/base/result.h"

namespace orbitkv::os {

// Where the kernel shows these facts; tests point elsewhere.
struct MemoryPaths {
  std::string meminfo = "/proc/meminfo";
  std::string own_cgroups = "/proc/self/cgroup";
  std::string cgroup_root = "/sys/fs/cgroup";
};

Result<std::uint64_t> AvailableMemory(const MemoryPaths& paths = {});
// The smallest room of any group up the tree; nullopt when none has a limit.
std::optional<std::uint64_t> CgroupRoom(const MemoryPaths& paths = {});
// The smallest limit up the tree, whatever is in use; nullopt when there is none.
std::optional<std::uint64_t> CgroupLimit(const MemoryPaths& paths = {});
// Memory of the machine, in use or not.
Result<std::uint64_t> TotalMemory(const MemoryPaths& paths = {});
// The smaller of AvailableMemory and CgroupRoom.
Result<std::uint64_t> MemoryRoom(const MemoryPaths& paths = {});

}  // namespace orbitkv::os
