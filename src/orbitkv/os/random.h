// Random bytes from the kernel, good for capabilities and incarnations.
// Threads: any. Blocks: only before the kernel's generator is seeded, at boot. Errors: kIo.
#pragma once

#include <cstddef>
#include <span>

#include "orbitkv/base/result.h"

namespace orbitkv::os {

Status RandomBytes(std::span<std::byte> out);

}  // namespace orbitkv::os
