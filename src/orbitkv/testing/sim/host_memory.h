// What of a simulated Manager is not its process: the bytes of the pool, which clients map, and the tables that say
// what lies in them. Where pools survive, the next Manager finds both.
//
// A Manager that dies stops in the middle of what it does: the table can be told to let it die instead of a store to
// come. Nothing that would have followed that store happens.
// Owns: the tables; shares the pool's bytes with clients. Threads: one. Blocks: no. Units: bytes; stores are words.
// Errors: ManagerDied out of Store, when it was asked for.
// Invariant: every store before the death is in the tables, and none after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/testing/sim/memory.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::sim {

struct ManagerDied {};

class MortalTable final : public wire::TableMemory {
 public:
  explicit MortalTable(std::span<std::byte> memory) : table_(memory) {}
  std::span<const std::byte> bytes() const override { return table_.bytes(); }
  void Store(std::size_t word, std::uint64_t value) override {
    if (left_ && (*left_)-- == 0) {
      left_.reset();
      throw ManagerDied();
    }
    table_.Store(word, value);
  }
  // After so many stores more; none: never.
  void DieAfter(std::optional<std::uint64_t> stores) { left_ = stores; }

 private:
  wire::SpanTable table_;
  std::optional<std::uint64_t> left_;
};

class HostMemory {
 public:
  explicit HostMemory(const wire::TablesShape& shape)
      : pool_(std::make_shared<PoolMemory>(shape.pool_bytes)),
        words_(wire::TablesLayout(shape).total_bytes / sizeof(std::uint64_t)),
        table_(std::as_writable_bytes(std::span(words_))) {
    ORBITKV_CHECK(wire::StoreTablesHeader(table_, {.shape = shape}).has_value());
  }

  const std::shared_ptr<PoolMemory>& pool() const { return pool_; }
  MortalTable& table() { return table_; }

 private:
  const std::shared_ptr<PoolMemory> pool_;
  std::vector<std::uint64_t> words_;
  MortalTable table_;
};

}  // namespace orbitkv::sim
