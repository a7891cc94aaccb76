// ARC: blocks used once and blocks used again are two LRU lists. The keys that left each are remembered; one that comes
// back says that its list was too short, and the target length of the first list moves that way.
#include <algorithm>
#include <memory>
#include <vector>

#include "orbitkv/cache/block_queues.h"
#include "orbitkv/cache/ghost_list.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

class ArcPolicy final : public EvictionPolicy {
 public:
  explicit ArcPolicy(std::uint32_t max_blocks)
      : queues_(max_blocks), once_left_(max_blocks), again_left_(max_blocks), keys_(max_blocks) {}

  void AddLane() override {
    queues_.AddLane();
    once_target_.push_back(0);
  }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    keys_[block] = facts.key;
    std::uint64_t& target = once_target_[facts.lane];
    const std::uint64_t once = std::max<std::uint64_t>(once_left_.size(), 1);
    const std::uint64_t again = std::max<std::uint64_t>(again_left_.size(), 1);
    std::uint32_t queue = kAgain;
    if (once_left_.Take(facts.key)) {
      target = std::min(target + std::max<std::uint64_t>(again / once, 1), queues_.size(facts.lane));
    } else if (again_left_.Take(facts.key)) {
      target -= std::min(target, std::max<std::uint64_t>(once / again, 1));
    } else {
      queue = kOnce;
    }
    queues_.Enter(block, facts.lane, queue);
  }

  void OnTouch(std::uint32_t block, std::uint64_t) override { queues_.MoveToEnd(block, kAgain); }
  void OnCandidate(std::uint32_t block) override { queues_.SetCandidate(block, true); }
  void OnNoCandidate(std::uint32_t block) override { queues_.SetCandidate(block, false); }

  // Both lists of ghosts together are as long as the lane, the first with its list at most.
  void OnRemove(std::uint32_t block) override {
    const std::uint32_t lane = queues_.lane(block);
    const std::uint64_t all = queues_.size(lane);
    (queues_.queue(block) == kOnce ? once_left_ : again_left_).Add(keys_[block]);
    queues_.Leave(block);
    once_left_.Trim(all - std::min(all, queues_.size(lane, kOnce)));
    again_left_.Trim(all - std::min<std::uint64_t>(all, once_left_.size()) + queues_.size(lane, kOnce));
  }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    const auto once = queues_.OldestCandidate(lane, kOnce);
    const auto again = queues_.OldestCandidate(lane, kAgain);
    if (!once || !again) return once ? once : again;
    return queues_.size(lane, kOnce) > once_target_[lane] ? once : again;
  }

 private:
  enum : std::uint32_t { kOnce, kAgain };
  BlockQueues<2> queues_;
  GhostList once_left_;
  GhostList again_left_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> once_target_;  // by lane
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeArcPolicy(std::uint32_t max_blocks) {
  return std::make_unique<ArcPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
