// Opens a store's file: gives an empty one its format, and finds what is in one that has it.
//
// What sealed segments hold is read from their summaries, that of others by going through their records; those are
// sealed then. Of two records of one key the later one counts.
//
// Owns: nothing. Threads: one. Blocks: for the device, through `wait`. Units: bytes; seconds since 1970.
// Errors: kUnsupported (with the version) for a newer format, kInvalid for what is no store and not empty, kRefused
//         (with its size) for a store of another size, kIo and the like of the device.
// Invariant: a summary is believed as far as it matches its checksum; each record is verified again when it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/orbite/engine.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/store/index.h"
#include "orbitkv/store/segments.h"
#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

// Reads and writes that are waited for.
class BlockingFile {
 public:
  // wait: until the engine may have something; returns the time.
  using Wait = std::function<std::uint64_t()>;
  struct Piece {
    std::uint64_t offset = 0;  // in the file
    std::span<std::byte> memory;
  };

  static Result<BlockingFile> Create(orbite::Engine& engine, orbite::RegionId file, std::uint64_t memory_bytes,
                                     Wait wait);
  BlockingFile(BlockingFile&&) = default;
  BlockingFile& operator=(BlockingFile&&) = delete;
  ~BlockingFile();

  // Where pieces lie.
  std::span<std::byte> memory() const { return memory_.bytes(); }
  Status Read(std::span<const Piece> pieces) { return Move(pieces, false); }
  // On the device when it returns, whatever happens to the power.
  Status Write(std::span<const Piece> pieces) { return Move(pieces, true); }

 private:
  BlockingFile(orbite::Engine& engine, orbite::RegionId file, os::Mapping memory, orbite::RegionId region, Wait wait)
      : engine_(&engine), file_(file), memory_(std::move(memory)), region_(region), wait_(std::move(wait)) {}
  Status Move(std::span<const Piece> pieces, bool write);

  orbite::Engine* engine_;
  orbite::RegionId file_;
  os::Mapping memory_;
  orbite::RegionId region_;
  Wait wait_;
};

struct FormatRequest {
  std::uint64_t file_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint32_t align = 512;
  wire::StoreUuid uuid{};
  std::uint64_t unix_s = 0;
};

struct RecoveryReport {
  bool formatted = false;
  std::uint32_t sealed_segments = 0;
  std::uint32_t scanned_segments = 0;  // had no summary
  std::uint32_t damaged_summaries = 0;
  std::uint32_t unreadable_segments = 0;
  std::uint64_t records = 0;
  std::uint64_t torn_records = 0;  // of scanned segments
  std::uint64_t read_bytes = 0;
};

inline constexpr std::uint64_t kMinSegments = 4;

// kInvalid when the file is too small for kMinSegments.
Result<wire::Superblock> ReadOrFormat(BlockingFile& file, const FormatRequest& request, RecoveryReport& report);
// The superblock of a file that must have one.
Result<wire::Superblock> ReadSuperblock(BlockingFile& file);

struct SegmentSummary {
  bool used = false;
  wire::SegmentHeader header{};
  bool unreadable = false;
  bool sealed = false;   // the summary is there and right
  bool damaged = false;  // there is something like a summary of this segment
  wire::SummaryFooter footer{};
  std::vector<wire::SummaryEntry> entries{};
};
// Header and summary of each of these segments, in order.
Status ReadSummaries(BlockingFile& file, const wire::Superblock& superblock, std::span<const std::uint32_t> segments,
                     std::vector<SegmentSummary>& out);
// Of the file that Recover and ReadSummaries are given.
std::uint64_t RecoveryMemoryBytes(const wire::Superblock& superblock);
Status Recover(BlockingFile& file, const wire::Superblock& superblock, Index& index, Segments& segments,
               std::uint64_t unix_s, RecoveryReport& report);

}  // namespace orbitkv::store
