// Inside of copy_hash: the kernel for each instruction set, so that a test can run every one this CPU has.
// Threads: any. Blocks: no.
// Invariant: all kernels return the same value and store the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "orbitkv/copy/copy_hash.h"

namespace orbitkv::copy::internal {

enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512 };

inline constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};
// Below this a page is copied and then hashed by the library: one block of the hash's long form.
inline constexpr std::size_t kMinFusedBytes = 1024;

bool IsSupported(Isa isa);
Isa BestIsa();
// Like CopyAndHash, with the instruction set chosen by the caller; it must be supported.
std::uint64_t CopyAndHashWith(Isa isa, void* dst, const void* src, std::size_t bytes, Stores stores);

}  // namespace orbitkv::copy::internal
