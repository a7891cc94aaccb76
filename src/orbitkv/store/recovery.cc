#include "orbitkv/store/recovery.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/store/layout.h"
#include "orbitkv/store/scan.h"

namespace orbitkv::store {
namespace {

constexpr std::uint64_t kTailBytes = std::uint64_t{64} << 10U;  // most summaries fit
constexpr std::size_t kSegmentsAtOnce = 32;
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;
constexpr orbite::OwnerId kOwner{2};

std::uint64_t TailBytes(const wire::Superblock& superblock) {
  return std::min(kTailBytes, superblock.segment_bytes - wire::kStoreBlockBytes);
}

}  // namespace

std::uint64_t RecoveryMemoryBytes(const wire::Superblock& superblock) {
  return superblock.segment_bytes + kSegmentsAtOnce * (wire::kStoreBlockBytes + kTailBytes);
}

Result<BlockingFile> BlockingFile::Create(orbite::Engine& engine, orbite::RegionId file, std::uint64_t memory_bytes,
                                          Wait wait) {
  ORBITKV_ASSIGN_OR_RETURN(os::Mapping memory, os::Mapping::Anonymous(memory_bytes));
  const orbite::RegionId region = engine.AddMemory(memory.bytes(), kOwner);
  return BlockingFile(engine, file, std::move(memory), region, std::move(wait));
}

BlockingFile::~BlockingFile() {
  if (memory_.valid()) engine_->Remove(region_);
}

Status BlockingFile::Move(std::span<const Piece> pieces, bool write) {
  orbite::Batch batch;
  batch.id = 1;
  for (const Piece& piece : pieces) {
    const orbite::Place far{file_, piece.offset};
    const orbite::Place near{region_, static_cast<std::uint64_t>(piece.memory.data() - memory_.data())};
    batch.ranges.push_back({write ? near : far, write ? far : near, piece.memory.size()});
  }
  if (write) batch.sync = file_;
  ORBITKV_TRY(engine_->Submit(batch, 0));
  std::vector<orbite::Completion> completions;
  for (;;) {
    engine_->Poll(0, completions);
    for (const orbite::Completion& completion : completions) {
      if (completion.drained) return completion.status;
    }
    wait_();
  }
}

Result<wire::Superblock> ReadSuperblock(BlockingFile& file) {
  const auto block = file.memory().first(wire::kStoreBlockBytes);
  const BlockingFile::Piece piece{0, block};
  ORBITKV_TRY(file.Read({&piece, 1}));
  return wire::DecodeSuperblock(block);
}

Result<wire::Superblock> ReadOrFormat(BlockingFile& file, const FormatRequest& request, RecoveryReport& report) {
  const auto found = ReadSuperblock(file);
  if (found) {
    if (found->file_bytes != request.file_bytes) {
      return Fail(Code::kRefused, "the store was made for another size", found->file_bytes, request.file_bytes);
    }
    return *found;
  }
  const auto block = file.memory().first(wire::kStoreBlockBytes);
  const bool empty = std::ranges::all_of(block, [](std::byte byte) { return byte == std::byte{0}; });
  if (!empty || found.error().code != Code::kInvalid) return found;

  wire::Superblock superblock;
  superblock.align = request.align;
  superblock.uuid = request.uuid;
  superblock.created_unix_s = request.unix_s;
  superblock.file_bytes = request.file_bytes;
  superblock.segment_bytes = request.segment_bytes;
  const std::uint64_t data_bytes = request.file_bytes - std::min(request.file_bytes, wire::kStoreBlockBytes);
  superblock.segment_count = static_cast<std::uint32_t>(data_bytes / std::max<std::uint64_t>(request.segment_bytes, 1));
  if (superblock.segment_count < kMinSegments) {
    return Fail(Code::kInvalid, "it is too small for a store", request.file_bytes,
                kMinSegments * request.segment_bytes + wire::kStoreBlockBytes);
  }
  wire::Seal(superblock);
  std::memcpy(block.data(), &superblock, sizeof superblock);
  const BlockingFile::Piece piece{0, block};
  ORBITKV_TRY(file.Write({&piece, 1}));
  report.formatted = true;
  return superblock;
}

namespace {

// The entries of one summary whose footer fits, from the tail that was read or, where it is longer, with another read.
Result<std::vector<wire::SummaryEntry>> EntriesOf(BlockingFile& file, const wire::Superblock& superblock,
                                                  std::uint32_t segment, const wire::SummaryFooter& footer,
                                                  std::span<const std::byte> tail) {
  const std::uint64_t bytes = superblock.segment_bytes - footer.entries_offset;
  if (bytes <= tail.size()) return DecodeEntries(tail.last(bytes), footer, superblock);
  // Behind the tails, whose bytes are still needed.
  const std::uint64_t at = kSegmentsAtOnce * (wire::kStoreBlockBytes + kTailBytes);
  const auto room = file.memory().subspan(at, std::min(bytes, file.memory().size() - at));
  if (room.size() < bytes) return Fail(Code::kCorrupt, "a summary is longer than any", bytes, room.size());
  const BlockingFile::Piece piece{SegmentOffset(superblock, segment) + footer.entries_offset, room};
  ORBITKV_TRY(file.Read({&piece, 1}));
  return DecodeEntries(room, footer, superblock);
}

Status ScanAndSeal(BlockingFile& file, const wire::Superblock& superblock, std::uint32_t segment,
                   std::uint64_t sequence, std::uint64_t unix_s, std::vector<wire::SummaryEntry>& entries,
                   RecoveryReport& report) {
  const auto bytes = file.memory().first(superblock.segment_bytes);
  std::vector<BlockingFile::Piece> pieces;
  for (std::uint64_t at = 0; at < bytes.size(); at += kPieceBytes) {
    pieces.push_back(
        {SegmentOffset(superblock, segment) + at, bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at))});
  }
  ORBITKV_TRY(file.Read(pieces));
  report.read_bytes += bytes.size();
  ScanSegment(bytes, superblock, sequence, [&](const Scanned& scanned) {
    if (scanned.intact) {
      entries.push_back(EntryOf(scanned.header, scanned.offset));
    } else {
      ++report.torn_records;
    }
  });
  const std::vector<std::byte> summary = EncodeSummary(superblock, sequence, entries, unix_s);
  const auto room = file.memory().first(summary.size());
  std::memcpy(room.data(), summary.data(), summary.size());
  const BlockingFile::Piece piece{SegmentOffset(superblock, segment) + superblock.segment_bytes - summary.size(), room};
  // Without it the segment is gone through again next time.
  static_cast<void>(file.Write({&piece, 1}));
  return {};
}

