// The bytes of an SSD store: superblock, segment headers, records, segment summaries. docs/formats/store.md has them as
// tables.
//
// Owns: nothing; structs are copies. Threads: values. Blocks: no.
// Units: bytes; times in seconds since 1970. A struct begins a range of the file that starts at a multiple of the
//        store's alignment; what follows it up to the next multiple is zero.
// Errors: Decode kInvalid for bytes that are no such struct, kUnsupported (with the version) for one of a newer format,
//         kCorrupt for a checksum that does not match.
// Invariant: what Decode returns was sealed by Seal of this format version.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::wire {

inline constexpr std::uint32_t kStoreVersion = 1;
// Superblock, segment header and summary footer each have so much room.
inline constexpr std::uint64_t kStoreBlockBytes = 4096;

using StoreUuid = std::array<std::byte, 16>;

struct Superblock {
  static constexpr std::uint64_t kMagic = 0x45524f545356424fULL;  // "OBVSTORE"
  std::uint64_t magic = kMagic;
  std::uint32_t version = kStoreVersion;
  std::uint32_t align = 0;  // 512 or 4096: of everything that is read or written
  StoreUuid uuid{};
  std::uint64_t created_unix_s = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint32_t segment_count = 0;  // segment i begins at kStoreBlockBytes + i * segment_bytes
  std::uint32_t crc = 0;            // CRC32C of everything before it, here and below
};

struct SegmentHeader {
  static constexpr std::uint64_t kMagic = 0x204745535356424fULL;  // "OBVSSEG "
  std::uint64_t magic = kMagic;
  std::uint32_t version = kStoreVersion;
  std::uint32_t index = 0;
  StoreUuid uuid{};
  std::uint64_t sequence = 0;  // rises with each segment that is begun, and is never used again
  std::uint64_t opened_unix_s = 0;
  std::uint32_t zero = 0;
  std::uint32_t crc = 0;
};

// One component of a block: this, then the slot's bytes (pages and the list of their checksums).
struct RecordHeader {
  static constexpr std::uint64_t kMagic = 0x434552535356424fULL;  // "OBVSSREC"
  static constexpr std::uint32_t kHasParent = 1;
  std::uint64_t magic = kMagic;
  std::uint32_t version = kStoreVersion;
  std::uint32_t flags = 0;
  StoreUuid uuid{};
  std::uint64_t sequence = 0;  // of its segment
  state::Digest namespace_digest{};
  state::BlockHash hash{};
  state::BlockHash parent{};  // zero without kHasParent
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  std::uint32_t depth = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t checksum = 0;  // of the slot: binds key, length and pages
  std::uint64_t saved_unix_s = 0;
  std::uint32_t page_count = 0;
  std::uint32_t crc = 0;
};

// What a summary says of one record.
struct SummaryEntry {
  state::Digest namespace_digest{};
  state::BlockHash hash{};
  state::BlockHash parent{};
  std::uint64_t checksum = 0;
  std::uint64_t saved_unix_s = 0;
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  std::uint32_t depth = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t offset_sectors = 0;  // of the record in its segment, in units of 512 bytes
  std::uint32_t flags = 0;           // as in the record
};

// The last block of a sealed segment. Its entries lie before it.
struct SummaryFooter {
  static constexpr std::uint64_t kMagic = 0x4d5553535356424fULL;  // "OBVSSSUM"
  std::uint64_t magic = kMagic;
  std::uint32_t version = kStoreVersion;
  std::uint32_t entry_count = 0;
  StoreUuid uuid{};
  std::uint64_t sequence = 0;        // of its segment
  std::uint64_t entries_offset = 0;  // in its segment
  std::uint64_t sealed_unix_s = 0;
  std::uint32_t entries_crc = 0;
  std::uint32_t crc = 0;
};

static_assert(sizeof(Superblock) == 64);
static_assert(sizeof(SegmentHeader) == 56);
static_assert(sizeof(RecordHeader) == 184);
static_assert(sizeof(SummaryEntry) == 136);
static_assert(sizeof(SummaryFooter) == 64);

void Seal(Superblock& superblock);
void Seal(SegmentHeader& header);
void Seal(RecordHeader& header);
void Seal(SummaryFooter& footer);

Result<Superblock> DecodeSuperblock(std::span<const std::byte> bytes);
Result<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes);
Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes);
Result<SummaryFooter> DecodeSummaryFooter(std::span<const std::byte> bytes);

std::uint32_t StoreCrc(std::span<const std::byte> bytes);

}  // namespace orbitkv::wire
