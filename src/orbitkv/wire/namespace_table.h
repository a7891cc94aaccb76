// The namespace table: what a later Manager has to know of a namespace to serve its blocks, one record per row.
//
// A record is written before the first block is stored under its row, and cleared after the last one is gone. It is
// valid from its last store on and invalid from its first.
// Owns: nothing; records are copies. Threads: one. Blocks: no. Units: as state::GroupShape.
// Errors: kInvalid for a row outside the table or groups that do not fit into a record, kCorrupt for a record that is
//         torn or damaged, or whose fields are out of range.
// Invariant: memory that was never written holds no namespaces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::wire {

inline constexpr std::size_t kMaxNamespaceGroups = 32;
inline constexpr std::size_t kNamespaceRecordBytes = 64 + kMaxNamespaceGroups * 32;

struct NamespaceRecord {
  state::Digest digest{};
  std::uint32_t shard_count = 0;
  std::vector<state::GroupShape> groups;
  bool operator==(const NamespaceRecord&) const = default;
};

// row counts from 1. None: no namespace has this row.
Result<std::optional<NamespaceRecord>> LoadNamespace(std::span<const std::byte> table, NamespaceRow row);
Status StoreNamespace(TableMemory& table, NamespaceRow row, const NamespaceRecord& record);
// One store.
Status ClearNamespace(TableMemory& table, NamespaceRow row);

}  // namespace orbitkv::wire
