// The Manager's socket: who may be a Manager here, who may be a client, and the frames that are not worth a ring.
//
// One Manager per socket path: `PATH.lock` is held by flock for the Manager's life and never removed. One thread serves
// the listener, every connection and every client's pidfd; what it learns goes to BootstrapEvents.
//
// Owns: the lock, the socket (unlinked by Stop), connections, pidfds, its thread. A ServerSession belongs to whoever
//       OnOpened gave it to.
// Threads: Start and Stop by the owner; Reply and Close by any; events come on the server's own thread and must not
// block. Blocks: Start, up to lock_wait_ns when another Manager is being torn down; Stop, until the thread has ended.
// Units: nanoseconds, bytes.
// Errors: Start fails with kRefused when another Manager answers (Error.a is its pid), kTimedOut when the lock stays
// held by
//         a process that does not answer, kInvalid for an unusable path or directory. Peers that misbehave lose their
//         connection.
// Invariant: OnOpened comes first for a session, OnDeath last. After Close nothing comes but what was under way
// already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/pace.h"
#include "orbitkv/channel/seat.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/channel/session_pace.h"
#include "orbitkv/os/file.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

class BootstrapEvents {
 public:
  virtual ~BootstrapEvents() = default;
  // A client passed the handshake. Its welcome is sent after this returns.
  virtual void OnOpened(std::unique_ptr<ServerSession> session) = 0;
  // To be answered with Reply under the same frame id.
  virtual void OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind,
                       std::vector<std::byte> payload) = 0;
  // The connection is gone. The process may live and its threads may still copy: nothing that it was granted ends.
  virtual void OnHangup(SessionId session) = 0;
  // The process is gone (its pidfd is readable): everything that it held ends.
  virtual void OnDeath(SessionId session) = 0;
};

struct BootstrapOptions {
  std::string socket_path{};
  Incarnation incarnation{};
  std::uint16_t abi_min = wire::kAbiMin;
  std::uint16_t abi_max = wire::kAbiMax;
  std::size_t max_sessions = 256;      // with a connection; as many again may wait without one for their process's end
  std::size_t max_admin_sessions = 8;  // places of their own for who asks for health
  std::size_t max_half_open = 64;      // connections that have not greeted yet, or that read their refusal
  SessionPace::Options pace{};         // for processes that end sessions and open others
  // For all processes together, since a process may fork: connections, which then wait in the backlog, and frames of
  // open sessions, which then wait in their sockets.
  Pace::Options accept_pace{.burst = 512, .interval_ns = 5'000'000};
  Pace::Options frame_pace{.burst = 512, .interval_ns = 2'000'000};
  wire::SessionGeometry geometry{};
  int manager_page_fd = -1;     // borrowed, open for reading only
  std::vector<int> pool_fds{};  // borrowed; one per page kind
  std::uint64_t pool_bytes = 0;
  bool pool_named = false;
  Seats* seats = nullptr;  // null: sessions have no rows
  std::uint64_t lock_wait_ns = 30'000'000'000U;
  std::uint64_t handshake_ns = 5'000'000'000U;  // for a peer's greeting
  std::uint64_t frame_ns = 10'000'000'000U;     // for the rest of a frame that has begun, and for a reply to be read
};

struct BootstrapStats {
  std::uint64_t accepted = 0;
  std::uint64_t delayed_accepts = 0;  // times that the listener was left alone for its pace
  std::uint64_t frames = 0;           // handed on
  std::uint64_t delayed_frames = 0;   // of those, that had to wait for their turn
};

class BootstrapServer {
 public:
  // Takes the lock, unless it is given (LockSocket), binds the socket and starts the thread; events may come before it
  // returns.
  static Result<std::unique_ptr<BootstrapServer>> Start(const BootstrapOptions& options, BootstrapEvents* events,
                                                        std::optional<os::FileLock> lock = std::nullopt);
  ~BootstrapServer();
  BootstrapServer(const BootstrapServer&) = delete;
  BootstrapServer& operator=(const BootstrapServer&) = delete;

  // Answers a frame; refused means that the payload is an ErrorReply. A session that is gone is no error.
  void Reply(SessionId session, std::uint64_t frame_id, std::span<const std::byte> payload, bool refused = false);
  // Ends a session's connection and the watch on its process, and gives its place to another client.
  void Close(SessionId session);
  // Removes the socket, closes every connection, joins the thread. The lock file stays and is free. Idempotent.
  void Stop();

  // Sessions opened and neither dead nor closed.
  std::size_t session_count() const;
  BootstrapStats stats() const;

 private:
  class Impl;
  explicit BootstrapServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace orbitkv::channel
