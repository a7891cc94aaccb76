// Copying memory and hashing it in the same pass: each 64-byte load feeds the store and the hash.
// Owns: nothing.
// Threads: any; source and destination must not overlap. Blocks: no.
// Units: bytes; any length from 0, any alignment. Non-temporal stores are used only where the destination is 64-byte
//        aligned and at least 1 KiB long; otherwise the stores are ordinary ones.
// Invariants: CopyAndHash(dst, src, n) equals XXH3_64bits(src, n) with seed 0, whichever instructions this CPU has. The
//             value is that of the bytes that were stored, also while another thread writes to the source: a torn copy
//             never carries the checksum of the whole one. Non-temporal stores are not ordered by a release: the caller
//             runs StoreFence() before it tells another thread about the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orbitkv::copy {

enum class Stores : std::uint8_t {
  kOrdinary,     // the destination is read soon: it goes through the caches
  kNonTemporal,  // the destination is not read soon: it goes to memory, past the caches
};

// Returns the XXH3-64 of the copied bytes.
std::uint64_t CopyAndHash(void* dst, const void* src, std::size_t bytes, Stores stores);

// XXH3-64 of the bytes; nothing is stored.
std::uint64_t HashOnly(const void* src, std::size_t bytes);

// The plain copies that the fused one is measured against: memcpy and a loop of non-temporal stores.
void Copy(void* dst, const void* src, std::size_t bytes, Stores stores);

// Orders the non-temporal stores of this thread before everything it does later.
void StoreFence();

}  // namespace orbitkv::copy
