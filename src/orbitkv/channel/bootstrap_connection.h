// One connection as the bootstrap server keeps it: half-open, then of a session, and after its socket's end until the
// session's process has ended or the Manager closes it.
// Owns: the socket, the pidfd, descriptors that were received or are on their way, bytes of both directions.
// Threads: the bootstrap server's. Blocks: no. Included by that server's sources alone. Units: nanoseconds.
// Invariant: while a frame is held nothing more is read, so a connection has at most one in line.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

struct Connection {
  os::UniqueFd socket;
  os::PeerCredentials peer;
  wire::FrameReader reader;
  std::vector<os::UniqueFd> received_fds;
  std::vector<std::byte> out;
  std::size_t out_sent = 0;
  std::vector<os::UniqueFd> out_fds;  // with the first byte that is sent
  std::size_t greeting_bytes = 0;
  std::uint64_t read_deadline_ns = os::kNoDeadline;   // for its greeting, then for the rest of a frame
  std::uint64_t write_deadline_ns = os::kNoDeadline;  // for it to read what is stuck
  bool close_when_sent = false;
  bool admin = false;
  SessionId session;
  os::UniqueFd pidfd;
  std::optional<wire::Lifecycle> held;  // a frame whose turn comes at resume_ns
  std::uint64_t resume_ns = os::kNoDeadline;
  std::map<std::uint64_t, std::uint32_t> unanswered;  // frame id -> kind

  // Copies, since the dispatcher may end the session before they are on their way.
  Status PassCopy(int fd) {
    ORBITKV_ASSIGN_OR_RETURN(os::UniqueFd copy, os::Duplicate(fd));
    out_fds.push_back(std::move(copy));
    return {};
  }
  bool half_open() const { return session.is_none(); }
  std::uint64_t deadline_ns() const { return std::min(read_deadline_ns, write_deadline_ns); }
};

// BootstrapStats while they grow. Threads: one adds, any reads.
struct BootstrapCounts {
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> delayed_accepts{0};
  std::atomic<std::uint64_t> frames{0};
  std::atomic<std::uint64_t> delayed_frames{0};

  BootstrapStats Read() const { return {accepted, delayed_accepts, frames, delayed_frames}; }
};

// What another thread wants of the connection of a session.
struct Order {
  SessionId session;
  bool close = false;
  bool refused = false;
  std::uint64_t frame_id = 0;
  std::vector<std::byte> payload;
};

}  // namespace orbitkv::channel
