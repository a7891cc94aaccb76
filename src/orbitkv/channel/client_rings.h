// The client's table of requests over one session's rings and arena: what ClientSession does, without the socket.
//
// A request occupies a table entry from Post until its answer is taken. At most one descriptor of an entry is in the
// rings at a time; large arguments and large answers travel as one descriptor per chunk, moved by whoever calls in.
//
// Owns: the table, the never-lost commands; the session memory, Manager page and doorbell are the caller's and outlive
// it. Threads: safe. mutex_ guards the table and both ring sides; nobody sleeps or makes a system call under it.
// Blocks: WaitInto, until its deadline. Units: absolute CLOCK_MONOTONIC nanoseconds.
// Errors: as in client_session.h.
// Invariant: descriptors in flight never exceed the ring, so the Manager always has room for its answer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/channel/ring.h"
#include "orbitkv/wire/descriptor.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::channel {

class ClientRings {
 public:
  struct Options {
    wire::SessionGeometry geometry{};
    std::uint16_t abi = wire::kAbiMax;
    SessionId session{};
    std::uint64_t spin_ns = 0;
    int doorbell_fd = -1;
    std::function<void(const LateAnswer&)> late_answer{};
  };
  // session: the whole session memory; asleep: the dispatcher's flag on the Manager page.
  ClientRings(const Options& options, std::byte* session, const std::atomic<std::uint32_t>* asleep);
  ClientRings(const ClientRings&) = delete;
  ClientRings& operator=(const ClientRings&) = delete;

  Result<RequestId> Post(const Request& request) ORBITKV_EXCLUDES(mutex_);
  Status PostNeverLost(Command command, std::uint64_t scalar0, std::uint64_t scalar1, std::span<const std::byte> args)
      ORBITKV_EXCLUDES(mutex_);
  Result<bool> TryTakeInto(RequestId id, Answer* answer) ORBITKV_EXCLUDES(mutex_);
  Status WaitInto(RequestId id, std::uint64_t until_ns, Answer* answer) ORBITKV_EXCLUDES(mutex_);
  void Abandon(RequestId id) ORBITKV_EXCLUDES(mutex_);
  std::uint32_t completions() const { return header().completions.load(std::memory_order_acquire); }
  void WaitCompletions(std::uint32_t seen, std::uint64_t until_ns) const;
  void Pump() ORBITKV_EXCLUDES(mutex_);
  void Shutdown() ORBITKV_EXCLUDES(mutex_);
  bool broken() const ORBITKV_EXCLUDES(mutex_);
  std::size_t unacknowledged() const ORBITKV_EXCLUDES(mutex_);
  std::size_t pending() const ORBITKV_EXCLUDES(mutex_);
  ClientSessionStats stats() const ORBITKV_EXCLUDES(mutex_);

 private:
  enum class State : std::uint8_t {
    kFree,
    kQueued,    // its arguments are to be sent; large ones wait for the one assembly of the session
    kSending,   // has the assembly: the next chunk is to be sent when the last one was taken
    kPosted,    // all arguments are sent
    kFetching,  // the answer has more chunks
    kDone,
  };
  struct Entry {
    State state = State::kFree;
    bool in_flight = false;  // a descriptor is in the rings
    bool abandoned = false;
    bool never_lost = false;
    Command command = Command::kPing;
    int slot = -1;
    std::uint32_t generation = 0;
    std::uint32_t chunk = 0;  // to be sent or fetched next
    std::uint64_t id = 0;
    std::uint64_t scalar0 = 0;
    std::uint64_t scalar1 = 0;
    std::uint64_t deadline_ns = 0;
    ByteBuffer args{};  // of large and of never-lost commands
    Answer answer{};
  };
  struct NeverLost {
    Command command = Command::kPing;
    std::uint64_t scalar0 = 0;
    std::uint64_t scalar1 = 0;
    ByteBuffer args{};
  };
  struct Late {
    LateAnswer what{};
    Answer answer{};
  };
  // What is left to do once the lock is released.
  struct After {
    bool ring_doorbell = false;
    bool wake_others = false;
    std::vector<Late> late{};
  };

