#include "orbitkv/channel/bootstrap_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <optional>

#include "orbitkv/base/log.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/admission.h"
#include "orbitkv/channel/bootstrap_connection.h"
#include "orbitkv/channel/socket_lock.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/file.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/random.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

constexpr const char* kLog = "bootstrap";
constexpr std::size_t kMaxUnansweredFrames = 16;
constexpr int kReadsPerTurn = 16;
constexpr int kAcceptsPerTurn = 16;
// Nobody greets with more; what a peer sends before it is known costs no more memory than this.
constexpr std::size_t kMaxGreetingBytes = 4096;
constexpr std::uint64_t kAcceptPauseNs = 100'000'000U;
constexpr auto kComplaintInterval = std::chrono::milliseconds(200);
constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kWakeTag = 1;

}  // namespace

class BootstrapServer::Impl {
 public:
  Impl(const BootstrapOptions& options, BootstrapEvents* events, std::optional<os::FileLock> lock)
      : options_(options),
        events_(events),
        lock_(std::move(lock)),
        pace_(options.pace),
        accepts_(options.accept_pace),
        frames_(options.frame_pace) {}

  Status Start();
  void Give(Order order) ORBITKV_EXCLUDES(mutex_);
  void Stop() ORBITKV_EXCLUDES(mutex_);
  std::size_t session_count() const { return session_count_.load(std::memory_order_relaxed); }
  BootstrapStats stats() const { return counts_.Read(); }

 private:
  using Connections = std::map<std::uint64_t, Connection>;

  void Run();
  std::uint64_t NextDeadline() const;
  void Accept();
  void PauseAccepting(const Error& error);
  void RestListener(std::uint64_t until_ns);
  void MakeRoomForOne();
  void Obey() ORBITKV_EXCLUDES(mutex_);
  void OnSocket(std::uint64_t id, std::uint32_t events);
  void OnPidfd(std::uint64_t id);
  void Expire();
  Status Read(std::uint64_t id, Connection& connection);
  Status ReadFrames(std::uint64_t id, Connection& connection, bool& whole);
  Status TakeFrames(std::uint64_t id, Connection& connection, bool& whole);
  void SetReadDeadline(Connection& connection, bool whole) const;
  Status OnMessage(std::uint64_t id, Connection& connection, wire::BootstrapMessage message);
  Status OnHello(std::uint64_t id, Connection& connection, const wire::Hello& hello);
  Places CountPlaces(bool admin) const;
  Result<std::unique_ptr<ServerSession>> MakeSession(std::uint64_t id, Connection& connection,
                                                     const wire::Hello& hello);
  Status Open(std::uint64_t id, Connection& connection, std::unique_ptr<ServerSession> server);
  Status OnLifecycle(std::uint64_t id, Connection& connection, wire::Lifecycle frame);
  Status HandOn(Connection& connection, wire::Lifecycle frame);
  void Resume(std::uint64_t id);
  Status Watch(std::uint64_t id, const Connection& connection);
  Status Send(std::uint64_t id, Connection& connection, const wire::BootstrapMessage& message);
  Status Flush(std::uint64_t id, Connection& connection);
  void Drop(std::uint64_t id);
  void Forget(std::uint64_t id);
  void Complain(log::RateLimit& limit, const Connection& connection, std::string_view what);

  const BootstrapOptions options_;
  BootstrapEvents* const events_;
  std::optional<os::FileLock> lock_;
  os::UniqueFd listener_;
  os::EventFd wake_;
  os::Epoll epoll_;
  std::atomic<std::size_t> session_count_{0};
  BootstrapCounts counts_;

  Mutex mutex_;
  std::deque<Order> orders_ ORBITKV_GUARDED_BY(mutex_);
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;

  // Below: the server's thread only.
  SessionPace pace_;
  Pace accepts_;
  Pace frames_;
  Connections connections_;
  std::map<SessionId, std::uint64_t> by_session_;
  std::uint64_t next_connection_ = 1;
  std::uint64_t next_session_ = 1;
  std::uint64_t accept_again_ns_ = os::kNoDeadline;  // while the listener is left alone
  log::RateLimit closings_{kComplaintInterval};
  log::RateLimit refusals_{kComplaintInterval};
  bool stop_seen_ = false;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(64U << 10U);

