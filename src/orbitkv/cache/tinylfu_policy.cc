// W-TinyLFU: new blocks enter a window of 1 % with LRU; what falls out of it must have been seen more often than the
// victim of the main part, a segmented LRU, to take its place. Frequencies come from a sketch that ages.
#include <memory>
#include <vector>

#include "orbitkv/cache/block_queues.h"
#include "orbitkv/cache/frequency_sketch.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint64_t kWindowPercent = 1;
constexpr std::uint64_t kProtectedPercent = 80;  // of the main part
constexpr int kMovesPerVictim = 64;

class TinyLfuPolicy final : public EvictionPolicy {
 public:
  explicit TinyLfuPolicy(std::uint32_t max_blocks) : queues_(max_blocks), sketch_(max_blocks), keys_(max_blocks) {}

  void AddLane() override {
    queues_.AddLane();
    was_full_.push_back(false);
  }

  void OnInsert(std::uint32_t block, const BlockFacts& facts) override {
    sketch_.Add(facts.key);
    keys_[block] = facts.key;
    queues_.Enter(block, facts.lane, kWindow);
    // Until the lane is full for the first time the main part takes all that the window has too much.
    if (!was_full_[facts.lane] && WindowIsFull(facts.lane)) {
      queues_.MoveToEnd(*queues_.Oldest(facts.lane, kWindow), kProbation);
    }
  }

  void OnTouch(std::uint32_t block, std::uint64_t) override {
    sketch_.Add(keys_[block]);
    const std::uint32_t lane = queues_.lane(block);
    if (queues_.queue(block) == kWindow) {
      queues_.MoveToEnd(block, kWindow);
      return;
    }
    queues_.MoveToEnd(block, kProtected);
    const std::uint64_t main = queues_.size(lane, kProbation) + queues_.size(lane, kProtected);
    if (queues_.size(lane, kProtected) * 100 > main * kProtectedPercent) {
      queues_.MoveToEnd(*queues_.Oldest(lane, kProtected), kProbation);
    }
  }

  void OnCandidate(std::uint32_t block) override { queues_.SetCandidate(block, true); }
  void OnNoCandidate(std::uint32_t block) override { queues_.SetCandidate(block, false); }
  void OnRemove(std::uint32_t block) override { queues_.Leave(block); }

  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    was_full_[lane] = true;
    for (int move = 0;; ++move) {
      const auto window = queues_.OldestCandidate(lane, kWindow);
      const auto probation = queues_.OldestCandidate(lane, kProbation);
      const auto main = probation ? probation : queues_.OldestCandidate(lane, kProtected);
      if (!window || !main) return window ? window : main;
      if (!WindowIsFull(lane)) return main;
      if (sketch_.Estimate(keys_[*window]) <= sketch_.Estimate(keys_[*main]) || move == kMovesPerVictim) return window;
      queues_.MoveToEnd(*window, kProbation);
    }
  }

 private:
  enum : std::uint32_t { kWindow, kProbation, kProtected };

  bool WindowIsFull(std::uint32_t lane) const {
    return queues_.size(lane, kWindow) * 100 > queues_.size(lane) * kWindowPercent;
  }

  BlockQueues<3> queues_;
  FrequencySketch sketch_;
  std::vector<std::uint64_t> keys_;
  std::vector<bool> was_full_;  // by lane
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeTinyLfuPolicy(std::uint32_t max_blocks) {
  return std::make_unique<TinyLfuPolicy>(max_blocks);
}

}  // namespace orbitkv::cache
