// Memory as a file descriptor: created with its size, passed to other processes, sealed against resizing.
// Owns: nothing; descriptors are the caller's. Threads: any. Blocks: Reserve, while the kernel finds memory.
// Units: bytes; offsets and lengths of Reserve and Discard are multiples of the page size.
// Errors: kExhausted when memory or the file system is full, kIo with errno otherwise.
#pragma once

#include <cstdint>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

Result<UniqueFd> CreateMemfd(const char* name, std::uint64_t bytes);
// The same of reserved 2 MiB pages; bytes is a multiple of 2 MiB. kUnsupported on a kernel without them.
Result<UniqueFd> CreateHugeMemfd(const char* name, std::uint64_t bytes);
// Free reserved pages of 2 MiB, in bytes.
std::uint64_t FreeHugePageBytes();
// Whether it consists of huge pages.
bool IsHuge(int fd);
// Forbids growing, shrinking and further seals. kIo on a file that cannot be sealed (a named tmpfs file).
Status SealSize(int fd);
// Whether growing and shrinking are forbidden; false for files that know no seals.
Result<bool> HasSizeSeals(int fd);
Result<std::uint64_t> FileBytes(int fd);
// How much memory lies behind the file by now: what was reserved or touched.
Result<std::uint64_t> AllocatedBytes(int fd);
// Allocates the memory behind a range, so that touching it later cannot fail; charged to the caller's memory cgroup.
Status Reserve(int fd, std::uint64_t offset, std::uint64_t bytes);
// Gives the memory behind a range back; it reads as zeros afterwards.
Status Discard(int fd, std::uint64_t offset, std::uint64_t bytes);
// A second descriptor of the same file that cannot be mapped for writing.
Result<UniqueFd> ReopenReadOnly(int fd);

}  // namespace orbitkv::os
