// One side of a ring of descriptors in shared memory, single producer and single consumer.
//
// A side keeps its own cursor privately and publishes it; it believes the other side's cursor only as far as it is
// possible. Cursors count descriptors and wrap at 2^32, so the fill is their difference.
// Owns: nothing; the memory must outlive it. Threads: one per side. Blocks: no.
// Errors: a cursor that jumps is Pop::kBroken from the consumer and a full ring from the producer; nothing was read or
// written. Invariant: a descriptor is copied out once, before anything in it is looked at.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "orbitkv/wire/descriptor.h"

namespace orbitkv::channel {

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(std::byte* entries, std::uint32_t count, std::atomic<std::uint32_t>* head,
               const std::atomic<std::uint32_t>* tail, std::uint32_t first = 0)
      : entries_(entries), count_(count), published_(head), other_(tail), head_(first), seen_tail_(first) {}

  // Free entries as far as this side knows; looks again when fewer than `wanted` seem free.
  std::uint32_t Free(std::uint32_t wanted = 1) const {
    std::uint32_t used = head_ - seen_tail_;
    if (count_ - used >= wanted) return count_ - used;
    const std::uint32_t tail = other_->load(std::memory_order_acquire);
    // The consumer cannot be ahead of us nor move back.
    if (head_ - tail <= used) seen_tail_ = tail;
    used = head_ - seen_tail_;
    return count_ - used;
  }
  bool Push(const wire::Descriptor& descriptor) {
    if (Free() == 0) return false;
    std::memcpy(entries_ + std::size_t{head_ % count_} * sizeof descriptor, &descriptor, sizeof descriptor);
    ++head_;
    published_->store(head_, std::memory_order_release);
    return true;
  }

 private:
  std::byte* entries_ = nullptr;
  std::uint32_t count_ = 1;
  std::atomic<std::uint32_t>* published_ = nullptr;
  const std::atomic<std::uint32_t>* other_ = nullptr;
  std::uint32_t head_ = 0;
  mutable std::uint32_t seen_tail_ = 0;  // the last believable cursor of the consumer
};

enum class Pop : std::uint8_t { kEmpty, kGot, kBroken };

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(const std::byte* entries, std::uint32_t count, const std::atomic<std::uint32_t>* head,
               std::atomic<std::uint32_t>* tail, std::uint32_t first = 0)
      : entries_(entries), count_(count), other_(head), published_(tail), tail_(first), seen_head_(first) {}

  bool empty() const { return other_->load(std::memory_order_acquire) == tail_; }
  Pop Take(wire::Descriptor* descriptor) {
    if (tail_ == seen_head_) {
      const std::uint32_t head = other_->load(std::memory_order_acquire);
      if (head == tail_) return Pop::kEmpty;
      if (head - tail_ > count_) return Pop::kBroken;
      seen_head_ = head;
    }
    std::memcpy(descriptor, entries_ + std::size_t{tail_ % count_} * sizeof *descriptor, sizeof *descriptor);
    ++tail_;
    published_->store(tail_, std::memory_order_release);
    return Pop::kGot;
  }
  std::uint32_t tail() const { return tail_; }

 private:
  const std::byte* entries_ = nullptr;
  std::uint32_t count_ = 1;
  const std::atomic<std::uint32_t>* other_ = nullptr;
  std::atomic<std::uint32_t>* published_ = nullptr;
  std::uint32_t tail_ = 0;
  std::uint32_t seen_head_ = 0;
};

}  // namespace orbitkv::channel
