#include "orbitkv/channel/bootstrap_server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "orbitkv/base/log.h"
#include "orbitkv/channel/bootstrap_loop.h"
#include "orbitkv/channel/socket_lock.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/file.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr std::uint64_t kAcceptPauseNs = 100'000'000U;
constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kWakeTag = 1;

}  // namespace

Status BootstrapServer::Impl::Start() {
  ORBITKV_TRY(options_.geometry.Validate());
  if (!lock_) {
    ORBITKV_ASSIGN_OR_RETURN(lock_, LockSocket(options_.socket_path, options_.lock_wait_ns));
  }
  ORBITKV_ASSIGN_OR_RETURN(wake_, os::EventFd::Create());
  ORBITKV_ASSIGN_OR_RETURN(epoll_, os::Epoll::Create());
  ORBITKV_ASSIGN_OR_RETURN(listener_, os::ListenUnix(options_.socket_path));
  ORBITKV_TRY(epoll_.Add(listener_.get(), EPOLLIN, kListenerTag));
  ORBITKV_TRY(epoll_.Add(wake_.fd(), EPOLLIN, kWakeTag));
  return thread_.Start("okv-bootstrap", [this] { Run(); });
}

void BootstrapServer::Impl::Give(Order order) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    orders_.push_back(std::move(order));
  }
  wake_.Signal();
}

void BootstrapServer::Impl::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (!thread_.running()) return;
  static_cast<void>(os::RemoveFile(options_.socket_path));
  wake_.Signal();
  thread_.Join();
  listener_.reset();
  lock_.reset();
}

void BootstrapServer::Impl::Run() {
  std::array<os::Epoll::Event, 64> events;
  while (!stop_seen_) {
    const auto ready = epoll_.Wait(events, NextDeadline());
    if (!ready) {
      log::Error(kBootstrapLog, "the socket is no longer served: {}", ToString(ready.error()));
      break;
    }
    for (const auto& event : std::span(events).first(*ready)) {
      const std::uint64_t id = event.tag / 2;
      if (event.tag == kListenerTag) {
        Accept();
      } else if (event.tag == kWakeTag) {
        Obey();
      } else if (event.tag % 2 == 0) {
        OnSocket(id, event.events);
      } else {
        OnPidfd(id);
      }
    }
    Expire();
  }
  connections_.clear();
  by_session_.clear();
  session_count_ = 0;
}

std::uint64_t BootstrapServer::Impl::NextDeadline() const {
  std::uint64_t deadline = accept_again_ns_;
  for (const auto& [id, connection] : connections_) {
    deadline = std::min({deadline, connection.deadline_ns(), connection.resume_ns});
  }
  return deadline;
}

// A few at a time, so that who has greeted already is answered before the next ones are let in.
void BootstrapServer::Impl::Accept() {
  for (int turn = 0; turn < kAcceptsPerTurn; ++turn) {
    if (const std::uint64_t now = os::MonotonicNs(), at = accepts_.When(now); at > now) {
      ++counts_.delayed_accepts;
      return RestListener(at);
    }
    auto accepted = os::AcceptUnix(listener_.get());
    if (!accepted) return PauseAccepting(accepted.error());
    if (!*accepted) return;
    accepts_.Take(os::MonotonicNs());
    ++counts_.accepted;
    const auto peer = os::PeerOf((*accepted)->get());
    if (!peer) continue;
    MakeRoomForOne();
    const std::uint64_t id = next_connection_++;
    Connection& connection = connections_[id];
    connection.socket = std::move(**accepted);
    connection.peer = *peer;
    connection.read_deadline_ns = os::DeadlineAfter(options_.handshake_ns);
    if (!epoll_.Add(connection.socket.get(), EPOLLIN, id * 2)) connections_.erase(id);
  }
}

// Out of descriptors or memory: who waits in the backlog stays ready, so asking again at once would only spin.
void BootstrapServer::Impl::PauseAccepting(const Error& error) {
  if (refusals_.Allow(std::chrono::steady_clock::now())) {
    log::Warning(kBootstrapLog, "cannot accept a client: {}; raise the Manager's limit of open files", ToString(error));
  }
  RestListener(os::DeadlineAfter(kAcceptPauseNs));
}

// Whoever comes meanwhile waits in the backlog, in turn.
void BootstrapServer::Impl::RestListener(std::uint64_t until_ns) {
  epoll_.Remove(listener_.get());
  accept_again_ns_ = until_ns;
}

// A process that opens connections and does not greet pays for itself: of the half-open ones, the oldest of the process
// that has the most of them goes.
void BootstrapServer::Impl::MakeRoomForOne() {
  std::map<std::int32_t, std::size_t> count_of;
  std::size_t count = 0;
  for (const auto& [id, connection] : connections_) {
    if (!connection.half_open()) continue;
    ++count;
    ++count_of[connection.peer.pid];
  }
  if (count < options_.max_half_open) return;
  std::uint64_t victim = 0;
  std::size_t most = 0;
  for (const auto& [id, connection] : connections_) {
    if (!connection.half_open() || count_of[connection.peer.pid] <= most) continue;
    victim = id;
    most = count_of[connection.peer.pid];
  }
  Complain(closings_, connections_.at(victim), "too many connections that have not greeted");
  Drop(victim);
}

