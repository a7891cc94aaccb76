// Least recently used, as one heap of candidates per lane.
//
// A list would be enough if blocks became candidates in the order of their last use; but a block becomes one when its
// last child goes or its last pin does, at any age. The heap has four children per node and holds the order's key, so
// that a sift reads only the heap.
#include <algorithm>
#include <utility>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/eviction.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint32_t kNowhere = 0xffffffffU;
constexpr std::uint32_t kArity = 4;

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(std::uint32_t max_blocks) : blocks_(max_blocks) {}

  void AddLane() override { lanes_.emplace_back().reserve(blocks_.size()); }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    ORBITKV_CHECK(block < blocks_.size() && facts.lane < lanes_.size());
    blocks_[block] = Block{.last_use_ns = facts.last_use_ns, .lane = facts.lane, .depth = facts.depth};
  }

  void OnTouch(std::uint32_t block, std::uint64_t now_ns) override {
    Block& touched = blocks_[block];
    touched.last_use_ns = std::max(touched.last_use_ns, now_ns);
    if (touched.position == kNowhere) return;
    Heap& heap = lanes_[touched.lane];
    heap[touched.position].last_use_ns = touched.last_use_ns;
    SiftDown(heap, touched.position);
  }

  void OnCandidate(std::uint32_t block) override {
    Block& added = blocks_[block];
    ORBITKV_CHECK(added.position == kNowhere);
    Heap& heap = lanes_[added.lane];
    heap.push_back(Node{added.last_use_ns, ~added.depth, block});
    SiftUp(heap, static_cast<std::uint32_t>(heap.size()) - 1);
  }

  void OnNoCandidate(std::uint32_t block) override {
    ORBITKV_CHECK(blocks_[block].position != kNowhere);
    Take(block);
  }

  void OnRemove(std::uint32_t block) override {
    if (blocks_[block].position != kNowhere) Take(block);
  }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) const override {
    const Heap& heap = lanes_[lane];
    if (heap.empty()) return std::nullopt;
    return heap.front().block;
  }

 private:
  struct Block {
    std::uint64_t last_use_ns = 0;
    std::uint32_t lane = 0;
    std::uint32_t depth = 0;
    std::uint32_t position = kNowhere;
  };
  struct Node {
    std::uint64_t last_use_ns;
    std::uint32_t shallowness;
    std::uint32_t block;
    auto operator<=>(const Node&) const = default;
  };
  using Heap = std::vector<Node>;

  void Put(Heap& heap, std::uint32_t at, const Node& node) {
    heap[at] = node;
    blocks_[node.block].position = at;
  }

  void SiftUp(Heap& heap, std::uint32_t at) {
    const Node node = heap[at];
    while (at > 0 && node < heap[(at - 1) / kArity]) {
      Put(heap, at, heap[(at - 1) / kArity]);
      at = (at - 1) / kArity;
    }
    Put(heap, at, node);
  }

  void SiftDown(Heap& heap, std::uint32_t at) {
    const Node node = heap[at];
    const auto size = static_cast<std::uint32_t>(heap.size());
    for (;;) {
      const std::uint64_t first = std::uint64_t{at} * kArity + 1;
      if (first >= size) break;
      auto least = static_cast<std::uint32_t>(first);
      const auto end = static_cast<std::uint32_t>(std::min<std::uint64_t>(first + kArity, size));
      for (std::uint32_t child = least + 1; child < end; ++child) {
        if (heap[child] < heap[least]) least = child;
      }
      if (!(heap[least] < node)) break;
      Put(heap, at, heap[least]);
      at = least;
    }
    Put(heap, at, node);
  }

  void Take(std::uint32_t block) {
    const std::uint32_t at = std::exchange(blocks_[block].position, kNowhere);
    Heap& heap = lanes_[blocks_[block].lane];
    const Node last = heap.back();
    heap.pop_back();
    if (last.block == block) return;
    heap[at] = last;
    SiftUp(heap, at);
    SiftDown(heap, blocks_[last.block].position);
  }

  std::vector<Block> blocks_;
  std::vector<Heap> lanes_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy(std::uint32_t max_blocks) {
  return std::make_unique<LruPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
