// How the fuzzers of decoders take their input: the first byte chooses the decoder, the rest is its payload.
// Owns: the payload. Threads: values. Blocks: no. Included by fuzzers alone.
// Invariant: the payload lies in memory of exactly its size, so that AddressSanitizer sees a read beyond it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace orbitkv {

struct FuzzInput {
  // size is at least 1.
  FuzzInput(const std::uint8_t* data, std::size_t size)
      : choice(data[0]),
        payload(reinterpret_cast<const std::byte*>(data + 1), reinterpret_cast<const std::byte*>(data + size)) {}

  bool Same(const std::vector<std::byte>& again) const {
    return again.size() == payload.size() && std::memcmp(again.data(), payload.data(), again.size()) == 0;
  }

  const std::uint8_t choice;
  const std::vector<std::byte> payload;
};

}  // namespace orbitkv
