// The Manager's end of one session: takes requests out of the shared ring, answers them, wakes the client.
//
// Everything that the client can write is copied once, checked, then used. What is malformed is answered with the
// reason and executed never; a ring that makes no sense, or whose requests are malformed again and again, ends the
// session's service (broken()).
//
// Owns: the session memfd, its mapping, the doorbell, the arguments of open requests, answers kept for fetching.
// Threads: created on any thread, then used by one (the dispatcher). Blocks: never, whatever the client does.
// Units: absolute CLOCK_MONOTONIC nanoseconds; bytes.
// Errors: Create fails with kExhausted or kIo; the calls on a session do not fail.
// Invariant: every request that Next returned is answered exactly once, in any order; a request that expired, was
// malformed or belongs to an older generation is answered here and never returned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/byte_buffer.h"
#include "orbitkv/channel/ring.h"
#include "orbitkv/channel/seat.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/descriptor.h"
#include "orbitkv/wire/frame.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::channel {

struct ServerSessionOptions {
  SessionId session{};
  std::uint64_t client_token = 0;
  std::uint16_t abi = wire::kAbiMax;
  wire::Purpose purpose = wire::Purpose::kControl;
  std::string name{};
  std::int32_t pid = 0;  // as the Manager sees it; 0 when it does not
  wire::SessionGeometry geometry{};
};

// Names one open request of one session; a handle is spent by Answer.
struct RequestHandle {
  std::uint32_t index = 0;
  std::uint64_t serial = 0;
};

struct ReceivedRequest {
  RequestHandle handle{};
  wire::Command command = wire::Command::kPing;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  std::uint64_t deadline_ns = 0;
  std::span<const std::byte> args{};  // private, 16-byte aligned, valid until the request is answered
};

struct ServerSessionStats {
  std::uint64_t requests = 0;
  std::uint64_t expired = 0;
  std::uint64_t malformed = 0;
  std::uint64_t idle_rings = 0;  // of the doorbell, that brought no request
};

class ServerSession {
 public:
  static constexpr std::size_t kMaxKeptAnswers = 4;
  // A fault weighs as much as so many requests in good order.
  static constexpr std::uint32_t kBlamePerFault = 16;
  static constexpr std::uint32_t kMostBlame = 1024 * kBlamePerFault;
  // Rings without a request beyond those that requests in good order made up for, before the doorbell is to be muted;
  // and how many more after each time that it was.
  static constexpr std::uint32_t kMostIdleRings = 256;
  static constexpr std::uint32_t kIdleRingsAfterMute = 16;
  // Large arguments that are not complete after so long are dropped, whatever deadline they were sent with.
  static constexpr std::uint64_t kLongestAssemblyNs = 60'000'000'000;

  static Result<std::unique_ptr<ServerSession>> Create(const ServerSessionOptions& options);

  SessionId id() const { return options_.session; }
  std::uint64_t token() const { return options_.client_token; }
  std::uint16_t abi() const { return options_.abi; }
  wire::Purpose purpose() const { return options_.purpose; }
  const std::string& name() const { return options_.name; }
  std::int32_t pid() const { return options_.pid; }
  // Its row, until somebody takes it over.
  void SetSeat(Seat seat) { seat_ = std::move(seat); }
  bool seated_and_watched() const { return seat_.taken() && seat_.watched(); }
  Seat TakeSeat() { return std::exchange(seat_, {}); }
  int session_fd() const { return memfd_.get(); }
  int doorbell_fd() const { return doorbell_.fd(); }

  // Whether Next has something to do. False for a client that does not take its answers: it has no claim on a turn.
  bool HasRequests() const;
  // The next request that is to be executed; none when the ring is empty.
  std::optional<ReceivedRequest> Next(std::uint64_t now_ns);
  void Answer(RequestHandle handle, wire::AnswerStatus status, std::uint64_t scalar0 = 0, std::uint64_t scalar1 = 0,
              std::span<const std::byte> payload = {});
  // Wakes the client if it sleeps and was answered since the last call. Once per batch.
  void FlushWake();
  // To be told when the doorbell woke the dispatcher, before it looks at the ring. True when the client wakes it for
  // nothing so often that its doorbell should not be listened to for a while. A client rings at most once for each
  // request, perhaps after the request was taken; who does only that never gets there.
  bool Rang();
  // When Expire has something to drop next; os::kNoDeadline for never.
  std::uint64_t NextDeadline() const;
  // Drops half-sent arguments and answers kept for fetching whose deadline has come.
  void Expire(std::uint64_t now_ns);
  // Tells the client that operations of it are over, whether it sleeps or looks now and then.
  void SignalCompletion();

  std::size_t open_requests() const { return open_count_; }
  // The client damaged the ring or sends too little in good order; no more requests come.
  bool broken() const { return broken_; }
  const ServerSessionStats& stats() const { return stats_; }

 private:
  struct Open {
    std::uint64_t serial = 0;  // 0: free
    wire::Descriptor descriptor{};
    ByteBuffer args{};
  };
  struct Kept {
    std::uint64_t request_id = 0;  // 0: free
    std::uint64_t order = 0;
    std::uint64_t deadline_ns = 0;
    wire::AnswerStatus status = wire::AnswerStatus::kOk;
    std::uint64_t scalar0 = 0;
    std::uint64_t scalar1 = 0;
    ByteBuffer payload{};
  };
  struct Assembly {
    std::uint64_t request_id = 0;  // 0: none
    std::uint16_t op = 0;
    std::uint32_t next_chunk = 0;
    std::uint64_t deadline_ns = 0;
    ByteBuffer bytes{};
  };

  explicit ServerSession(const ServerSessionOptions& options) : options_(options) {}
  wire::SessionHeader& header() const { return *reinterpret_cast<wire::SessionHeader*>(mapping_.data()); }
  std::span<std::byte> Slot(std::uint32_t arena_offset) const;
  bool HasCredit() const;
  void Blame();
  bool Refuse(const wire::Descriptor& request, std::uint64_t now_ns);
  bool TakeChunk(const wire::Descriptor& request, std::uint64_t now_ns);
  ReceivedRequest OpenRequest(const wire::Descriptor& request);
  void AnswerFetch(const wire::Descriptor& request);
  void Keep(const wire::Descriptor& request, wire::AnswerStatus status, std::uint64_t scalar0, std::uint64_t scalar1,
            std::span<const std::byte> payload);
  void Push(const wire::Descriptor& request, wire::AnswerStatus status, std::uint64_t scalar0 = 0,
            std::uint64_t scalar1 = 0, std::uint32_t length = 0, std::uint32_t flags = 0);

  const ServerSessionOptions options_;
  Seat seat_;
  wire::DescriptorLimits limits_;
  os::UniqueFd memfd_;
  os::Mapping mapping_;
  os::EventFd doorbell_;
  RingConsumer requests_;
  RingProducer answers_;
  std::vector<Open> open_;
  std::vector<std::uint32_t> free_;
  std::size_t open_count_ = 0;
  std::uint64_t next_serial_ = 1;
  std::uint32_t next_generation_ = 1;
  std::array<Kept, kMaxKeptAnswers> kept_;
  std::uint64_t kept_order_ = 0;
  std::size_t kept_count_ = 0;
  Assembly assembly_;
  bool answered_ = false;
  bool broken_ = false;
  std::uint32_t blame_ = 0;
  std::uint32_t idle_rings_ = 0;  // not made up for
  std::uint64_t requests_at_ring_ = 0;
  ServerSessionStats stats_;
};

}  // namespace orbitkv::channel