  os::Thread thread_;
};

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
      log::Error(kLog, "the socket is no longer served: {}", ToString(ready.error()));
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
    log::Warning(kLog, "cannot accept a client: {}; raise the Manager's limit of open files", ToString(error));
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

void BootstrapServer::Impl::OnSocket(std::uint64_t id, std::uint32_t events) {
  const auto at = connections_.find(id);
  if (at == connections_.end() || !at->second.socket.valid()) return;
  Connection& connection = at->second;
  Status status;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) status = Read(id, connection);
  if (status && (events & EPOLLOUT) != 0) status = Flush(id, connection);
  if (status) return;
  if (status.error().code != Code::kUnavailable) Complain(closings_, connection, ToString(status.error()));
  Drop(id);
}

void BootstrapServer::Impl::Complain(log::RateLimit& limit, const Connection& connection, std::string_view what) {
  if (!limit.Allow(std::chrono::steady_clock::now())) return;
  log::Warning(kLog, "connection closed pid={} uid={} session={}: {} not_told={}", connection.peer.pid,
               connection.peer.uid, connection.session.value(), what, limit.suppressed());
}

Status BootstrapServer::Impl::Read(std::uint64_t id, Connection& connection) {
  // Its frame waits for its turn, so this is an event that nobody asked for: it has gone.
  if (connection.held) return Fail(Code::kUnavailable, "the client closed the connection");
  bool whole = false;
  ORBITKV_TRY(ReadFrames(id, connection, whole));
  SetReadDeadline(connection, whole);
  return {};
}

void BootstrapServer::Impl::SetReadDeadline(Connection& connection, bool whole) const {
  if (connection.half_open()) return;
  const bool half = connection.reader.half_frame() && !connection.held;
  if (whole || !half) connection.read_deadline_ns = os::kNoDeadline;
  if (half && connection.read_deadline_ns == os::kNoDeadline) {
    connection.read_deadline_ns = os::DeadlineAfter(options_.frame_ns);
  }
}

Status BootstrapServer::Impl::ReadFrames(std::uint64_t id, Connection& connection, bool& whole) {
  for (int turn = 0; turn < kReadsPerTurn && !connection.held; ++turn) {
    const bool greeting = connection.half_open();
    ORBITKV_ASSIGN_OR_RETURN(const auto got, os::ReceiveSome(connection.socket.get(), buffer_,
                                                             greeting ? &connection.received_fds : nullptr));
    if (!got) return {};
    if (*got == 0) return Fail(Code::kUnavailable, "the client closed the connection");
    if (connection.received_fds.size() > os::kMaxPassedFds) {
      return Fail(Code::kInvalid, "the client passed too many descriptors");
    }
    connection.greeting_bytes += greeting ? *got : 0;
    if (connection.greeting_bytes > kMaxGreetingBytes) {
      return Fail(Code::kInvalid, "a greeting of an impossible length", connection.greeting_bytes);
    }
    connection.reader.Append(std::span(buffer_).first(*got));
    ORBITKV_TRY(TakeFrames(id, connection, whole));
  }
  return {};
}

// What has been read, up to a frame whose turn has not come.
Status BootstrapServer::Impl::TakeFrames(std::uint64_t id, Connection& connection, bool& whole) {
  while (!connection.held) {
    ORBITKV_ASSIGN_OR_RETURN(const auto frame, connection.reader.Next());
    if (!frame) break;
    whole = true;
    ORBITKV_ASSIGN_OR_RETURN(auto message, wire::DecodeFrame(*frame));
    if (connection.close_when_sent) return Fail(Code::kUnavailable, "the client goes on after the end");
    ORBITKV_TRY(OnMessage(id, connection, std::move(message)));
  }
  return {};
}

