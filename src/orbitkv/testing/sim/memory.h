// The pool's bytes as one Manager life and its clients see them, and what writers put there.
//
// Every write carries a number of its own, from which its bytes follow: bytes that are read name their write.
// Owns: the bytes; clients keep them beyond the Manager's life, as a mapping does. Where pools survive, so do later
// lives. Threads: one. Blocks: no. Units: bytes; offsets from the start of the pool. Invariant: only clients write
// here, and only where a reservation or a fault says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace orbitkv::sim {

struct PoolMemory {
  explicit PoolMemory(std::size_t bytes) : words(bytes / sizeof(std::uint64_t)) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }

  std::vector<std::uint64_t> words;
  std::map<std::uint64_t, std::uint64_t> writes;   // generation -> the write that filled the slot
  std::set<std::uint64_t> damaged;                 // generations whose bytes a fault has changed
  std::map<std::uint64_t, std::uint32_t> touched;  // generations that processes read or write now, with how many do
  std::uint32_t shared = 0;                        // of those, that more than one touches
};

// The slots that one piece of work touches, until it is over or its process is gone.
class Touching {
 public:
  explicit Touching(std::shared_ptr<PoolMemory> memory) : memory_(std::move(memory)) {}
  ~Touching() { Clear(); }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;

  void Add(std::uint64_t generation);
  void Clear();

 private:
  const std::shared_ptr<PoolMemory> memory_;
  std::vector<std::uint64_t> generations_;
};

// The bytes of one page of write number `write`.
void FillPage(std::uint64_t write, std::uint32_t page, std::span<std::byte> out);

}  // namespace orbitkv::sim
