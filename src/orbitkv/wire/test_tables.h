// Tables for tests that stop an update at any store: what was stored, store by store, and the memory as it was after
// any number of them. Test code only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/wire/pool_table.h"

namespace orbitkv::wire {

class RecordingTable final : public TableMemory {
 public:
  explicit RecordingTable(std::size_t bytes) : memory_(bytes / sizeof(std::uint64_t)), before_(memory_) {}

  std::span<const std::byte> bytes() const override { return std::as_bytes(std::span(memory_)); }
  void Store(std::size_t word, std::uint64_t value) override {
    memory_.at(word) = value;
    stores_.push_back({word, value});
  }
  std::span<std::uint64_t> words() { return memory_; }

  // Calls visit(memory) for the memory as it was after none, one, ... all of the stores since the last call.
  template <typename Visit>
  void ForEachStop(Visit&& visit) {
    visit(std::as_const(before_));
    for (const auto& [word, value] : stores_) {
      before_[word] = value;
      visit(std::as_const(before_));
    }
    stores_.clear();
  }
  std::size_t stores() const { return stores_.size(); }

 private:
  struct One {
    std::size_t word;
    std::uint64_t value;
  };
  std::vector<std::uint64_t> memory_;
  std::vector<std::uint64_t> before_;
  std::vector<One> stores_;
};

}  // namespace orbitkv::wire
