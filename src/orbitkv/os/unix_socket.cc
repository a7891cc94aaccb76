#include "orbitkv/os/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"

namespace orbitkv::os {
namespace {

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalid, "the socket path is empty or too long; choose a shorter one", path.size(),
                sizeof address.sun_path - 1);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool WaitFor(int fd, short events, std::uint64_t deadline_ns) {
  for (;;) {
    pollfd entry = {.fd = fd, .events = events, .revents = 0};
    timespec timeout = {};
    const std::uint64_t now = MonotonicNs();
    const std::uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    timeout.tv_sec = static_cast<time_t>(left / 1'000'000'000U);
    timeout.tv_nsec = static_cast<long>(left % 1'000'000'000U);
    const int ready = ::ppoll(&entry, 1, deadline_ns == kNoDeadline ? nullptr : &timeout, nullptr);
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

std::unexpected<Error> FailPeer(const char* text) {
  auto error = FailErrno(text);
  const int number = error.error().sys_errno;
  if (number == EPIPE || number == ECONNRESET || number == ECONNREFUSED || number == ENOENT || number == ENOTCONN) {
    error.error().code = Code::kUnavailable;
  }
  return error;
}

}  // namespace

Result<UniqueFd> ListenUnix(const std::string& path) {
  ORBITKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FailErrno("cannot create a socket");
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode)) {
    return Fail(Code::kInvalid, "the socket path names a file that is not a socket; choose another path");
  }
  ::unlink(path.c_str());
  // The mode goes onto the unbound inode, so that the socket never exists with a wider one.
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return FailErrno("cannot set the mode of a socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return FailErrno("cannot bind the socket (is its directory writable?)");
  }
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0) return FailErrno("cannot set the mode of the socket");
  if (::listen(fd.get(), 128) != 0) return FailErrno("cannot listen on the socket");
  return fd;
}

Result<std::optional<UniqueFd>> AcceptUnix(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return std::optional<UniqueFd>(std::move(fd));
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::optional<UniqueFd>();
  return FailErrno("cannot accept a connection");
}

Result<UniqueFd> ConnectUnix(const std::string& path, std::uint64_t deadline_ns) {
  ORBITKV_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  for (;;) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return FailErrno("cannot create a socket");
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    // EAGAIN means a full backlog, which poll cannot wait for: try again in small steps until the deadline.
    if (errno != EAGAIN && errno != EINTR) return FailPeer("cannot connect (is orbitkv-manager running?)");
    const std::uint64_t now = MonotonicNs();
    if (now >= deadline_ns) return Fail(Code::kTimedOut, "the Manager accepts no connection");
    WaitFor(-1, 0, std::min(deadline_ns, now + 2'000'000U));
  }
}

Result<PeerCredentials> PeerOf(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return FailErrno("cannot read the peer's credentials");
  }
  return PeerCredentials{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
}

Result<std::pair<UniqueFd, UniqueFd>> SocketPair() {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) {
    return FailErrno("cannot create a socket pair");
  }
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<std::size_t> SendSome(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (fds.size() > kMaxPassedFds) return Fail(Code::kInvalid, "too many descriptors in one message", fds.size());
  iovec piece = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const auto sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return 0;
    return FailPeer("cannot send to the peer");
  }
}

Status SendAll(int socket, std::span<const std::byte> bytes, std::span<const int> fds, std::uint64_t deadline_ns) {
  while (!bytes.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(const std::size_t sent, SendSome(socket, bytes, fds));
    if (sent > 0) {
      bytes = bytes.subspan(sent);
      fds = {};
    } else if (!WaitFor(socket, POLLOUT, deadline_ns)) {
      return Fail(Code::kTimedOut, "the peer does not read");
    }
  }
  return {};
}

Result<std::optional<std::size_t>> ReceiveSome(int socket, std::span<std::byte> out, std::vector<UniqueFd>* fds) {
  iovec piece = {.iov_base = out.data(), .iov_len = out.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassedFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return std::optional<std::size_t>();
    return FailPeer("cannot receive from the peer");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      UniqueFd owned(fd);
      if (fds != nullptr) fds->push_back(std::move(owned));
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) return Fail(Code::kInvalid, "the peer sent too many descriptors");
  return std::optional<std::size_t>(static_cast<std::size_t>(got));
}

Status ReceiveAll(int socket, std::span<std::byte> out, std::vector<UniqueFd>* fds, std::uint64_t deadline_ns) {
  while (!out.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(const std::optional<std::size_t> got, ReceiveSome(socket, out, fds));
    if (!got) {
      if (!WaitFor(socket, POLLIN, deadline_ns)) return Fail(Code::kTimedOut, "the peer sends nothing");
      continue;
    }
    if (*got == 0) return Fail(Code::kUnavailable, "the peer closed the connection");
    out = out.subspan(*got);
  }
  return {};
}

bool WaitReadable(int fd, std::uint64_t deadline_ns) { return WaitFor(fd, POLLIN, deadline_ns); }

bool HungUp(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

void ShutdownSocket(int socket) { ::shutdown(socket, SHUT_RDWR); }

}  // namespace orbitkv::os
