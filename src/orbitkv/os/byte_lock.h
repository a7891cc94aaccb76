// Locks on single bytes of a file that belong to an open file: whoever has a descriptor of that open file holds them,
// and they end with the last of those descriptors, whatever process that is in. Another open file of the same file,
// also in the same process, sees them. Owns: nothing. Threads: any. Blocks: no. Units: bytes; a byte need not exist.
// Errors: kIo; kUnsupported on kernels before 3.15.
#pragma once

#include <cstdint>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

// False when another open file holds it. The file is open for writing.
Result<bool> TryLockByte(int fd, std::uint64_t byte);
// Whether an open file other than this one holds it.
Result<bool> ByteIsLocked(int fd, std::uint64_t byte);
// The same file opened once more, for reading and writing: an open file of its own.
Result<UniqueFd> OpenAgain(int fd);

}  // namespace orbitkv::os
