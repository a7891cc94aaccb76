// Where things lie in a store's file.
// Owns: nothing. Threads: pure functions. Blocks: no. Units: bytes.
// Invariant: a sealed segment is header, records, entries of the summary, footer; records never reach into the rest.
#pragma once

#include <cstdint>

#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

inline constexpr std::uint64_t kSectorBytes = 512;
// Each write begins and ends at a multiple of this, so that none of them touches a sector of an earlier one.
inline constexpr std::uint64_t kWriteAlign = 4096;

constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t align) {
  return (value + align - 1) / align * align;
}

constexpr std::uint64_t SegmentOffset(const wire::Superblock& superblock, std::uint32_t segment) {
  return wire::kStoreBlockBytes + segment * superblock.segment_bytes;
}
// Of the header alone, and of the whole record.
constexpr std::uint64_t RecordHeaderBytes(std::uint32_t align) { return AlignUp(sizeof(wire::RecordHeader), align); }
constexpr std::uint64_t RecordBytes(std::uint32_t align, std::uint64_t payload_bytes) {
  return RecordHeaderBytes(align) + AlignUp(payload_bytes, align);
}
// Of a summary with so many entries, with its footer.
constexpr std::uint64_t SummaryBytes(std::uint64_t entries) {
  return AlignUp(entries * sizeof(wire::SummaryEntry), kWriteAlign) + wire::kStoreBlockBytes;
}
// The largest slot that a segment can keep.
constexpr std::uint64_t MaxPayloadBytes(std::uint64_t segment_bytes) {
  return segment_bytes - wire::kStoreBlockBytes - SummaryBytes(1) - 2 * wire::kStoreBlockBytes;
}

}  // namespace orbitkv::store
