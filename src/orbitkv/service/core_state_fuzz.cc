// Tables of arbitrary content, with right checksums where the input says so: a life begins or is refused, serves what
// it adopted, hands out slots that lie apart, and the life after it begins too.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/service/core_state.h"
#include "orbitkv/wire/crc32c.h"
#include "orbitkv/wire/namespace_table.h"

namespace {

using namespace orbitkv;

service::CoreStateConfig Config() {
  service::CoreStateConfig config;
  config.pool = {.pool_bytes = 1U << 20U, .unit_bytes = 32U << 10U, .max_slots = 24};
  config.cache.max_blocks = 24;
  config.cache.max_namespaces = 8;
  config.limits.pool_bytes = config.pool.pool_bytes;
  config.limits.max_namespaces = 3;
  config.session_rows = 3;
  return config;
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  template <typename T>
  T Take() {
    T value{};
    const std::size_t bytes = std::min(sizeof value, left_);
    std::memcpy(&value, data_, bytes);
    data_ += bytes;
    left_ -= bytes;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

void StoreSlot(Input& input, wire::TableMemory& slots) {
  wire::SlotRecord record;
  const auto index = input.Take<std::uint8_t>();
  record.hash.bytes[0] = input.Take<std::byte>();
  record.parent.bytes[0] = input.Take<std::byte>();
  record.namespace_row = input.Take<std::uint8_t>() % 5;
  record.group = input.Take<std::uint8_t>() % 3;
  record.shard = input.Take<std::uint8_t>() % 2;
  record.slab_unit = input.Take<std::uint8_t>() % 40;
  record.depth = input.Take<std::uint8_t>() % 8;
  record.last_use_ns = input.Take<std::uint32_t>();
  record.payload_bytes = input.Take<std::uint16_t>();
  record.slot_bytes = (input.Take<std::uint8_t>() % 80) * 512U;
  record.generation = input.Take<std::uint16_t>();
  record.offset = record.slab_unit * (32U << 10U) + input.Take<std::uint8_t>() % 16 * record.slot_bytes;
  record.state = static_cast<wire::SlotState>(input.Take<std::uint8_t>() % 4);
  static_cast<void>(wire::StoreSlotRecord(slots, index % 24, record));
}

void StoreSpace(Input& input, wire::TableMemory& namespaces) {
  wire::NamespaceRecord record;
  record.digest[0] = input.Take<std::byte>();
  record.shard_count = input.Take<std::uint8_t>() % 3;
  for (std::uint32_t group = input.Take<std::uint8_t>() % 4; group > 0; --group) {
    record.groups.push_back({.block_tokens = input.Take<std::uint8_t>() * 4U,
                             .page_count = input.Take<std::uint8_t>() % 4U,
                             .page_bytes = input.Take<std::uint16_t>(),
                             .kind = static_cast<state::GroupKind>(input.Take<std::uint8_t>() % 4 + 1),
                             .span_tokens = input.Take<std::uint8_t>(),
                             .hash_block_tokens = input.Take<std::uint8_t>()});
  }
  static_cast<void>(wire::StoreNamespace(namespaces, NamespaceRow(input.Take<std::uint8_t>() % 3 + 1), record));
}

void CheckApart(service::CoreState& state) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const std::uint64_t bytes : {600U, 5000U, 512U}) {
    for (;;) {
      const auto slot = state.pool().Allocate(bytes);
      if (!slot) break;
      ranges.emplace_back(slot->offset, slot->offset + slot->slot_bytes);
      ORBITKV_CHECK(slot->offset + slot->slot_bytes <= state.pool().gauges().reserved_bytes);
    }
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) ORBITKV_CHECK(ranges[i - 1].second <= ranges[i].first);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const service::CoreStateConfig config = Config();
  const wire::TablesLayout layout(config.shape());
  std::vector<std::uint64_t> words(layout.total_bytes / sizeof(std::uint64_t));
  wire::SpanTable tables(std::as_writable_bytes(std::span(words)));
  ORBITKV_CHECK(wire::StoreTablesHeader(tables, {.shape = config.shape()}).has_value());
  wire::TableWindow slots(tables, layout.slots.offset, layout.slots.bytes);
  wire::TableWindow namespaces(tables, layout.namespaces.offset, layout.namespaces.bytes);
  Input input(data, size);
  const auto reserved = input.Take<std::uint8_t>() * std::uint64_t{8192};
  while (!input.empty()) {
    switch (input.Take<std::uint8_t>() % 4) {
      case 0: StoreSlot(input, slots); break;
      case 1: StoreSpace(input, namespaces); break;
      case 2: {
        const auto word = input.Take<std::uint16_t>();
        words[word % words.size()] ^= input.Take<std::uint64_t>();
        break;
      }
      default: {
        const std::size_t first = layout.sessions.offset / sizeof(std::uint64_t);
        const std::size_t count = layout.sessions.bytes / sizeof(std::uint64_t);
        words[first + input.Take<std::uint8_t>() % count] = input.Take<std::uint64_t>();
      }
    }
  }
  for (int life = 0; life < 2; ++life) {
    const auto alive = [&](std::uint32_t row, const pool::SessionOwner&) { return (row + size) % 2 == 0; };
    const auto state = service::CoreState::Begin(tables, config, std::min(reserved, config.pool.pool_bytes), alive, 99);
    if (!state) return 0;
    for (const service::EarlierSessionStatus& session : (*state)->service().earlier_sessions()) {
      if (session.row % 2 == 0) static_cast<void>((*state)->service().EndEarlierSession(session.row));
    }
    CheckApart(**state);
  }
  return 0;
}
