// Segmented LRU: new blocks are on probation; one that is used again becomes protected, and what the protected part has
// too much goes back on probation.
#include <memory>

#include "orbitkv/cache/block_queues.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint64_t kProtectedPercent = 80;

class SlruPolicy final : public EvictionPolicy {
 public:
  explicit SlruPolicy(std::uint32_t max_blocks) : queues_(max_blocks) {}

  void AddLane() override { queues_.AddLane(); }
  void OnInsert(std::uint32_t block, const BlockFacts& facts) override { queues_.Enter(block, facts.lane, kProbation); }

  void OnTouch(std::uint32_t block, std::uint64_t) override {
    queues_.MoveToEnd(block, kProtected);
    const std::uint32_t lane = queues_.lane(block);
    if (queues_.size(lane, kProtected) * 100 > queues_.size(lane) * kProtectedPercent) {
      queues_.MoveToEnd(*queues_.Oldest(lane, kProtected), kProbation);
    }
  }

  void OnCandidate(std::uint32_t block) override { queues_.SetCandidate(block, true); }
  void OnNoCandidate(std::uint32_t block) override { queues_.SetCandidate(block, false); }
  void OnRemove(std::uint32_t block) override { queues_.Leave(block); }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    const auto victim = queues_.OldestCandidate(lane, kProbation);
    return victim ? victim : queues_.OldestCandidate(lane, kProtected);
  }

 private:
  enum : std::uint32_t { kProbation, kProtected };
  BlockQueues<2> queues_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeSlruPolicy(std::uint32_t max_blocks) {
  return std::make_unique<SlruPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
