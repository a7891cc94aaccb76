// A piece of memory in a list of such, as the kernel takes it for reads and writes of several pieces.
// Owns: nothing. Threads: values. Blocks: no. Units: bytes. Invariant: the layout is the kernel's (checked in
// io_ring.cc).
#pragma once

#include <cstddef>

namespace orbitkv::os {

struct IoPiece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace orbitkv::os
