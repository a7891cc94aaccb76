// Processes by descriptor, so that nothing depends on a number that the kernel may give to another process.
// Owns: nothing; descriptors are the caller's. Threads: any. Blocks: no.
// Errors: kNotFound when the process is gone, kUnsupported before Linux 5.3, kInvalid for a descriptor of another kind.
#pragma once

#include <cstdint>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

Result<UniqueFd> OpenPidfd(std::int32_t pid);
Result<UniqueFd> OwnPidfd();
std::int32_t OwnPid();
std::uint32_t OwnUid();
// The pid as this process's PID namespace sees it: 0 when it is not visible here, -1 when the process is gone.
// kInvalid when the descriptor is not a pidfd.
Result<std::int32_t> PidOf(int pidfd);
// Whether the process of that number is gone or being torn down; for messages, since numbers are used again.
bool ProcessEnding(std::int32_t pid);
// Whether the process has ended (its pidfd is readable).
bool ProcessEnded(int pidfd);

}  // namespace orbitkv::os
