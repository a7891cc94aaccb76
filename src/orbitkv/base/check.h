// ORBITKV_CHECK guards our own invariants; it is on in every build and ends the process with file, line and condition.
// Never used on input (shared memory, a socket, a file, a caller's argument): input is refused with an Error.
// Threads: any. Blocks: no.
#pragma once

namespace orbitkv::internal {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace orbitkv::internal

#define ORBITKV_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::orbitkv::internal::CheckFailed(#condition, __FILE__, __LINE__))
