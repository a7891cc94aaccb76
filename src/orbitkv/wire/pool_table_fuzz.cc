// A slot table of arbitrary bytes: no crash, no read beyond it, and a record that is accepted is one that was written.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/pool_table.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::wire;
  // Whole words, as the table's memory is.
  std::vector<std::uint64_t> words(size / sizeof(std::uint64_t));
  const std::span<std::byte> table = std::as_writable_bytes(std::span(words));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(data[i]);
  const auto records = static_cast<std::uint32_t>(table.size() / sizeof(SlotRecord));
  for (std::uint32_t index = 0; index <= records; ++index) {
    const auto record = LoadSlotRecord(table, index);
    if (!record) continue;
    SpanTable again(table);
    ORBITKV_CHECK(StoreSlotRecord(again, index, *record).has_value());
    ORBITKV_CHECK(LoadSlotRecord(table, index).has_value());
  }
  return 0;
}
