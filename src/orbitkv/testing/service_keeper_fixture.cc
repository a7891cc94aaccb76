#include "orbitkv/testing/service_keeper_fixture.h"

#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::testing {

ServiceKeeper::ServiceKeeper(std::string path)
    : path_(std::move(path)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ORBITKV_CHECK(path_.size() < sizeof address.sun_path);
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  ORBITKV_CHECK(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

ServiceKeeper::~ServiceKeeper() { static_cast<void>(::unlink(path_.c_str())); }

void ServiceKeeper::Receive() {
  for (;;) {
    char text[256] = {};
    iovec part = {text, sizeof text - 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) return;
    const std::string lines(text);
    ready_ |= lines == "READY=1";
    const std::size_t named = lines.find("FDNAME=");
    if (named == std::string::npos) continue;
    const std::size_t at = named + std::strlen("FDNAME=");
    const std::string name = lines.substr(at, lines.find('\n', at) - at);
    if (lines.starts_with("FDSTOREREMOVE")) kept_.erase(name);
    if (!lines.starts_with("FDSTORE=1")) continue;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    ORBITKV_CHECK(header != nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    kept_[name] = os::UniqueFd(fd);
  }
}

std::map<std::string, os::UniqueFd> ServiceKeeper::Copies() const {
  std::map<std::string, os::UniqueFd> copies;
  for (const auto& [name, fd] : kept_) copies.emplace(name, os::Duplicate(fd.get()).value());
  return copies;
}

void ServiceKeeper::PassOn() const {
  ::setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  if (kept_.empty()) return;
  // Out of the way first, because the places may be taken by one another.
  constexpr int kFirst = 3;
  constexpr int kAside = 200;
  std::string names;
  int count = 0;
  for (const auto& [name, fd] : kept_) {
    ::dup2(fd.get(), kAside + count++);
    names += (names.empty() ? "" : ":") + name;
  }
  for (int i = 0; i < count; ++i) {
    ::dup2(kAside + i, kFirst + i);
    ::close(kAside + i);
  }
  ::setenv("LISTEN_FDS", std::to_string(count).c_str(), 1);
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
}

}  // namespace orbitkv::testing
