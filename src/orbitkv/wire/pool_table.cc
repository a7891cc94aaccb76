#include "orbitkv/wire/pool_table.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "orbitkv/wire/crc32c.h"

namespace orbitkv::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::size_t kRecordWords = kSlotRecordBytes / sizeof(std::uint64_t);
using Words = std::array<std::uint64_t, kRecordWords>;
static_assert(sizeof(Words) == sizeof(SlotRecord));
// State and checksum share the last word, so that one store makes a record valid.
static_assert(offsetof(SlotRecord, state) == (kRecordWords - 1) * sizeof(std::uint64_t));
static_assert(offsetof(SlotRecord, last_use_ns) % sizeof(std::uint64_t) == 0);
static_assert(offsetof(SlotRecord, crc) == offsetof(SlotRecord, state) + sizeof(std::uint32_t));

std::uint32_t CrcOf(const SlotRecord& record) {
  const auto bytes = std::as_bytes(std::span(&record, 1));
  constexpr std::size_t kAfterUse = offsetof(SlotRecord, last_use_ns) + sizeof(record.last_use_ns);
  const std::uint32_t before = Crc32c(bytes.first(offsetof(SlotRecord, last_use_ns)));
  return Crc32c(bytes.subspan(kAfterUse, offsetof(SlotRecord, crc) - kAfterUse), before);
}

bool InTable(std::span<const std::byte> table, std::uint32_t index) { return index < table.size() / kSlotRecordBytes; }

}  // namespace

void SpanTable::Store(std::size_t word, std::uint64_t value) {
  auto* words = reinterpret_cast<std::uint64_t*>(memory_.data());
  // A process may be killed between any two stores: release keeps the compiler from exchanging them.
  std::atomic_ref<std::uint64_t>(words[word]).store(value, std::memory_order_release);
}

Result<SlotRecord> LoadSlotRecord(std::span<const std::byte> table, std::uint32_t index) {
  if (!InTable(table, index)) return Fail(Code::kInvalid, "slot index is outside the table", index);
  Words words;
  std::memcpy(words.data(), table.data() + index * kSlotRecordBytes, sizeof(words));
  const auto record = std::bit_cast<SlotRecord>(words);
  if (words == Words{}) return record;
  const auto state = static_cast<std::uint32_t>(record.state);
  if (state >= static_cast<std::uint32_t>(SlotState::kUpdating)) {
    return Fail(Code::kCorrupt, "slot record has no valid state", index, state);
  }
  if (record.crc != CrcOf(record)) return Fail(Code::kCorrupt, "slot record does not match its checksum", index);
  return record;
}

Status StoreSlotRecord(TableMemory& table, std::uint32_t index, const SlotRecord& record) {
  if (!InTable(table.bytes(), index)) return Fail(Code::kInvalid, "slot index is outside the table", index);
  SlotRecord sealed = record;
  sealed.crc = CrcOf(sealed);
  const auto words = std::bit_cast<Words>(sealed);
  const std::size_t first = index * kRecordWords;
  table.Store(first + kRecordWords - 1, static_cast<std::uint64_t>(SlotState::kUpdating));
  for (std::size_t word = 0; word + 1 < kRecordWords; ++word) table.Store(first + word, words[word]);
  table.Store(first + kRecordWords - 1, words[kRecordWords - 1]);
  return {};
}

Status StoreSlotState(TableMemory& table, std::uint32_t index, const SlotRecord& record, SlotState state) {
  if (!InTable(table.bytes(), index)) return Fail(Code::kInvalid, "slot index is outside the table", index);
  SlotRecord changed = record;
  changed.state = state;
  changed.crc = CrcOf(changed);
  table.Store(index * kRecordWords + kRecordWords - 1, std::bit_cast<Words>(changed)[kRecordWords - 1]);
  return {};
}

Status StoreSlotUse(TableMemory& table, std::uint32_t index, std::uint64_t last_use_ns) {
  if (!InTable(table.bytes(), index)) return Fail(Code::kInvalid, "slot index is outside the table", index);
  table.Store(index * kRecordWords + offsetof(SlotRecord, last_use_ns) / sizeof(std::uint64_t), last_use_ns);
  return {};
}

}  // namespace orbitkv::wire
