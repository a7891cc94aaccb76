// Goes through the bytes of a segment record by record, without its summary.
//
// Where no record begins, the next one is looked for at the following multiple of 4096: a flush leaves a gap up to
// there, and so does a write that never arrived.
//
// Owns: nothing. Threads: pure functions. Blocks: no. Units: bytes from the start of the segment.
// Errors: none; what is no record of this segment is passed over.
// Invariant: a record that is named lies wholly inside the bytes; `intact` says that its slot matches its checksum.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "orbitkv/store/facts.h"
#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

struct Scanned {
  wire::RecordHeader header;
  std::uint64_t offset = 0;
  bool intact = false;
};

void ScanSegment(std::span<const std::byte> bytes, const wire::Superblock& superblock, std::uint64_t sequence,
                 const std::function<void(const Scanned&)>& found);

// The entry that a summary has for this record.
wire::SummaryEntry EntryOf(const wire::RecordHeader& header, std::uint64_t offset);

inline state::StateKey KeyOf(const wire::RecordHeader& header) {
  return {header.namespace_digest, header.hash, header.group, header.shard};
}
inline state::StateKey KeyOf(const wire::SummaryEntry& entry) {
  return {entry.namespace_digest, entry.hash, entry.group, entry.shard};
}
Facts FactsOf(const wire::SummaryEntry& entry);

// The bytes of a summary, from entries_offset to the end of the segment.
std::vector<std::byte> EncodeSummary(const wire::Superblock& superblock, std::uint64_t sequence,
                                     std::span<const wire::SummaryEntry> entries, std::uint64_t unix_s);
// The entries between entries_offset and the footer; kCorrupt when they do not match it or lead out of the segment.
Result<std::vector<wire::SummaryEntry>> DecodeEntries(std::span<const std::byte> bytes,
                                                      const wire::SummaryFooter& footer,
                                                      const wire::Superblock& superblock);
// Whether the footer is that of this segment, and its numbers fit into it.
bool FooterFits(const wire::SummaryFooter& footer, const wire::Superblock& superblock, std::uint64_t sequence);

}  // namespace orbitkv::store
