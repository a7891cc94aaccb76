// The client's half of the handshake: connect, prove who both sides are, receive and check what the Manager passes.
// Owns: Handshake owns the socket, the descriptors and the mappings until a session takes them.
// Threads: any, one per call. Blocks: until the deadline of the options.
// Errors: kUnavailable when no Manager listens, kRefused when it is another user's or refuses (the message says why),
//         kTimedOut at the deadline, kInvalid when what it passed does not fit what it said.
// Invariant: nothing is mapped before its size, and its seals where it has any, have been checked.
#pragma once

#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/os/fork_guard.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

struct Handshake {
  os::UniqueFd socket;
  wire::Welcome welcome;
  os::Mapping manager_page;  // read-only
  os::Mapping session;
  os::UniqueFd doorbell;
  std::vector<os::UniqueFd> pools;
  os::OwnProcessFd liveness;  // while it is open, a later Manager keeps the slots that the session may touch
};

Result<Handshake> ShakeHands(const ConnectOptions& options);

// Asks who listens at a socket path: its pid, 0 where it is not visible here.
Result<std::int32_t> ProbeManager(const std::string& socket_path, std::uint64_t deadline_ns);

}  // namespace orbitkv::channel