  static bool Continues(State state) {
    return state == State::kQueued || state == State::kSending || state == State::kFetching;
  }
  Status Usable() const ORBITKV_REQUIRES(mutex_);
  Result<RequestId> PostLocked(const Request& request, After& after) ORBITKV_REQUIRES(mutex_);
  void SetState(Entry& entry, State state) ORBITKV_REQUIRES(mutex_);
  Entry* Allocate(const Request& request, bool never_lost) ORBITKV_REQUIRES(mutex_);
  Entry* AllocateWithSlot(const Request& request, bool never_lost) ORBITKV_REQUIRES(mutex_);
  void Free(Entry& entry) ORBITKV_REQUIRES(mutex_);
  Entry* Find(RequestId id) ORBITKV_REQUIRES(mutex_);
  bool TakeSlot(Entry& entry) ORBITKV_REQUIRES(mutex_);
  void FreeSlot(Entry& entry) ORBITKV_REQUIRES(mutex_);
  bool MayPush(bool never_lost) const ORBITKV_REQUIRES(mutex_);
  void Push(Entry& entry, std::uint32_t flags, std::uint32_t length, After& after) ORBITKV_REQUIRES(mutex_);
  void PushWhole(Entry& entry, std::span<const std::byte> args, After& after) ORBITKV_REQUIRES(mutex_);
  void PumpLocked(After& after) ORBITKV_REQUIRES(mutex_);
  void Take(const wire::Descriptor& copied, After& after) ORBITKV_REQUIRES(mutex_);
  void TakePayload(Entry& entry, const wire::Descriptor& answer, After& after) ORBITKV_REQUIRES(mutex_);
  void Finish(Entry& entry, AnswerStatus status, After& after) ORBITKV_REQUIRES(mutex_);
  void AddLate(Entry& entry, After& after) ORBITKV_REQUIRES(mutex_);
  void FinishNeverLost(Entry& entry, AnswerStatus status) ORBITKV_REQUIRES(mutex_);
  void Continue(After& after) ORBITKV_REQUIRES(mutex_);
  void ContinueEntry(Entry& entry, After& after) ORBITKV_REQUIRES(mutex_);
  void PostKept(After& after) ORBITKV_REQUIRES(mutex_);
  Result<bool> TakeAnswer(RequestId id, Answer* answer) ORBITKV_REQUIRES(mutex_);
  void Do(After& after) ORBITKV_EXCLUDES(mutex_);
  bool Arrived() const;
  bool Changed(std::uint32_t seen_moves) const;
  void WakeWaiters();
  wire::SessionHeader& header() const { return *reinterpret_cast<wire::SessionHeader*>(session_); }
  std::byte* SlotBytes(int slot) const;

  const Options options_;
  const wire::DescriptorLimits limits_;
  std::byte* const session_;
  const std::atomic<std::uint32_t>* const dispatcher_asleep_;

  // Read without the lock by waiters that spin.
  std::atomic<std::uint32_t> taken_{0};  // our cursor of the answer ring
  std::atomic<std::uint32_t> moves_{0};  // counts pumps that moved anything
  std::atomic<std::uint32_t> done_{0};   // answers that nobody has taken yet; written under the lock
  std::atomic<bool> shut_down_{false};

  mutable Mutex mutex_;
  RingProducer requests_ ORBITKV_GUARDED_BY(mutex_);
  RingConsumer answers_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> free_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t free_slots_ ORBITKV_GUARDED_BY(mutex_);  // a bit per arena slot
  std::uint32_t in_flight_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint32_t to_continue_ ORBITKV_GUARDED_BY(mutex_) = 0;  // entries that are queued, sending or fetching
  std::uint32_t waiters_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint32_t next_generation_ ORBITKV_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_request_ ORBITKV_GUARDED_BY(mutex_) = 1;
  Entry* sender_ ORBITKV_GUARDED_BY(mutex_) = nullptr;  // who has the session's one assembly
  std::deque<NeverLost> kept_ ORBITKV_GUARDED_BY(mutex_);
  std::size_t never_lost_in_flight_ ORBITKV_GUARDED_BY(mutex_) = 0;
  bool broken_ ORBITKV_GUARDED_BY(mutex_) = false;
  ClientSessionStats stats_ ORBITKV_GUARDED_BY(mutex_);
};

}  // namespace orbitkv::channel
