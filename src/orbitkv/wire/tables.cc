#include "orbitkv/wire/tables.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "orbitkv/wire/crc32c.h"
#include "orbitkv/wire/namespace_table.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

struct HeaderBytes {
  std::uint64_t magic = kTablesMagic;
  std::uint32_t format = kTablesFormat;
  std::uint32_t namespace_record_bytes = kNamespaceRecordBytes;
  std::uint64_t pool_bytes = 0;
  std::uint64_t unit_bytes = 0;
  std::uint32_t max_slots = 0;
  std::uint32_t namespace_rows = 0;
  std::uint32_t session_rows = 0;
  std::uint32_t slot_record_bytes = kSlotRecordBytes;
  std::uint64_t pool_id_hi = 0;
  std::uint64_t pool_id_lo = 0;
  std::uint32_t reserved = 0;
  std::uint32_t crc = 0;    // of everything before it
  std::uint64_t lives = 0;  // the number, and its complement in the upper half
};
static_assert(sizeof(HeaderBytes) == 80);
constexpr std::size_t kHeaderWords = sizeof(HeaderBytes) / kWordBytes;
constexpr std::size_t kCrcWord = offsetof(HeaderBytes, reserved) / kWordBytes;
constexpr std::size_t kLivesWord = offsetof(HeaderBytes, lives) / kWordBytes;
static_assert(kLivesWord == kHeaderWords - 1 && kCrcWord == kHeaderWords - 2);
using HeaderWords = std::array<std::uint64_t, kHeaderWords>;

constexpr std::size_t kReservedWord = kHeaderWords;

constexpr std::uint32_t kMostLives = 1U << 20U;
constexpr unsigned kGenerationBitsPerLife = 44;

std::uint32_t CrcOf(const HeaderBytes& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(HeaderBytes, crc)));
}

std::uint64_t LivesWord(std::uint32_t lives) { return std::uint64_t{~lives} << 32U | lives; }

std::uint64_t Aligned(std::uint64_t bytes) { return (bytes + kTablesAlign - 1) / kTablesAlign * kTablesAlign; }

}  // namespace

std::uint64_t SessionRowBytes(std::uint32_t max_slots) {
  return kSessionRowHeaderBytes + (std::uint64_t{max_slots} + 63) / 64 * kWordBytes;
}

TablesLayout::TablesLayout(const TablesShape& shape) {
  slots = {kTablesAlign, std::uint64_t{shape.max_slots} * kSlotRecordBytes};
  namespaces = {slots.offset + Aligned(slots.bytes), std::uint64_t{shape.namespace_rows} * kNamespaceRecordBytes};
  sessions = {namespaces.offset + Aligned(namespaces.bytes), shape.session_rows * SessionRowBytes(shape.max_slots)};
  total_bytes = sessions.offset + Aligned(sessions.bytes);
}

std::uint64_t FirstGeneration(std::uint32_t life) { return std::uint64_t{life} << kGenerationBitsPerLife | 1U; }

Result<TablesHeader> LoadTablesHeader(std::span<const std::byte> tables) {
  if (tables.size() < kTablesAlign) return Fail(Code::kInvalid, "too small for tables", tables.size());
  HeaderWords words;
  std::memcpy(words.data(), tables.data(), sizeof(words));
  const auto header = std::bit_cast<HeaderBytes>(words);
  if (header.magic != kTablesMagic) return Fail(Code::kCorrupt, "these are no tables of a pool", header.magic);
  if (header.format != kTablesFormat) {
    return Fail(Code::kRefused, "the tables have another format", header.format, kTablesFormat);
  }
  if (header.crc != CrcOf(header)) return Fail(Code::kCorrupt, "the header of the tables is damaged");
  const auto lives = static_cast<std::uint32_t>(header.lives);
  if (header.lives != LivesWord(lives) || lives >= kMostLives) {
    return Fail(Code::kCorrupt, "the count of lives in the tables is damaged", header.lives);
  }
  if (header.slot_record_bytes != kSlotRecordBytes || header.namespace_record_bytes != kNamespaceRecordBytes) {
    return Fail(Code::kRefused, "the tables have records of other sizes", header.slot_record_bytes, kSlotRecordBytes);
  }
  return TablesHeader{.shape = {.pool_bytes = header.pool_bytes,
                                .unit_bytes = header.unit_bytes,
                                .max_slots = header.max_slots,
                                .namespace_rows = header.namespace_rows,
                                .session_rows = header.session_rows},
                      .pool_id_hi = header.pool_id_hi,
                      .pool_id_lo = header.pool_id_lo,
                      .lives = lives};
}

Status CheckTables(const TablesHeader& header, const TablesShape& wanted) {
  const TablesShape& has = header.shape;
  if (has.pool_bytes != wanted.pool_bytes) {
    return Fail(Code::kRefused, "the pool had another size [then, now]", has.pool_bytes, wanted.pool_bytes);
  }
  if (has.unit_bytes != wanted.unit_bytes) {
    return Fail(Code::kRefused, "the pool had other units [then, now]", has.unit_bytes, wanted.unit_bytes);
  }
  if (has.max_slots != wanted.max_slots) {
    return Fail(Code::kRefused, "max_slots was another [then, now]", has.max_slots, wanted.max_slots);
  }
  if (has.namespace_rows != wanted.namespace_rows) {
    return Fail(Code::kRefused, "the number of namespaces was another [then, now]", has.namespace_rows,
                wanted.namespace_rows);
  }
  if (has.session_rows != wanted.session_rows) {
    return Fail(Code::kRefused, "max_sessions was another [rows then, now]", has.session_rows, wanted.session_rows);
  }
  return {};
}

Status StoreTablesHeader(TableMemory& tables, const TablesHeader& header) {
  if (tables.bytes().size() < TablesLayout(header.shape).total_bytes) {
    return Fail(Code::kInvalid, "too small for tables of this shape", tables.bytes().size());
  }
  HeaderBytes bytes{.pool_bytes = header.shape.pool_bytes,
                    .unit_bytes = header.shape.unit_bytes,
                    .max_slots = header.shape.max_slots,
                    .namespace_rows = header.shape.namespace_rows,
                    .session_rows = header.shape.session_rows,
                    .pool_id_hi = header.pool_id_hi,
                    .pool_id_lo = header.pool_id_lo,
                    .lives = LivesWord(0)};
  bytes.crc = CrcOf(bytes);
  const auto words = std::bit_cast<HeaderWords>(bytes);
  // The magic comes last: memory without it was never finished.
  for (std::size_t word = 1; word < kHeaderWords; ++word) tables.Store(word, words[word]);
  tables.Store(0, words[0]);
  return {};
}

Result<std::uint32_t> BeginLife(TableMemory& tables) {
  ORBITKV_ASSIGN_OR_RETURN(const TablesHeader header, LoadTablesHeader(tables.bytes()));
  const std::uint32_t life = header.lives + 1;
  tables.Store(kLivesWord, LivesWord(life));
  return life;
}

Status StoreReservedBytes(TableMemory& tables, std::uint64_t bytes) {
  if (tables.bytes().size() < kTablesAlign) return Fail(Code::kInvalid, "too small for tables", tables.bytes().size());
  tables.Store(kReservedWord, bytes);
  return {};
}

std::uint64_t LoadReservedBytes(std::span<const std::byte> tables) {
  std::uint64_t bytes = 0;
  if (tables.size() >= kTablesAlign) std::memcpy(&bytes, tables.data() + kReservedWord * kWordBytes, sizeof(bytes));
  return bytes;
}

}  // namespace orbitkv::wire
