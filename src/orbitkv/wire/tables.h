// The memory in which a Manager keeps what a later one needs to serve its pool: a header, the slot table, the
// namespace table and the session table, one behind the other. docs/formats/tables.md describes every byte.
//
// The header says for which pool the tables are; tables that do not fit the settings of a new Manager, or whose header
// is damaged, are of no use to it, and it says why. A *life* is one Manager's use of the tables; lives are counted, so
// that no generation of a slot is ever handed out twice.
// Owns: nothing. Threads: one. Blocks: no. Units: bytes; every section begins at a multiple of 4096.
// Errors: kInvalid for memory that is too small, kCorrupt for a damaged header, kRefused for another format or shape
//         (the text names the difference, a is what the header says, b what was wanted).
// Invariant: a header is valid from its last store on; starting a life is one store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::wire {

inline constexpr std::uint64_t kTablesMagic = 0x53454c424154564bU;  // "KVTABLES"
inline constexpr std::uint32_t kTablesFormat = 1;
inline constexpr std::uint64_t kTablesAlign = 4096;

// What decides the layout.
struct TablesShape {
  std::uint64_t pool_bytes = 0;
  std::uint64_t unit_bytes = 0;
  std::uint32_t max_slots = 0;
  std::uint32_t namespace_rows = 0;
  std::uint32_t session_rows = 0;
  bool operator==(const TablesShape&) const = default;
};

struct TablesSection {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct TablesLayout {
  explicit TablesLayout(const TablesShape& shape);
  TablesSection slots;
  TablesSection namespaces;
  TablesSection sessions;
  std::uint64_t total_bytes = 0;
};

struct TablesHeader {
  TablesShape shape;
  std::uint64_t pool_id_hi = 0;  // random; the pool's own name in logs
  std::uint64_t pool_id_lo = 0;
  std::uint32_t lives = 0;  // that have begun
};

// The first generation of a life, far above those of the lives before it.
std::uint64_t FirstGeneration(std::uint32_t life);

Result<TablesHeader> LoadTablesHeader(std::span<const std::byte> tables);
// Whether the header is that of tables of this shape.
Status CheckTables(const TablesHeader& header, const TablesShape& wanted);
// Into zeroed memory. The header's lives are ignored: none has begun.
Status StoreTablesHeader(TableMemory& tables, const TablesHeader& header);
// The number of the life that begins, from 1.
Result<std::uint32_t> BeginLife(TableMemory& tables);

// Bytes of the pool, from the front, behind which there is memory; one store. What is read is only a hint: the file
// itself knows better where it says less.
Status StoreReservedBytes(TableMemory& tables, std::uint64_t bytes);
std::uint64_t LoadReservedBytes(std::span<const std::byte> tables);

// One session's row: who it is, then a bit for each slot that it may be touching.
inline constexpr std::uint64_t kSessionRowHeaderBytes = 64;
std::uint64_t SessionRowBytes(std::uint32_t max_slots);

}  // namespace orbitkv::wire
