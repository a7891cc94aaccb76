// Lifecycle requests over the session's socket, one at a time.
// Owns: the bytes of a reply that is being received; the socket is the session's. Threads: safe; callers take turns.
// Blocks: Exchange, until its deadline.
// Errors: kTimedOut leaves the connection usable, and a reply that comes later is dropped; any other failure ends it:
//         kUnavailable from then on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

class FrameExchange {
 public:
  FrameExchange(int socket, SessionId session) : socket_(socket), session_(session) {}
  Result<FrameReply> Exchange(std::uint32_t kind, std::span<const std::byte> payload, std::uint64_t deadline_ns)
      ORBITKV_EXCLUDES(mutex_);

 private:
  Result<FrameReply> SendAndReceive(std::uint32_t kind, std::span<const std::byte> payload, std::uint64_t deadline_ns);
  Result<FrameReply> ReceiveReply(std::uint64_t id, std::uint64_t deadline_ns);

  const int socket_;
  const SessionId session_;
  Mutex mutex_;
  CondVar turn_;
  bool taken_ ORBITKV_GUARDED_BY(mutex_) = false;
  // Below: touched only by the thread whose turn it is.
  std::uint64_t next_id_ = 1;
  wire::FrameReader reader_;
  bool broken_ = false;
};

}  // namespace orbitkv::channel