// What the header and the tail of a segment say.
Result<SegmentSummary> Understand(BlockingFile& file, const wire::Superblock& superblock, std::uint32_t segment,
                                  std::span<const std::byte> head, std::span<const std::byte> tail) {
  SegmentSummary summary;
  const auto header = wire::DecodeSegmentHeader(head);
  if (!header || header->uuid != superblock.uuid || header->index != segment) return summary;
  summary.used = true;
  summary.header = *header;
  const auto footer = wire::DecodeSummaryFooter(tail.last(wire::kStoreBlockBytes));
  summary.damaged = !footer && footer.error().code == Code::kCorrupt;
  if (!footer || !FooterFits(*footer, superblock, header->sequence)) return summary;
  summary.footer = *footer;
  auto entries = EntriesOf(file, superblock, segment, *footer, tail);
  if (!entries && entries.error().code != Code::kCorrupt) return std::unexpected(entries.error());
  summary.sealed = entries.has_value();
  summary.damaged = !entries.has_value();
  if (entries) summary.entries = std::move(*entries);
  return summary;
}

Status ReadSome(BlockingFile& file, const wire::Superblock& superblock, std::span<const std::uint32_t> segments,
                std::vector<SegmentSummary>& out) {
  const std::uint64_t tail_bytes = TailBytes(superblock);
  const std::uint64_t stride = wire::kStoreBlockBytes + tail_bytes;
  std::vector<BlockingFile::Piece> pieces;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::uint64_t at = SegmentOffset(superblock, segments[i]);
    const auto room = file.memory().subspan(i * stride, stride);
    pieces.push_back({at, room.first(wire::kStoreBlockBytes)});
    pieces.push_back({at + superblock.segment_bytes - tail_bytes, room.subspan(wire::kStoreBlockBytes)});
  }
  ORBITKV_TRY(file.Read(pieces));
  const std::size_t before = out.size();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    auto summary = Understand(file, superblock, segments[i], pieces[2 * i].memory, pieces[2 * i + 1].memory);
    if (!summary) {
      out.resize(before);
      return std::unexpected(summary.error());
    }
    out.push_back(std::move(*summary));
  }
  return {};
}

}  // namespace

Status ReadSummaries(BlockingFile& file, const wire::Superblock& superblock, std::span<const std::uint32_t> segments,
                     std::vector<SegmentSummary>& out) {
  for (std::size_t first = 0; first < segments.size(); first += kSegmentsAtOnce) {
    const auto some = segments.subspan(first, std::min(kSegmentsAtOnce, segments.size() - first));
    if (const Status read = ReadSome(file, superblock, some, out); read) continue;
    // One place that cannot be read costs its own segment only.
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Status read = ReadSome(file, superblock, some.subspan(i, 1), out);
      if (!read && read.error().code == Code::kUnavailable) return read;
      if (!read) out.push_back({.used = true, .unreadable = true});
    }
  }
  return {};
}

Status Recover(BlockingFile& file, const wire::Superblock& superblock, Index& index, Segments& segments,
               std::uint64_t unix_s, RecoveryReport& report) {
  // Summaries are read in pieces of segments: a whole store's would take much memory at once.
  std::vector<std::uint32_t> some;
  for (std::uint32_t segment = 0; segment < superblock.segment_count; ++segment) {
    some.push_back(segment);
    if (some.size() < kSegmentsAtOnce && segment + 1 < superblock.segment_count) continue;
    std::vector<SegmentSummary> summaries;
    ORBITKV_TRY(ReadSummaries(file, superblock, some, summaries));
    report.read_bytes += some.size() * (wire::kStoreBlockBytes + TailBytes(superblock));
    for (std::size_t i = 0; i < some.size(); ++i) {
      SegmentSummary& summary = summaries[i];
      if (!summary.used) {
        segments.Found(some[i], Segment::State::kFree, 0);
        continue;
      }
      segments.Found(some[i], Segment::State::kSealed, summary.header.sequence);
      if (summary.damaged) ++report.damaged_summaries;
      if (!summary.sealed && !summary.unreadable) {
        const Status scanned =
            ScanAndSeal(file, superblock, some[i], summary.header.sequence, unix_s, summary.entries, report);
        summary.unreadable = !scanned;
      }
      if (summary.unreadable) {
        ++report.unreadable_segments;
        continue;
      }
      ++(summary.sealed ? report.sealed_segments : report.scanned_segments);
      for (const wire::SummaryEntry& entry : summary.entries) {
        const state::StateKey key = KeyOf(entry);
        const Location location{some[i], entry.offset_sectors};
        const auto known = index.Find(key);
        if (known && segments.Later(known->location, location)) continue;
        const auto put = index.Put(key, FactsOf(entry), location);
        if (put) segments.at(some[i]).entries.push_back(*put);
      }
    }
    some.clear();
  }
  report.records = index.size();
  return {};
}

}  // namespace orbitkv::store
