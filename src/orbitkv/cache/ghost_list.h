// Keys of blocks that left, oldest first, at most as many as the capacity: what a policy remembers of them.
//
// Owns: a ring of keys and an open-addressing table of their places, at most half full; sized by the constructor.
// Threads: one. Never blocks. Units: keys are 64 well-mixed bits. Errors: none.
// Invariant: a key is in the table exactly when it is in the ring and was not taken out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace orbitkv::cache {

class GhostList {
 public:
  explicit GhostList(std::uint32_t capacity)
      : ring_(capacity == 0 ? 1 : capacity), table_(std::bit_ceil(ring_.size() * 2), kFree) {}

  std::size_t size() const { return size_; }

  bool Contains(std::uint64_t key) const { return table_[Find(key)] != kFree; }

  // Adds the key as the newest; the oldest goes when the list is full.
  void Add(std::uint64_t key) {
    Take(key);
    const auto place = static_cast<std::uint32_t>(added_ % ring_.size());
    if (ring_[place].live) Take(ring_[place].key);
    ring_[place] = {key, true};
    table_[Find(key)] = place;
    ++added_;
    oldest_ = std::max(oldest_, added_ - std::min<std::uint64_t>(added_, ring_.size()));
    ++size_;
  }

  // Whether it was there.
  bool Take(std::uint64_t key) {
    std::size_t hole = Find(key);
    if (table_[hole] == kFree) return false;
    ring_[table_[hole]].live = false;
    --size_;
    for (std::size_t at = Next(hole); table_[at] != kFree; at = Next(at)) {
      const std::size_t home = Home(ring_[table_[at]].key);
      if (((at - home) & (table_.size() - 1)) < ((at - hole) & (table_.size() - 1))) continue;
      table_[hole] = table_[at];
      hole = at;
    }
    table_[hole] = kFree;
    return true;
  }

  // Forgets the oldest until at most that many are left.
  void Trim(std::size_t most) {
    for (; size_ > most; ++oldest_) {
      const Ghost& ghost = ring_[oldest_ % ring_.size()];
      if (ghost.live) Take(ghost.key);
    }
  }

 private:
  static constexpr std::uint32_t kFree = 0xffffffffU;
  struct Ghost {
    std::uint64_t key = 0;
    bool live = false;
  };

  std::size_t Home(std::uint64_t key) const { return key & (table_.size() - 1); }
  std::size_t Next(std::size_t at) const { return (at + 1) & (table_.size() - 1); }
  std::size_t Find(std::uint64_t key) const {
    std::size_t at = Home(key);
    while (table_[at] != kFree && ring_[table_[at]].key != key) at = Next(at);
    return at;
  }

  std::vector<Ghost> ring_;
  std::vector<std::uint32_t> table_;
  std::size_t size_ = 0;
  std::uint64_t added_ = 0;   // number of the next ghost
  std::uint64_t oldest_ = 0;  // of the oldest that may be live
};

}  // namespace orbitkv::cache
