// Unix stream sockets that carry bytes, descriptors and the identity of the peer.
// Owns: nothing; descriptors are the caller's. Every socket here is non-blocking and close-on-exec.
// Threads: any, one per socket and direction. Blocks: the calls that take a deadline, until it (CLOCK_MONOTONIC ns).
// Units: bytes; at most kMaxPassedFds descriptors travel with one message.
// Errors: kUnavailable when the peer is not there or went away, kTimedOut at the deadline, kInvalid for a path that
// does
//         not fit into a socket address, kIo otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

inline constexpr std::size_t kMaxPassedFds = 8;

struct PeerCredentials {
  std::int32_t pid = 0;  // 0 when the peer lives in a PID namespace that is not visible here
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
};

// Binds with mode 0600, replacing a socket that is left over at this path.
Result<UniqueFd> ListenUnix(const std::string& path);
// The next waiting connection, or none.
Result<std::optional<UniqueFd>> AcceptUnix(int listener);
Result<UniqueFd> ConnectUnix(const std::string& path, std::uint64_t deadline_ns);
Result<PeerCredentials> PeerOf(int socket);
// Both ends of a new connection, for tests.
Result<std::pair<UniqueFd, UniqueFd>> SocketPair();

// Sends all bytes, the descriptors with the first of them.
Status SendAll(int socket, std::span<const std::byte> bytes, std::span<const int> fds, std::uint64_t deadline_ns);
// Sends what fits now; the number of bytes taken, 0 when none fit.
Result<std::size_t> SendSome(int socket, std::span<const std::byte> bytes, std::span<const int> fds);
// What is there now: nullopt when nothing is, 0 bytes when the peer closed. Received descriptors are appended to fds.
Result<std::optional<std::size_t>> ReceiveSome(int socket, std::span<std::byte> out, std::vector<UniqueFd>* fds);
// Exactly out.size() bytes.
Status ReceiveAll(int socket, std::span<std::byte> out, std::vector<UniqueFd>* fds, std::uint64_t deadline_ns);
// Waits until a descriptor is readable; false at the deadline.
bool WaitReadable(int fd, std::uint64_t deadline_ns);
// Whether the peer closed its end; unread bytes may still be there.
bool HungUp(int socket);
// Ends both directions without closing the descriptor, so that a thread that waits on it wakes up.
void ShutdownSocket(int socket);

}  // namespace orbitkv::os
