#include "orbitkv/store/scan.h"

#include <cstring>

#include "orbitkv/copy/pages.h"
#include "orbitkv/store/layout.h"

namespace orbitkv::store {

void ScanSegment(std::span<const std::byte> bytes, const wire::Superblock& superblock, std::uint64_t sequence,
                 const std::function<void(const Scanned&)>& found) {
  std::uint64_t at = wire::kStoreBlockBytes;
  while (at < bytes.size()) {
    const auto header = wire::DecodeRecordHeader(bytes.subspan(at));
    const std::uint64_t record_bytes = header ? RecordBytes(superblock.align, header->payload_bytes) : 0;
    if (!header || header->uuid != superblock.uuid || header->sequence != sequence ||
        record_bytes > bytes.size() - at) {
      at += superblock.align;
      continue;
    }
    const auto payload = bytes.subspan(at + RecordHeaderBytes(superblock.align), header->payload_bytes);
    const bool intact =
        copy::CheckSlot(payload, {header->page_count, header->page_bytes}, KeyOf(*header), header->checksum)
            .has_value();
    found({*header, at, intact});
    at += record_bytes;
  }
}

wire::SummaryEntry EntryOf(const wire::RecordHeader& header, std::uint64_t offset) {
  wire::SummaryEntry entry;
  entry.namespace_digest = header.namespace_digest;
  entry.hash = header.hash;
  entry.parent = header.parent;
  entry.checksum = header.checksum;
  entry.saved_unix_s = header.saved_unix_s;
  entry.group = header.group;
  entry.shard = header.shard;
  entry.depth = header.depth;
  entry.payload_bytes = header.payload_bytes;
  entry.offset_sectors = static_cast<std::uint32_t>(offset / kSectorBytes);
  entry.flags = header.flags;
  return entry;
}

Facts FactsOf(const wire::SummaryEntry& entry) {
  Facts facts;
  if ((entry.flags & wire::RecordHeader::kHasParent) != 0) facts.parent = entry.parent;
  facts.depth = entry.depth;
  facts.payload_bytes = entry.payload_bytes;
  facts.checksum = entry.checksum;
  return facts;
}

std::vector<std::byte> EncodeSummary(const wire::Superblock& superblock, std::uint64_t sequence,
                                     std::span<const wire::SummaryEntry> entries, std::uint64_t unix_s) {
  const std::uint64_t entries_bytes = SummaryBytes(entries.size()) - wire::kStoreBlockBytes;
  wire::SummaryFooter footer;
  footer.entry_count = static_cast<std::uint32_t>(entries.size());
  footer.uuid = superblock.uuid;
  footer.sequence = sequence;
  footer.entries_offset = superblock.segment_bytes - wire::kStoreBlockBytes - entries_bytes;
  footer.sealed_unix_s = unix_s;
  footer.entries_crc = wire::StoreCrc(std::as_bytes(entries));
  wire::Seal(footer);
  std::vector<std::byte> bytes(entries_bytes + wire::kStoreBlockBytes);
  if (!entries.empty()) std::memcpy(bytes.data(), entries.data(), entries.size_bytes());
  std::memcpy(bytes.data() + entries_bytes, &footer, sizeof footer);
  return bytes;
}

bool FooterFits(const wire::SummaryFooter& footer, const wire::Superblock& superblock, std::uint64_t sequence) {
  if (footer.uuid != superblock.uuid || footer.sequence != sequence) return false;
  if (footer.entry_count > superblock.segment_bytes / kSectorBytes) return false;
  const std::uint64_t bytes = SummaryBytes(footer.entry_count);
  return bytes <= superblock.segment_bytes - wire::kStoreBlockBytes &&
         footer.entries_offset == superblock.segment_bytes - bytes;
}

Result<std::vector<wire::SummaryEntry>> DecodeEntries(std::span<const std::byte> bytes,
                                                      const wire::SummaryFooter& footer,
                                                      const wire::Superblock& superblock) {
  const std::uint64_t wanted = std::uint64_t{footer.entry_count} * sizeof(wire::SummaryEntry);
  if (bytes.size() < wanted) return Fail(Code::kCorrupt, "a summary is cut", bytes.size(), wanted);
  if (wire::StoreCrc(bytes.first(wanted)) != footer.entries_crc) return Fail(Code::kCorrupt, "a summary is damaged");
  std::vector<wire::SummaryEntry> entries(footer.entry_count);
  if (wanted > 0) std::memcpy(entries.data(), bytes.data(), wanted);
  for (const wire::SummaryEntry& entry : entries) {
    const std::uint64_t offset = std::uint64_t{entry.offset_sectors} * kSectorBytes;
    if (offset < wire::kStoreBlockBytes || offset % superblock.align != 0 || entry.payload_bytes == 0 ||
        offset + RecordBytes(superblock.align, entry.payload_bytes) > footer.entries_offset) {
      return Fail(Code::kCorrupt, "a summary leads out of its segment", offset, entry.payload_bytes);
    }
  }
  return entries;
}

}  // namespace orbitkv::store