Status BootstrapServer::Impl::OnMessage(std::uint64_t id, Connection& connection, wire::BootstrapMessage message) {
  if (auto* frame = std::get_if<wire::Lifecycle>(&message)) return OnLifecycle(id, connection, std::move(*frame));
  if (!connection.session.is_none()) return Fail(Code::kInvalid, "a greeting in an open session");
  if (const auto* hello = std::get_if<wire::Hello>(&message)) return OnHello(id, connection, *hello);
  if (std::holds_alternative<wire::Probe>(message) && connection.peer.uid == os::OwnUid()) {
    connection.close_when_sent = true;
    return Send(id, connection, wire::ProbeReply{.pid = os::OwnPid()});
  }
  return Fail(Code::kInvalid, "a message that a client does not send");
}

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
    log::Warning(kLog, "client refused name=\"{}\" pid={} uid={}: {} not_told={}", hello.name, connection.peer.pid,
                 connection.peer.uid, refusal->text, refusals_.suppressed());
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

// Frames of all sessions have their turns in the order they came. Who waits for one is not read from, so it has no
// second one in line.
Status BootstrapServer::Impl::OnLifecycle(std::uint64_t id, Connection& connection, wire::Lifecycle frame) {
  if (connection.session.is_none() || frame.session != connection.session) {
    return Fail(Code::kStale, "a frame of another session", frame.session.value(), connection.session.value());
  }
  const std::uint64_t now = os::MonotonicNs();
  const std::uint64_t at = frames_.Take(now);
  if (at <= now) return HandOn(connection, std::move(frame));
  ++counts_.delayed_frames;
  connection.held = std::move(frame);
  connection.resume_ns = at;
  return Watch(id, connection);
}

void BootstrapServer::Impl::Resume(std::uint64_t id) {
  Connection& connection = connections_.at(id);
  wire::Lifecycle frame = std::move(*connection.held);
  connection.held.reset();
  connection.resume_ns = os::kNoDeadline;
  Status status = HandOn(connection, std::move(frame));
  bool whole = true;
  if (status) status = TakeFrames(id, connection, whole);
  if (status) status = Watch(id, connection);
  if (status) return SetReadDeadline(connection, whole);
  if (status.error().code != Code::kUnavailable) Complain(closings_, connection, ToString(status.error()));
  Drop(id);
}

Status BootstrapServer::Impl::HandOn(Connection& connection, wire::Lifecycle frame) {
  ++counts_.frames;
  if (connection.unanswered.size() >= kMaxUnansweredFrames ||
      !connection.unanswered.emplace(frame.id, frame.kind).second) {
    return Fail(Code::kInvalid, "too many frames at once, or one frame id twice", frame.id);
  }
  events_->OnFrame(connection.session, frame.id, frame.kind, std::move(frame.payload));
  return {};
}

Status BootstrapServer::Impl::Send(std::uint64_t id, Connection& connection, const wire::BootstrapMessage& message) {
  ORBITKV_ASSIGN_OR_RETURN(const auto bytes, wire::EncodeFrame(message));
  connection.out.insert(connection.out.end(), bytes.begin(), bytes.end());
  return Flush(id, connection);
}

Status BootstrapServer::Impl::Flush(std::uint64_t id, Connection& connection) {
  while (connection.out_sent < connection.out.size()) {
    std::vector<int> fds;
    for (const auto& fd : connection.out_fds) fds.push_back(fd.get());
    ORBITKV_ASSIGN_OR_RETURN(
        const std::size_t sent,
        os::SendSome(connection.socket.get(), std::span(connection.out).subspan(connection.out_sent), fds));
    if (sent == 0) {
      // It must read within the time of a handshake; what is stuck before it waits for nobody else.
      if (connection.write_deadline_ns == os::kNoDeadline) {
        connection.write_deadline_ns = os::DeadlineAfter(options_.frame_ns);
      }
      return Watch(id, connection);
    }
    connection.out_sent += sent;
    connection.out_fds.clear();
  }
  connection.out.clear();
  connection.out_sent = 0;
  if (connection.close_when_sent) return Fail(Code::kUnavailable, "all is said");
  if (connection.half_open()) return {};
  connection.write_deadline_ns = os::kNoDeadline;
  return Watch(id, connection);
}

Status BootstrapServer::Impl::Watch(std::uint64_t id, const Connection& connection) {
  const std::uint32_t in = connection.held ? 0U : std::uint32_t{EPOLLIN};
  const std::uint32_t out = connection.out_sent < connection.out.size() ? std::uint32_t{EPOLLOUT} : 0U;
  return epoll_.Change(connection.socket.get(), in | out, id * 2);
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
