#include "orbitkv/store/check.h"

#include <algorithm>
#include <set>
#include <vector>

#include "orbitkv/state/digest.h"
#include "orbitkv/store/layout.h"
#include "orbitkv/store/scan.h"

namespace orbitkv::store {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20U;

void Count(StoreReport& report, const wire::SummaryEntry& entry) {
  ++report.records;
  report.payload_bytes += entry.payload_bytes;
  report.oldest_unix_s =
      report.oldest_unix_s == 0 ? entry.saved_unix_s : std::min(report.oldest_unix_s, entry.saved_unix_s);
  report.newest_unix_s = std::max(report.newest_unix_s, entry.saved_unix_s);
  ++report.records_by_namespace[state::ToHex(entry.namespace_digest)];
}

Status ReadSegment(BlockingFile& file, const wire::Superblock& superblock, std::uint32_t segment,
                   std::span<std::byte> bytes) {
  std::vector<BlockingFile::Piece> pieces;
  for (std::uint64_t at = 0; at < bytes.size(); at += kPieceBytes) {
    pieces.push_back(
        {SegmentOffset(superblock, segment) + at, bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at))});
  }
  return file.Read(pieces);
}

void CheckSegment(std::span<const std::byte> bytes, const wire::Superblock& superblock, const SegmentSummary& summary,
                  StoreReport& report) {
  std::set<std::uint64_t> intact;
  ScanSegment(bytes, superblock, summary.header.sequence, [&](const Scanned& scanned) {
    if (scanned.intact) {
      intact.insert(scanned.offset);
      if (!summary.sealed) Count(report, EntryOf(scanned.header, scanned.offset));
    } else if (!summary.sealed) {
      ++report.torn_records;
    }
  });
  for (const wire::SummaryEntry& entry : summary.entries) {
    if (intact.contains(std::uint64_t{entry.offset_sectors} * kSectorBytes)) {
      Count(report, entry);
    } else {
      ++report.damaged_records;
    }
  }
}

Result<StoreReport> GoThrough(BlockingFile& file, const wire::Superblock& superblock, bool check) {
  StoreReport report;
  report.superblock = superblock;
  for (std::uint32_t segment = 0; segment < superblock.segment_count; ++segment) {
    std::vector<SegmentSummary> summaries;
    ORBITKV_TRY(ReadSummaries(file, superblock, {&segment, 1}, summaries));
    SegmentSummary& summary = summaries.front();
    if (!summary.used) {
      ++report.free_segments;
      continue;
    }
    if (summary.damaged) ++report.damaged_summaries;
    const auto bytes = file.memory().first(superblock.segment_bytes);
    if (summary.unreadable || (check && !ReadSegment(file, superblock, segment, bytes))) {
      ++report.unreadable_segments;
      continue;
    }
    ++(summary.sealed ? report.sealed_segments : report.unsealed_segments);
    if (check) {
      CheckSegment(bytes, superblock, summary, report);
    } else {
      for (const wire::SummaryEntry& entry : summary.entries) Count(report, entry);
    }
  }
  return report;
}

}  // namespace

Result<StoreReport> DescribeStore(BlockingFile& file, const wire::Superblock& superblock) {
  return GoThrough(file, superblock, false);
}

Result<StoreReport> CheckStore(BlockingFile& file, const wire::Superblock& superblock) {
  return GoThrough(file, superblock, true);
}

}  // namespace orbitkv::store
