// S3-FIFO: new blocks enter a small queue; those that were used again by the time they reach its end go on to the main
// queue, where each use buys another round. A block that comes back soon after it left enters the main queue at once.
#include <algorithm>
#include <memory>
#include <vector>

#include "orbitkv/cache/block_queues.h"
#include "orbitkv/cache/ghost_list.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint64_t kSmallPercent = 10;
constexpr std::uint8_t kMaxUses = 3;
constexpr int kMovesPerVictim = 64;  // bounds one call; what is left to move is moved by the next ones

class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(std::uint32_t max_blocks) : queues_(max_blocks), ghosts_(max_blocks), blocks_(max_blocks) {}

  void AddLane() override { queues_.AddLane(); }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    queues_.Enter(block, facts.lane, ghosts_.Take(facts.key) ? kMain : kSmall);
    blocks_[block] = Block{.key = facts.key};
  }

  void OnTouch(std::uint32_t block, std::uint64_t) override {
    Block& touched = blocks_[block];
    touched.uses = static_cast<std::uint8_t>(std::min<int>(kMaxUses, touched.uses + 1));
  }

  void OnCandidate(std::uint32_t block) override { queues_.SetCandidate(block, true); }
  void OnNoCandidate(std::uint32_t block) override { queues_.SetCandidate(block, false); }

  void OnRemove(std::uint32_t block) override {
    if (queues_.queue(block) == kSmall) {
      ghosts_.Add(blocks_[block].key);
      ghosts_.Trim(queues_.size(queues_.lane(block)));
    }
    queues_.Leave(block);
  }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    for (int move = 0;; ++move) {
      const auto small = queues_.OldestCandidate(lane, kSmall);
      const auto main = queues_.OldestCandidate(lane, kMain);
      if (!small && !main) return std::nullopt;
      const bool small_is_full = queues_.size(lane, kSmall) * 100 >= queues_.size(lane) * kSmallPercent;
      const std::uint32_t oldest = small && (small_is_full || !main) ? *small : *main;
      Block& block = blocks_[oldest];
      if (block.uses < (queues_.queue(oldest) == kSmall ? 2 : 1) || move == kMovesPerVictim) return oldest;
      block.uses = queues_.queue(oldest) == kSmall ? std::uint8_t{0} : static_cast<std::uint8_t>(block.uses - 1);
      queues_.MoveToEnd(oldest, kMain);
    }
  }

 private:
  enum : std::uint32_t { kSmall, kMain };
  struct Block {
    std::uint64_t key = 0;
    std::uint8_t uses = 0;
  };

  BlockQueues<2> queues_;
  GhostList ghosts_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy(std::uint32_t max_blocks) {
  return std::make_unique<S3FifoPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
