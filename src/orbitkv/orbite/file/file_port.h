// The backend for files: through the kernel's ring where that is permitted, else with threads that block.
//
// Owns: the ring or the threads; not the descriptors, which outlive it. Threads: one, beside its own.
// Blocks: the destructor of the one with threads, for the operations under way.
// Units: bytes. Errors: MakeFilePort kExhausted when there is neither.
// Invariant: the eventfd is signalled after an operation has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/orbite/port.h"

namespace orbitkv::orbite {

struct FilePortOptions {
  std::vector<int> fds{};         // far 0, 1, ...
  int event_fd = -1;              // outlives the port
  std::uint32_t operations = 64;  // at once
  std::uint32_t fallback_threads = 8;
};

Result<std::unique_ptr<Port>> MakeRingPort(const FilePortOptions& options);
Result<std::unique_ptr<Port>> MakeThreadPort(const FilePortOptions& options);
// The first where it works, else the second. used_ring may be null.
Result<std::unique_ptr<Port>> MakeFilePort(const FilePortOptions& options, bool* used_ring);

}  // namespace orbitkv::orbite
