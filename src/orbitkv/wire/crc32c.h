// CRC32C (Castagnoli), which guards records of fixed size. Owns: nothing. Threads: any. Blocks: no.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace orbitkv::wire {

// seed: the value of what lies before, to go on with.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace orbitkv::wire
