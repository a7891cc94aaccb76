#include <atomic>
#include <cstdint>
#include <new>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "baselines.h"
#include "child.h"

#include "orbitkv/base/check.h"
#include "orbitkv/wire/descriptor.h"

namespace orbitkv::bench {
namespace {

struct SharedRing {
  alignas(64) std::atomic<std::uint64_t> request_sequence;
  alignas(64) wire::Descriptor request;
  alignas(64) std::atomic<std::uint64_t> answer_sequence;
  alignas(64) wire::Descriptor answer;
};

// Spins while it is in use; dozes between bursts, because other peers run on the same cpu in their turn.
void ServeRing(SharedRing& ring) {
  constexpr std::uint32_t kBurstSpins = 200'000;
  constexpr useconds_t kDozeUs = 200;
  std::uint64_t served = 0;
  for (std::uint32_t idle_spins = 0;; ++idle_spins) {
    if (ring.request_sequence.load(std::memory_order_acquire) == served) {
      if (idle_spins > kBurstSpins) usleep(kDozeUs);
      continue;
    }
    idle_spins = 0;
    wire::Descriptor copy = ring.request;
    ++copy.generation;
    ring.answer = copy;
    ring.answer_sequence.store(++served, std::memory_order_release);
  }
}

class BareRing final : public RoundTrip {
 public:
  BareRing(SharedRing* ring, Child child) : ring_(ring), child_(std::move(child)) {}
  ~BareRing() override { munmap(ring_, sizeof(SharedRing)); }
  void Call() override {
    wire::Descriptor request;
    request.request_id = ++sequence_;
    ring_->request = request;
    ring_->request_sequence.store(sequence_, std::memory_order_release);
    while (ring_->answer_sequence.load(std::memory_order_acquire) != sequence_) {
    }
    const wire::Descriptor answer = ring_->answer;
    ORBITKV_CHECK(answer.request_id == sequence_ && answer.generation == 1);
  }

 private:
  SharedRing* ring_;
  Child child_;
  std::uint64_t sequence_ = 0;
};

class EventFdPingPong final : public RoundTrip {
 public:
  EventFdPingPong(int there, int back, Child child) : there_(there), back_(back), child_(std::move(child)) {}
  ~EventFdPingPong() override {
    close(there_);
    close(back_);
  }
  void Call() override {
    const std::uint64_t one = 1;
    std::uint64_t count = 0;
    ORBITKV_CHECK(write(there_, &one, sizeof(one)) == sizeof(one));
    ORBITKV_CHECK(read(back_, &count, sizeof(count)) == sizeof(count));
  }

 private:
  int there_;
  int back_;
  Child child_;
};

}  // namespace

std::unique_ptr<RoundTrip> MakeBareRing(int peer_cpu) {
  void* memory = mmap(nullptr, sizeof(SharedRing), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ORBITKV_CHECK(memory != MAP_FAILED);
  auto* ring = new (memory) SharedRing{};
  return std::make_unique<BareRing>(ring, Child::Fork(peer_cpu, [ring] { ServeRing(*ring); }));
}

std::unique_ptr<RoundTrip> MakeEventFdPingPong(int peer_cpu) {
  const int there = eventfd(0, EFD_CLOEXEC);
  const int back = eventfd(0, EFD_CLOEXEC);
  ORBITKV_CHECK(there >= 0 && back >= 0);
  return std::make_unique<EventFdPingPong>(there, back, Child::Fork(peer_cpu, [there, back] {
                                             std::uint64_t count = 0;
                                             while (read(there, &count, sizeof(count)) == sizeof(count) &&
                                                    write(back, &count, sizeof(count)) == sizeof(count)) {
                                             }
                                           }));
}

}  // namespace orbitkv::bench