void BootstrapServer::Impl::Obey() {
  wake_.Drain();
  std::deque<Order> orders;
  {
    MutexLock lock(mutex_);
    orders.swap(orders_);
    stop_seen_ = stopping_;
  }
  for (Order& order : orders) {
    const auto at = by_session_.find(order.session);
    if (at == by_session_.end()) continue;
    const std::uint64_t id = at->second;
    Connection& connection = connections_.at(id);
    if (order.close) {
      pace_.Ended(connection.peer.pid, os::MonotonicNs());
      Forget(id);
      continue;
    }
    const auto frame = connection.unanswered.find(order.frame_id);
    if (!connection.socket.valid() || frame == connection.unanswered.end()) continue;
    const wire::Lifecycle reply{.session = order.session,
                                .id = order.frame_id,
                                .kind = frame->second,
                                .refused = order.refused,
                                .payload = std::move(order.payload)};
    connection.unanswered.erase(frame);
    if (!Send(id, connection, reply)) Drop(id);
  }
}

void BootstrapServer::Impl::Complain(log::RateLimit& limit, const Connection& connection, std::string_view what) {
  if (!limit.Allow(std::chrono::steady_clock::now())) return;
  log::Warning(kBootstrapLog, "connection closed pid={} uid={} session={}: {} not_told={}", connection.peer.pid,
               connection.peer.uid, connection.session.value(), what, limit.suppressed());
}

void BootstrapServer::Impl::OnPidfd(std::uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end() || !os::ProcessEnded(at->second.pidfd.get())) return;
  const SessionId session = at->second.session;
  Forget(id);
  events_->OnDeath(session);
}

void BootstrapServer::Impl::Expire() {
  const std::uint64_t now = os::MonotonicNs();
  std::vector<std::uint64_t> due;
  for (const auto& [id, connection] : connections_) {
    if (std::min(connection.deadline_ns(), connection.resume_ns) <= now) due.push_back(id);
  }
  for (const std::uint64_t id : due) {
    const Connection& connection = connections_.at(id);
    if (connection.deadline_ns() > now) {
      Resume(id);
      continue;
    }
    Complain(closings_, connection, "it sends or reads too slowly");
    Drop(id);
  }
  if (accept_again_ns_ > now) return;
  accept_again_ns_ = os::kNoDeadline;
  if (const Status added = epoll_.Add(listener_.get(), EPOLLIN, kListenerTag); !added) PauseAccepting(added.error());
}

// Ends the connection. A session stays known until its process is dead or the Manager closes it.
void BootstrapServer::Impl::Drop(std::uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  if (connection.half_open()) {
    Forget(id);
    return;
  }
  if (!connection.socket.valid()) return;
  epoll_.Remove(connection.socket.get());
  connection.socket.reset();
  connection.read_deadline_ns = os::kNoDeadline;
  connection.write_deadline_ns = os::kNoDeadline;
  connection.reader = {};
  connection.held.reset();
  connection.resume_ns = os::kNoDeadline;
  connection.out.clear();
  connection.out_fds.clear();
  events_->OnHangup(connection.session);
}

void BootstrapServer::Impl::Forget(std::uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = at->second;
  // Explicitly: a copy of either descriptor in another process would keep its watch alive.
  if (connection.socket.valid()) epoll_.Remove(connection.socket.get());
  if (connection.pidfd.valid()) epoll_.Remove(connection.pidfd.get());
  if (by_session_.erase(connection.session) > 0) session_count_.fetch_sub(1, std::memory_order_relaxed);
  connections_.erase(at);
}

Result<std::unique_ptr<BootstrapServer>> BootstrapServer::Start(const BootstrapOptions& options,
                                                                BootstrapEvents* events,
                                                                std::optional<os::FileLock> lock) {
  auto impl = std::make_unique<Impl>(options, events, std::move(lock));
  ORBITKV_TRY(impl->Start());
  return std::unique_ptr<BootstrapServer>(new BootstrapServer(std::move(impl)));
}

BootstrapServer::BootstrapServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BootstrapServer::~BootstrapServer() { Stop(); }

void BootstrapServer::Reply(SessionId session, std::uint64_t frame_id, std::span<const std::byte> payload,
                            bool refused) {
  impl_->Give({.session = session,
               .refused = refused,
               .frame_id = frame_id,
               .payload = std::vector<std::byte>(payload.begin(), payload.end())});
}

void BootstrapServer::Close(SessionId session) { impl_->Give({.session = session, .close = true, .payload = {}}); }

void BootstrapServer::Stop() { impl_->Stop(); }

std::size_t BootstrapServer::session_count() const { return impl_->session_count(); }

BootstrapStats BootstrapServer::stats() const { return impl_->stats(); }

}  // namespace orbitkv::channel
