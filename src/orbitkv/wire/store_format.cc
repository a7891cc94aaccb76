#include "orbitkv/wire/store_format.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include <isa-l/crc.h>

namespace orbitkv::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "the store is little-endian");

template <typename T>
std::uint32_t OwnCrc(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, crc) == sizeof(T) - sizeof(value.crc));
  return StoreCrc(std::as_bytes(std::span(&value, 1)).first(offsetof(T, crc)));
}

template <typename T>
Result<T> Decode(std::span<const std::byte> bytes, const char* no_such, const char* damaged) {
  T value;
  if (bytes.size() < sizeof value) return Fail(Code::kInvalid, no_such, bytes.size());
  std::memcpy(&value, bytes.data(), sizeof value);
  if (value.magic != T::kMagic || value.version == 0) return Fail(Code::kInvalid, no_such);
  if (value.version > kStoreVersion) {
    return Fail(Code::kUnsupported, "written by a newer version", value.version, kStoreVersion);
  }
  if (value.crc != OwnCrc(value)) return Fail(Code::kCorrupt, damaged);
  return value;
}

}  // namespace

std::uint32_t StoreCrc(std::span<const std::byte> bytes) {
  // The library's parameter lacks a const; it only reads.
  auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  return ~crc32_iscsi(data, static_cast<int>(bytes.size()), 0xffffffffU);
}

void Seal(Superblock& superblock) { superblock.crc = OwnCrc(superblock); }
void Seal(SegmentHeader& header) { header.crc = OwnCrc(header); }
void Seal(RecordHeader& header) { header.crc = OwnCrc(header); }
void Seal(SummaryFooter& footer) { footer.crc = OwnCrc(footer); }

Result<Superblock> DecodeSuperblock(std::span<const std::byte> bytes) {
  ORBITKV_ASSIGN_OR_RETURN(const auto superblock,
                           Decode<Superblock>(bytes, "no OrbitKV store", "the store's superblock is damaged"));
  const std::uint64_t data_bytes = superblock.file_bytes - kStoreBlockBytes;
  if ((superblock.align != 512 && superblock.align != kStoreBlockBytes) || superblock.file_bytes < kStoreBlockBytes ||
      superblock.segment_bytes < 4 * kStoreBlockBytes || superblock.segment_bytes % kStoreBlockBytes != 0 ||
      superblock.segment_bytes > (std::uint64_t{1} << 30U) || superblock.segment_count == 0 ||
      superblock.segment_count > data_bytes / superblock.segment_bytes) {
    return Fail(Code::kCorrupt, "the store's superblock contradicts itself");
  }
  return superblock;
}

Result<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes) {
  return Decode<SegmentHeader>(bytes, "no segment", "a segment's header is damaged");
}

Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes) {
  return Decode<RecordHeader>(bytes, "no record", "a record's header is damaged");
}

Result<SummaryFooter> DecodeSummaryFooter(std::span<const std::byte> bytes) {
  return Decode<SummaryFooter>(bytes, "no summary", "a summary is damaged");
}

}  // namespace orbitkv::wire
