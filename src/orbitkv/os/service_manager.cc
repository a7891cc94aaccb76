#include "orbitkv/os/service_manager.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

constexpr int kFirstFd = 3;
constexpr int kMostFds = 64;

std::optional<int> Number(const std::optional<std::string>& text) {
  int value = 0;
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return value;
}

}  // namespace

Status NotifyServiceManager(const std::string& socket, std::string_view text, std::span<const int> fds) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.size() < 2 || socket.size() >= sizeof address.sun_path || (socket[0] != '/' && socket[0] != '@')) {
    return Fail(Code::kInvalid, "NOTIFY_SOCKET is no path of a socket", socket.size());
  }
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return FailErrno("cannot make a socket");
  std::string copy(text);
  iovec part = {copy.data(), copy.size()};
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  if (fds.size() > kMostFds) return Fail(Code::kInvalid, "too many descriptors", fds.size());
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  while (::sendmsg(fd.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    auto error = FailErrno("cannot tell the service manager");
    const int number = error.error().sys_errno;
    if (number == ENOENT || number == ECONNREFUSED) error.error().code = Code::kUnavailable;
    return error;
  }
  return {};
}

std::map<std::string, UniqueFd> TakePassedFds(const GetEnv& get_env) {
  std::map<std::string, UniqueFd> taken;
  const auto count = Number(get_env("LISTEN_FDS"));
  const auto pid = Number(get_env("LISTEN_PID"));
  if (!count || *count <= 0 || *count > kMostFds || !pid || *pid != ::getpid()) return taken;
  const std::string names = get_env("LISTEN_FDNAMES").value_or("");
  std::size_t at = 0;
  for (int i = 0; i < *count; ++i) {
    const std::size_t end = std::min(names.find(':', at), names.size());
    const std::string name = at <= names.size() ? names.substr(at, end - at) : "";
    at = end + 1;
    UniqueFd fd(kFirstFd + i);
    if (::fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0) {
      (void)fd.release();  // never was one
      continue;
    }
    taken.emplace(name, std::move(fd));
  }
  return taken;
}

}  // namespace orbitkv::os
