#include "orbitkv/wire/namespace_table.h"

#include <array>
#include <bit>
#include <cstring>

#include "orbitkv/wire/crc32c.h"

namespace orbitkv::wire {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
constexpr std::uint32_t kUsed = 0x4e534b56U;

struct GroupBytes {
  std::uint64_t page_bytes = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t page_count = 0;
  std::uint32_t kind = 0;
  std::uint32_t span_tokens = 0;
  std::uint32_t hash_block_tokens = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(GroupBytes) == 32);

struct RecordBytes {
  state::Digest digest{};
  std::uint32_t shard_count = 0;
  std::uint32_t group_count = 0;
  std::uint64_t reserved[2] = {};
  std::array<GroupBytes, kMaxNamespaceGroups> groups{};
  std::uint32_t state = 0;  // kUsed, or anything else
  std::uint32_t crc = 0;    // of everything before it
};
static_assert(sizeof(RecordBytes) == kNamespaceRecordBytes);
constexpr std::size_t kRecordWords = sizeof(RecordBytes) / kWordBytes;
using Words = std::array<std::uint64_t, kRecordWords>;
static_assert(offsetof(RecordBytes, state) == (kRecordWords - 1) * kWordBytes);

std::uint32_t CrcOf(const RecordBytes& record) {
  return Crc32c(std::as_bytes(std::span(&record, 1)).first(offsetof(RecordBytes, crc)));
}

bool InTable(std::span<const std::byte> table, NamespaceRow row) {
  return !row.is_none() && row.value() <= table.size() / kNamespaceRecordBytes;
}

std::size_t FirstWord(NamespaceRow row) { return (std::size_t{row.value()} - 1) * kRecordWords; }

}  // namespace

Result<std::optional<NamespaceRecord>> LoadNamespace(std::span<const std::byte> table, NamespaceRow row) {
  if (!InTable(table, row)) return Fail(Code::kInvalid, "the row is outside the namespace table", row.value());
  Words words;
  std::memcpy(words.data(), table.data() + FirstWord(row) * kWordBytes, sizeof(words));
  const auto bytes = std::bit_cast<RecordBytes>(words);
  if (words[kRecordWords - 1] == 0) return std::optional<NamespaceRecord>();
  if (bytes.state != kUsed || bytes.crc != CrcOf(bytes)) {
    return Fail(Code::kCorrupt, "a namespace's record is damaged", row.value());
  }
  if (bytes.group_count == 0 || bytes.group_count > kMaxNamespaceGroups || bytes.shard_count == 0) {
    return Fail(Code::kCorrupt, "a namespace's record has impossible counts", row.value(), bytes.group_count);
  }
  NamespaceRecord record{.digest = bytes.digest, .shard_count = bytes.shard_count, .groups = {}};
  for (const GroupBytes& group : std::span(bytes.groups).first(bytes.group_count)) {
    if (group.kind == 0 || group.kind > static_cast<std::uint32_t>(state::GroupKind::kChunkedLocal)) {
      return Fail(Code::kCorrupt, "a namespace's record has an unknown kind of group", row.value(), group.kind);
    }
    record.groups.push_back({.block_tokens = group.block_tokens,
                             .page_count = group.page_count,
                             .page_bytes = group.page_bytes,
                             .kind = static_cast<state::GroupKind>(group.kind),
                             .span_tokens = group.span_tokens,
                             .hash_block_tokens = group.hash_block_tokens});
  }
  return record;
}

Status StoreNamespace(TableMemory& table, NamespaceRow row, const NamespaceRecord& record) {
  if (!InTable(table.bytes(), row)) return Fail(Code::kInvalid, "the row is outside the namespace table", row.value());
  if (record.groups.empty() || record.groups.size() > kMaxNamespaceGroups) {
    return Fail(Code::kInvalid, "the namespace has too many groups for its record", record.groups.size());
  }
  RecordBytes bytes;
  bytes.digest = record.digest;
  bytes.shard_count = record.shard_count;
  bytes.group_count = static_cast<std::uint32_t>(record.groups.size());
  for (std::size_t i = 0; i < record.groups.size(); ++i) {
    const state::GroupShape& group = record.groups[i];
    bytes.groups[i] = {.page_bytes = group.page_bytes,
                       .block_tokens = group.block_tokens,
                       .page_count = group.page_count,
                       .kind = static_cast<std::uint32_t>(group.kind),
                       .span_tokens = group.span_tokens,
                       .hash_block_tokens = group.hash_block_tokens};
  }
  bytes.state = kUsed;
  bytes.crc = CrcOf(bytes);
  const auto words = std::bit_cast<Words>(bytes);
  const std::size_t first = FirstWord(row);
  table.Store(first + kRecordWords - 1, 0);
  for (std::size_t word = 0; word + 1 < kRecordWords; ++word) table.Store(first + word, words[word]);
  table.Store(first + kRecordWords - 1, words[kRecordWords - 1]);
  return {};
}

Status ClearNamespace(TableMemory& table, NamespaceRow row) {
  if (!InTable(table.bytes(), row)) return Fail(Code::kInvalid, "the row is outside the namespace table", row.value());
  table.Store(FirstWord(row) + kRecordWords - 1, 0);
  return {};
}

}  // namespace orbitkv::wire
