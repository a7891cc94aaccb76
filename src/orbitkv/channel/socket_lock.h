// Who may serve a socket path: one Manager at a time, in a directory that is its user's own.
// Owns: the lock that it returns, held by flock until it is destroyed; the file PATH.lock stays.
// Threads: any. Blocks: until wait_ns have passed.
// Errors: kRefused when another Manager answers (Error.a is its pid) or the directory is another user's, kTimedOut when
// the lock stays held by a process that does not answer, kInvalid or kIo for an unusable path.
#pragma once

#include <cstdint>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/os/file.h"

namespace orbitkv::channel {

Result<os::FileLock> LockSocket(const std::string& socket_path, std::uint64_t wait_ns);

}  // namespace orbitkv::channel
