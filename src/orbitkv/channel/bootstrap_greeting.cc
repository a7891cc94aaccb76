#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/base/log.h"
#include "orbitkv/channel/bootstrap_loop.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/random.h"

namespace orbitkv::channel {

Status BootstrapServer::Impl::OnHello(std::uint64_t id, Connection& connection, const wire::Hello& hello) {
  const Greeting greeting{connection.peer, hello, connection.received_fds};
  auto refusal = JudgeGreeting(options_, greeting, CountPlaces(hello.purpose == wire::Purpose::kAdmin),
                               pace_.Wait(connection.peer.pid, os::MonotonicNs()));
  if (!refusal) {
    auto made = MakeSession(id, connection, hello);
    if (made) return Open(id, connection, std::move(*made));
    connection.out_fds.clear();
    refusal = RefusalOf(options_, Code::kExhausted,
                        fmt::format("the Manager cannot make a session ({}); raise its limits of open files and memory "
                                    "or end other clients",
                                    ToString(made.error())));
  }
  if (refusals_.Allow(std::chrono::steady_clock::now())) {
    log::Warning(kBootstrapLog, "client refused name=\"{}\" pid={} uid={}: {} not_told={}", hello.name,
                 connection.peer.pid, connection.peer.uid, refusal->text, refusals_.suppressed());
  }
  connection.close_when_sent = true;
  return Send(id, connection, *refusal);
}

Places BootstrapServer::Impl::CountPlaces(bool admin) const {
  Places places;
  for (const auto& [id, connection] : connections_) {
    if (connection.half_open() || connection.admin != admin) continue;
    ++(connection.socket.valid() ? places.attached : places.detached);
  }
  return places;
}

Result<std::unique_ptr<ServerSession>> BootstrapServer::Impl::MakeSession(std::uint64_t id, Connection& connection,
                                                                          const wire::Hello& hello) {
  ServerSessionOptions session{.session = SessionId(next_session_),
                               .client_token = 0,
                               .abi = std::min(hello.abi_max, options_.abi_max),
                               .purpose = hello.purpose,
                               .name = hello.name,
                               .pid = connection.peer.pid,
                               .geometry = options_.geometry};
  ORBITKV_TRY(os::RandomBytes(std::as_writable_bytes(std::span(&session.client_token, 1))));
  ORBITKV_ASSIGN_OR_RETURN(auto server, ServerSession::Create(session));
  std::vector<int> passed = {options_.manager_page_fd, server->session_fd(), server->doorbell_fd()};
  passed.insert(passed.end(), options_.pool_fds.begin(), options_.pool_fds.end());
  for (const int fd : passed) ORBITKV_TRY(connection.PassCopy(fd));
  if (options_.seats != nullptr && hello.purpose != wire::Purpose::kAdmin) {
    ORBITKV_ASSIGN_OR_RETURN(Seat seat, Seat::Take(*options_.seats, hello.liveness, connection.out_fds));
    server->SetSeat(std::move(seat));
  }
  ORBITKV_TRY(epoll_.Add(connection.received_fds.front().get(), EPOLLIN, id * 2 + 1));
  ++next_session_;
  return server;
}

Status BootstrapServer::Impl::Open(std::uint64_t id, Connection& connection, std::unique_ptr<ServerSession> server) {
  const wire::Welcome welcome{.abi = server->abi(),
                              .incarnation = options_.incarnation,
                              .session = server->id(),
                              .client_token = server->token(),
                              .geometry = options_.geometry,
                              .pool_bytes = options_.pool_bytes,
                              .pool_named = options_.pool_named,
                              .manager_pid = os::OwnPid(),
                              .liveness = server->seated_and_watched()};
  connection.pidfd = std::move(connection.received_fds.front());
  connection.received_fds.clear();
  connection.session = server->id();
  connection.admin = server->purpose() == wire::Purpose::kAdmin;
  connection.read_deadline_ns = os::kNoDeadline;
  by_session_[connection.session] = id;
  session_count_.fetch_add(1, std::memory_order_relaxed);
  events_->OnOpened(std::move(server));
  return Send(id, connection, welcome);
}

}  // namespace orbitkv::channel
