#include <array>
#include <cstddef>
#include <cstring>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "baselines.h"

#include "orbitkv/base/check.h"

namespace orbitkv::bench {
namespace {

constexpr std::size_t kMaxRequestBytes = 64 * 1024;
constexpr std::size_t kAnswerBytes = 64;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ORBITKV_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

int NewSocket() {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ORBITKV_CHECK(fd >= 0);
  return fd;
}

// Answers each request with its first 64 bytes. One thread, as the dispatcher is.
void Serve(int listener) {
  const int poll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.fd = listener}};
  ORBITKV_CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event) == 0);
  std::vector<std::byte> request(kMaxRequestBytes);
  std::array<epoll_event, 64> ready{};
  for (;;) {
    const int count = epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < count; ++i) {
      int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        ORBITKV_CHECK(fd >= 0);
        event.data.fd = fd;
        ORBITKV_CHECK(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0);
        continue;
      }
      if (recv(fd, request.data(), request.size(), 0) <= 0 ||
          send(fd, request.data(), kAnswerBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kAnswerBytes)) {
        close(fd);
      }
    }
  }
}

class SocketTrip final : public RoundTrip {
 public:
  SocketTrip(const std::string& path, std::size_t request_bytes) : fd_(NewSocket()), request_(request_bytes) {
    const sockaddr_un address = AddressOf(path);
    ORBITKV_CHECK(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~SocketTrip() override { close(fd_); }
  void Call() override {
    const std::uint64_t number = ++sequence_;
    std::memcpy(request_.data(), &number, sizeof(number));
    ORBITKV_CHECK(send(fd_, request_.data(), request_.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request_.size()));
    std::array<std::byte, kAnswerBytes> answer{};
    ORBITKV_CHECK(recv(fd_, answer.data(), answer.size(), 0) == static_cast<ssize_t>(answer.size()));
    ORBITKV_CHECK(std::memcmp(answer.data(), &number, sizeof(number)) == 0);
  }

 private:
  const int fd_;
  std::vector<std::byte> request_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

Child StartSocketEcho(int peer_cpu, const std::string& path) {
  const int listener = NewSocket();
  const sockaddr_un address = AddressOf(path);
  ORBITKV_CHECK(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  ORBITKV_CHECK(listen(listener, 64) == 0);
  Child child = Child::Fork(peer_cpu, [listener] { Serve(listener); });
  close(listener);
  return child;
}

std::unique_ptr<RoundTrip> MakeSocketTrip(const std::string& path, std::size_t request_bytes) {
  return std::make_unique<SocketTrip>(path, request_bytes);
}

}  // namespace orbitkv::bench
