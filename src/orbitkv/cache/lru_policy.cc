// Least recently used, as one heap of candidates per lane.
//
// A list would be enough if blocks became candidates in the order of their last use; but a block becomes one when its
// last child goes or its last pin does, at any age.
#include <algorithm>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/candidate_heap.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(std::uint32_t max_blocks) : blocks_(max_blocks), positions_(max_blocks, CandidateHeap::kNowhere) {}

  void AddLane() override { lanes_.emplace_back(static_cast<std::uint32_t>(blocks_.size())); }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    ORBITKV_CHECK(block < blocks_.size() && facts.lane < lanes_.size());
    blocks_[block] = Block{.last_use_ns = facts.last_use_ns, .lane = facts.lane, .depth = facts.depth};
  }

  void OnTouch(std::uint32_t block, std::uint64_t now_ns) override {
    Block& touched = blocks_[block];
    const bool candidate = positions_[block] != CandidateHeap::kNowhere;
    if (candidate) OnNoCandidate(block);
    touched.last_use_ns = std::max(touched.last_use_ns, now_ns);
    if (candidate) OnCandidate(block);
  }

  void OnCandidate(std::uint32_t block) override {
    const Block& added = blocks_[block];
    lanes_[added.lane].Add(positions_, block, added.last_use_ns, ~added.depth);
  }

  void OnNoCandidate(std::uint32_t block) override { lanes_[blocks_[block].lane].Take(positions_, block); }

  void OnRemove(std::uint32_t block) override {
    if (positions_[block] != CandidateHeap::kNowhere) OnNoCandidate(block);
  }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    if (lanes_[lane].empty()) return std::nullopt;
    return lanes_[lane].top();
  }

 private:
  struct Block {
    std::uint64_t last_use_ns = 0;
    std::uint32_t lane = 0;
    std::uint32_t depth = 0;
  };

  std::vector<Block> blocks_;
  CandidateHeap::Positions positions_;
  std::vector<CandidateHeap> lanes_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy(std::uint32_t max_blocks) {
  return std::make_unique<LruPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
