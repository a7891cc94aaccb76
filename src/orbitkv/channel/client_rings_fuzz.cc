// A hostile Manager, driven by the fuzzer, against the client's end of a session: it answers what was asked or anything
// else, moves cursors and writes the arena, while the client posts, takes, gives up and goes on.
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/channel/client_rings.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/mapping.h"

using namespace orbitkv;
using namespace orbitkv::channel;

namespace {

constexpr wire::SessionGeometry kGeometry{.ring_entries = 32, .slot_count = 4, .slot_bytes = 4096};
constexpr std::uint32_t kRing = kGeometry.ring_entries;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  template <typename T>
  T Take() {
    T value{};
    const std::size_t got = std::min(sizeof value, size_);
    if (got > 0) std::memcpy(static_cast<void*>(&value), data_, got);
    data_ += got;
    size_ -= got;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// The Manager's side: it sees the requests and writes answers.
class Manager {
 public:
  explicit Manager(std::byte* memory) : memory_(memory) {}
  wire::SessionHeader& header() { return *reinterpret_cast<wire::SessionHeader*>(memory_); }
  void TakeRequests() {
    for (; tail_ != header().request_head.load() && seen_.size() < kRing; ++tail_) {
      wire::Descriptor request;
      std::memcpy(&request, memory_ + kGeometry.request_ring_offset() + std::size_t{tail_ % kRing} * sizeof request,
                  sizeof request);
      seen_.push_back(request);
    }
    header().request_tail = tail_;
  }
  // The oldest request's answer in good order, but for the bytes that the input changes in it.
  void AnswerOne(Input& input, bool spoil) {
    wire::Descriptor answer{.abi = wire::kAbiMax, .session_epoch = 5};
    if (!seen_.empty()) {
      answer = seen_.front();
      seen_.pop_front();
    }
    answer.op = 1 + input.Take<std::uint8_t>() % 16;
    answer.generation += 1;
    answer.arena_length = answer.arena_offset == wire::kNoArena ? 0 : input.Take<std::uint16_t>() % 4098;
    const auto flags = input.Take<std::uint8_t>();
    answer.flags = (answer.flags & 0xffff0000U) | ((flags & 1U) != 0 ? wire::kMoreAnswer : 0);
    if (spoil) {
      for (auto n = flags >> 5U; n > 0; --n) {
        reinterpret_cast<std::uint8_t*>(&answer)[input.Take<std::uint8_t>() % sizeof answer] =
            input.Take<std::uint8_t>();
      }
    }
    std::memcpy(memory_ + kGeometry.answer_ring_offset() + std::size_t{head_ % kRing} * sizeof answer, &answer,
                sizeof answer);
    header().answer_head = ++head_;
  }
  void Damage(Input& input) {
    const auto value = input.Take<std::uint32_t>();
    switch (input.Take<std::uint8_t>() % 4) {
      case 0: header().answer_head = head_ = value; break;
      case 1: header().request_tail = value; break;
      case 2: header().answer_tail = value; break;
      default: memory_[kGeometry.arena_offset() + value % kGeometry.arena_bytes()] = input.Take<std::byte>(); break;
    }
  }

 private:
  std::byte* const memory_;
  std::deque<wire::Descriptor> seen_;
  std::uint32_t tail_ = 0;
  std::uint32_t head_ = 0;
};

void Act(ClientRings& rings, Input& input, std::vector<RequestId>& open) {
  static const std::vector<std::byte> kArguments(20'000);
  const auto what = input.Take<std::uint8_t>();
  const auto command = static_cast<Command>(1 + input.Take<std::uint8_t>() % 9);
  const auto args = std::span(kArguments).first(input.Take<std::uint16_t>() % kArguments.size());
  Answer answer;
  if (what < 120) {
    if (const auto id = rings.Post({command, 1, 2, args, os::kNoDeadline})) open.push_back(*id);
  } else if (what < 140) {
    static_cast<void>(rings.PostNeverLost(Command::kRestoreEnd, 1, 2, args.first(args.size() % 64)));
  } else if (open.empty()) {
    rings.Pump();
  } else {
    const RequestId id = open.back();
    if (what < 200) {
      const auto taken = rings.TryTakeInto(id, &answer);
      if (taken && !*taken) return;
    } else if (what < 220) {
      static_cast<void>(rings.WaitInto(id, 0, &answer));
      return;
    } else {
      rings.Abandon(id);
    }
    open.pop_back();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const os::EventFd doorbell = os::EventFd::Create().value();
  const auto memory = os::Mapping::Anonymous(kGeometry.total_bytes()).value();
  const std::atomic<std::uint32_t> asleep{0};
  std::size_t late = 0;
  ClientRings rings({.geometry = kGeometry,
                     .session = SessionId(5),
                     .doorbell_fd = doorbell.fd(),
                     .late_answer = [&late](const LateAnswer&) { ++late; }},
                    memory.data(), &asleep);
  Manager manager(memory.data());
  std::vector<RequestId> open;
  Input input(data, size);
  std::size_t posted = 0;
  while (!input.empty()) {
    const auto op = input.Take<std::uint8_t>();
    if (op < 110) {
      const std::size_t before = open.size();
      Act(rings, input, open);
      posted += open.size() > before ? 1 : 0;
    } else if (op < 220) {
      manager.TakeRequests();
      manager.AnswerOne(input, op >= 180);
    } else {
      manager.Damage(input);
    }
    // Whatever the Manager does, the client's table is bounded, and nothing is given back that was not asked for.
    ORBITKV_CHECK(rings.pending() <= 256 + ClientSession::kMaxNeverLost);
    ORBITKV_CHECK(late <= posted + rings.stats().resent + ClientSession::kMaxNeverLost);
  }
  rings.Shutdown();
  Answer answer;
  for (const RequestId id : open) static_cast<void>(rings.WaitInto(id, os::kNoDeadline, &answer));
  return 0;
}
