#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "orbitkv/channel/bootstrap_loop.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

constexpr std::size_t kMaxUnansweredFrames = 16;
constexpr int kReadsPerTurn = 16;
// Nobody greets with more; what a peer sends before it is known costs no more memory than this.
constexpr std::size_t kMaxGreetingBytes = 4096;

}  // namespace

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

}  // namespace orbitkv::channel
