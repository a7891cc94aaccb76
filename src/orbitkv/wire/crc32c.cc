#include "orbitkv/wire/crc32c.h"

#include <isa-l/crc.h>

namespace orbitkv::wire {

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  // The library's parameter lacks a const; it only reads.
  auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  return ~crc32_iscsi(data, static_cast<int>(bytes.size()), ~seed);
}

}  // namespace orbitkv::wire
