// A heap of blocks with the least key at its top, out of which any block can be taken.
//
// It has four children per node and holds the keys, so that a sift reads only the heap. Several heaps share one table
// of positions when no block is in two of them.
// Owns: its nodes, sized by the constructor; nothing is allocated afterwards. The table belongs to the caller.
// Threads: one. Never blocks. Errors: none; a block in no heap cannot be taken out.
// Invariant: positions[block] is the block's place in its heap, kNowhere when it is in none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "orbitkv/base/check.h"

namespace orbitkv::cache {

class CandidateHeap {
 public:
  static constexpr std::uint32_t kNowhere = 0xffffffffU;
  using Positions = std::vector<std::uint32_t>;

  explicit CandidateHeap(std::uint32_t max_blocks) { nodes_.reserve(max_blocks); }

  bool empty() const { return nodes_.empty(); }
  std::uint32_t top() const { return nodes_.front().block; }

  // Of equal keys the least tie comes first, then the least block.
  void Add(Positions& positions, std::uint32_t block, std::uint64_t key, std::uint32_t tie = 0) {
    ORBITKV_CHECK(positions[block] == kNowhere);
    nodes_.push_back(Node{key, tie, block});
    SiftUp(positions, static_cast<std::uint32_t>(nodes_.size()) - 1);
  }

  void Take(Positions& positions, std::uint32_t block) {
    const std::uint32_t at = std::exchange(positions[block], kNowhere);
    ORBITKV_CHECK(at != kNowhere);
    const Node last = nodes_.back();
    nodes_.pop_back();
    if (last.block == block) return;
    nodes_[at] = last;
    SiftUp(positions, at);
    SiftDown(positions, positions[last.block]);
  }

 private:
  static constexpr std::uint32_t kArity = 4;

  struct Node {
    std::uint64_t key;
    std::uint32_t tie;
    std::uint32_t block;
    auto operator<=>(const Node&) const = default;
  };

  void Put(Positions& positions, std::uint32_t at, const Node& node) {
    nodes_[at] = node;
    positions[node.block] = at;
  }

  void SiftUp(Positions& positions, std::uint32_t at) {
    const Node node = nodes_[at];
    while (at > 0 && node < nodes_[(at - 1) / kArity]) {
      Put(positions, at, nodes_[(at - 1) / kArity]);
      at = (at - 1) / kArity;
    }
    Put(positions, at, node);
  }

  void SiftDown(Positions& positions, std::uint32_t at) {
    const Node node = nodes_[at];
    const auto size = static_cast<std::uint32_t>(nodes_.size());
    for (;;) {
      const std::uint64_t first = std::uint64_t{at} * kArity + 1;
      if (first >= size) break;
      auto least = static_cast<std::uint32_t>(first);
      const auto end = static_cast<std::uint32_t>(std::min<std::uint64_t>(first + kArity, size));
      for (std::uint32_t child = least + 1; child < end; ++child) {
        if (nodes_[child] < nodes_[least]) least = child;
      }
      if (!(nodes_[least] < node)) break;
      Put(positions, at, nodes_[least]);
      at = least;
    }
    Put(positions, at, node);
  }

  std::vector<Node> nodes_;
};

}  // namespace orbitkv::cache
