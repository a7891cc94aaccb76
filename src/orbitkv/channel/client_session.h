// A client's end of one session with a Manager: requests and answers through the rings, lifecycle frames through the
// socket.
//
// Requests move by whoever calls in: Post, TryTake, Wait and Pump all take what has arrived, send the next chunk of
// large arguments, fetch the next chunk of a large answer and post never-lost commands again. A session whose pending()
// is not zero needs a call now and then; one whose pending() is zero needs none.
//
// Owns: the socket, the mappings of rings and Manager page, the received descriptors of doorbell and pool.
// Threads: safe, several may wait at once. The late-answer handler runs on whichever thread calls in, without a lock
//          held, and may call Post and PostNeverLost; it must not destroy the session.
// Blocks: Connect, Wait, WaitCompletions, Call and Exchange, until their deadline; nothing else does.
// Units: absolute CLOCK_MONOTONIC nanoseconds; bytes.
// Errors: kBusy when rings, arena or table are full (nothing was posted); kTimedOut at the deadline; kUnavailable when
// the
//         Manager is gone (Exchange) or the session was shut down; kStale from a request id that is not pending;
//         kRefused after fork; kCorrupt when the Manager's ring makes no sense, for good.
// Invariant: an answer is given out once, and only for the request that it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/byte_buffer.h"
#include "orbitkv/wire/descriptor.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

using wire::AnswerStatus;
using wire::Command;
using wire::RequestId;

struct Request {
  Command command = Command::kPing;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  std::span<const std::byte> args{};  // copied by Post
  std::uint64_t deadline_ns = 0;      // the Manager executes it before, or not at all
};

struct Answer {
  AnswerStatus status = AnswerStatus::kOk;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  ByteBuffer payload{};
  bool ok() const { return status == AnswerStatus::kOk; }
};

// A success that arrived for an abandoned request: what it gave must be given back.
struct LateAnswer {
  Command command = Command::kPing;
  std::uint64_t request_scalar0 = 0;
  std::uint64_t request_scalar1 = 0;
  const Answer* answer = nullptr;
};

struct ConnectOptions {
  std::string socket_path{};
  wire::Purpose purpose = wire::Purpose::kControl;
  std::string name{};
  std::uint64_t deadline_ns = 0;
  std::uint16_t abi_min = wire::kAbiMin;
  std::uint16_t abi_max = wire::kAbiMax;
  std::uint64_t spin_ns = 20'000;  // how long Wait looks before it sleeps
  std::function<void(const LateAnswer&)> late_answer{};
  std::string* message = nullptr;  // receives the Manager's own words when it refuses
};

struct FrameReply {
  bool refused = false;  // the payload is an ErrorReply
  std::vector<std::byte> payload{};
};

struct ClientSessionStats {
  std::uint64_t late_answers = 0;     // successes handed to the handler
  std::uint64_t foreign_answers = 0;  // answers to nothing that is pending
  std::uint64_t resent = 0;           // never-lost commands posted again
  std::uint64_t sleeps = 0;           // of threads that waited for an answer
};

class ClientSession {
 public:
  static constexpr std::size_t kMaxNeverLost = 4096;

  static Result<std::unique_ptr<ClientSession>> Connect(const ConnectOptions& options);
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  // Constant for the session's life.
  Incarnation incarnation() const;
  wire::Purpose purpose() const;
  SessionId epoch() const;
  std::uint64_t token() const;
  std::int32_t manager_pid() const;
  std::uint16_t abi() const;
  std::uint32_t slot_capacity() const;  // bytes of one arena slot
  int pool_fd() const;                  // the session's; dup it to keep it longer
  std::uint64_t pool_bytes() const;
  bool pool_named() const;
  bool pool_outlives() const;  // a later Manager may serve the same pool
  // Watch it for EPOLLRDHUP only: EPOLLIN also means a frame.
  int hangup_fd() const;
  bool hung_up() const;
  // The Manager's ring made no sense (kCorrupt from now on); connect again.
  bool broken() const;

  Result<RequestId> Post(const Request& request);
  // Keeps a copy and posts it, again and again if need be, until the Manager acknowledges it or the session ends.
  // kBusy when kMaxNeverLost are kept already.
  Status PostNeverLost(Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                       std::span<const std::byte> args = {});
  std::size_t unacknowledged() const;

  // The answer if it is there; the request id is spent then.
  Result<std::optional<Answer>> TryTake(RequestId id);
  Result<Answer> Wait(RequestId id, std::uint64_t until_ns);
  // The same into an Answer whose payload memory is used again. False from TryTakeInto: not there yet. kTimedOut from
  // WaitInto leaves the request pending, to be taken later or abandoned.
  Result<bool> TryTakeInto(RequestId id, Answer* answer);
  Status WaitInto(RequestId id, std::uint64_t until_ns, Answer* answer);
  // Nobody will ask for this answer any more; a late success goes to the handler.
  void Abandon(RequestId id);
  // Post, Wait until the request's deadline, Abandon if there is no answer by then.
  Result<Answer> Call(const Request& request);

  // Moves when operations of this session are over and a poll will say so. No round trip. Any value may be there, so
  // only a change means something.
  std::uint32_t completions() const;
  // Waits until that is another value, or until then; may return early.
  void WaitCompletions(std::uint32_t seen, std::uint64_t until_ns) const;

  // Moves everything that can move without waiting.
  void Pump();
  // Requests without an answer, abandoned ones included, and kept never-lost commands.
  std::size_t pending() const;
  ClientSessionStats stats() const;

  // One lifecycle frame and its reply; one at a time, others wait for their turn within their deadline.
  Result<FrameReply> Exchange(std::uint32_t kind, std::span<const std::byte> payload, std::uint64_t deadline_ns);

  // Wakes and fails every waiter with kUnavailable, now and from now on; for the owner that saw the Manager go.
  // Idempotent.
  void Shutdown();

 private:
  class Impl;
  explicit ClientSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::channel
