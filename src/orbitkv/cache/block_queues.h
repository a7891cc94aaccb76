// Queues of blocks for the policies that keep several: each block is in one queue of its lane, at its end when it
// enters or is moved, and the oldest candidate of each queue can be told.
//
// Owns: its bookkeeping, sized by AddLane and the constructor; nothing is allocated afterwards.
// Threads: one. Never blocks. Units: queues are numbered below kQueues.
// Errors: none; blocks that are in no queue may not be moved.
// Invariant: size(lane, queue) counts candidates and others; OldestCandidate names candidates only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/cache/candidate_heap.h"

namespace orbitkv::cache {

template <std::size_t kQueues>
class BlockQueues {
 public:
  explicit BlockQueues(std::uint32_t max_blocks)
      : blocks_(max_blocks), positions_(max_blocks, CandidateHeap::kNowhere) {}

  void AddLane() {
    Lane& lane = lanes_.emplace_back();
    for (Queue& queue : lane) queue.candidates.emplace_back(static_cast<std::uint32_t>(blocks_.size()));
  }

  std::uint32_t lane(std::uint32_t block) const { return blocks_[block].lane; }
  std::uint32_t queue(std::uint32_t block) const { return blocks_[block].queue; }
  std::uint64_t size(std::uint32_t lane, std::uint32_t queue) const { return lanes_[lane][queue].size; }
  std::uint64_t size(std::uint32_t lane) const {
    std::uint64_t total = 0;
    for (const Queue& queue : lanes_[lane]) total += queue.size;
    return total;
  }

  void Enter(std::uint32_t block, std::uint32_t lane, std::uint32_t queue) {
    ORBITKV_CHECK(block < blocks_.size() && lane < lanes_.size() && positions_[block] == CandidateHeap::kNowhere);
    blocks_[block] = Block{.lane = lane, .queue = queue};
    Append(block);
  }

  void Leave(std::uint32_t block) {
    if (is_candidate(block)) SetCandidate(block, false);
    Unlink(block);
  }

  void MoveToEnd(std::uint32_t block, std::uint32_t queue) {
    const bool candidate = is_candidate(block);
    if (candidate) SetCandidate(block, false);
    Unlink(block);
    blocks_[block].queue = queue;
    Append(block);
    if (candidate) SetCandidate(block, true);
  }

  bool is_candidate(std::uint32_t block) const { return positions_[block] != CandidateHeap::kNowhere; }

  void SetCandidate(std::uint32_t block, bool candidate) {
    CandidateHeap& heap = QueueOf(block).candidates.front();
    if (candidate) {
      heap.Add(positions_, block, blocks_[block].stamp);
    } else {
      heap.Take(positions_, block);
    }
  }

  std::optional<std::uint32_t> Oldest(std::uint32_t lane, std::uint32_t queue) const {
    if (lanes_[lane][queue].size == 0) return std::nullopt;
    return lanes_[lane][queue].head;
  }

  std::optional<std::uint32_t> OldestCandidate(std::uint32_t lane, std::uint32_t queue) const {
    const CandidateHeap& heap = lanes_[lane][queue].candidates.front();
    if (heap.empty()) return std::nullopt;
    return heap.top();
  }

 private:
  struct Block {
    std::uint64_t stamp = 0;
    std::uint32_t lane = 0;
    std::uint32_t queue = 0;
    std::uint32_t prev = CandidateHeap::kNowhere;
    std::uint32_t next = CandidateHeap::kNowhere;
  };
  struct Queue {
    std::vector<CandidateHeap> candidates;  // one
    std::uint64_t size = 0;
    std::uint32_t head = CandidateHeap::kNowhere;
    std::uint32_t tail = CandidateHeap::kNowhere;
  };
  using Lane = std::array<Queue, kQueues>;

  Queue& QueueOf(std::uint32_t block) { return lanes_[blocks_[block].lane][blocks_[block].queue]; }

  void Append(std::uint32_t block) {
    Queue& queue = QueueOf(block);
    Block& added = blocks_[block];
    added.stamp = ++stamp_;
    added.prev = queue.tail;
    added.next = CandidateHeap::kNowhere;
    (queue.tail == CandidateHeap::kNowhere ? queue.head : blocks_[queue.tail].next) = block;
    queue.tail = block;
    ++queue.size;
  }

  void Unlink(std::uint32_t block) {
    Queue& queue = QueueOf(block);
    const Block& gone = blocks_[block];
    (gone.prev == CandidateHeap::kNowhere ? queue.head : blocks_[gone.prev].next) = gone.next;
    (gone.next == CandidateHeap::kNowhere ? queue.tail : blocks_[gone.next].prev) = gone.prev;
    --queue.size;
  }

  std::vector<Block> blocks_;
  CandidateHeap::Positions positions_;
  std::vector<Lane> lanes_;
  std::uint64_t stamp_ = 0;
};

}  // namespace orbitkv::cache
