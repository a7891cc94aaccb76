#include "orbitkv/channel/frame_exchange.h"

#include <array>
#include <chrono>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

std::chrono::steady_clock::time_point TimePoint(std::uint64_t deadline_ns) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kFar = static_cast<std::uint64_t>(Clock::time_point::max().time_since_epoch().count());
  return Clock::time_point(std::chrono::nanoseconds(deadline_ns < kFar ? deadline_ns : kFar));
}

}  // namespace

Result<FrameReply> FrameExchange::Exchange(std::uint32_t kind, std::span<const std::byte> payload,
                                           std::uint64_t deadline_ns) {
  {
    MutexLock lock(mutex_);
    while (taken_) {
      if (os::MonotonicNs() >= deadline_ns) return Fail(Code::kTimedOut, "another frame waits for its reply");
      turn_.WaitUntil(mutex_, TimePoint(deadline_ns));
    }
    taken_ = true;
  }
  auto reply = SendAndReceive(kind, payload, deadline_ns);
  {
    MutexLock lock(mutex_);
    taken_ = false;
  }
  turn_.NotifyOne();
  return reply;
}

Result<FrameReply> FrameExchange::SendAndReceive(std::uint32_t kind, std::span<const std::byte> payload,
                                                 std::uint64_t deadline_ns) {
  if (broken_) return Fail(Code::kUnavailable, "the connection to the Manager has ended");
  const std::uint64_t id = next_id_++;
  ORBITKV_ASSIGN_OR_RETURN(
      const auto frame,
      wire::EncodeFrame(wire::Lifecycle{
          .session = session_, .id = id, .kind = kind, .refused = false, .payload = {payload.begin(), payload.end()}}));
  if (const Status sent = os::SendAll(socket_, frame, {}, deadline_ns); !sent) {
    // Part of the frame may be on its way; nothing that follows would be understood.
    broken_ = true;
    os::ShutdownSocket(socket_);
    return std::unexpected(sent.error());
  }
  auto reply = ReceiveReply(id, deadline_ns);
  if (!reply && reply.error().code != Code::kTimedOut) {
    broken_ = true;
    os::ShutdownSocket(socket_);
  }
  return reply;
}

Result<FrameReply> FrameExchange::ReceiveReply(std::uint64_t id, std::uint64_t deadline_ns) {
  std::vector<std::byte> buffer(64U << 10U);
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const auto frame, reader_.Next());
    if (frame) {
      ORBITKV_ASSIGN_OR_RETURN(auto message, wire::DecodeFrame(*frame));
      auto* reply = std::get_if<wire::Lifecycle>(&message);
      if (reply == nullptr || reply->session != session_ || reply->id > id) {
        return Fail(Code::kInvalid, "the Manager sent a frame that answers nothing");
      }
      if (reply->id == id) return FrameReply{.refused = reply->refused, .payload = std::move(reply->payload)};
      continue;  // the reply to a request that timed out
    }
    ORBITKV_ASSIGN_OR_RETURN(const auto got, os::ReceiveSome(socket_, buffer, nullptr));
    if (!got) {
      if (!os::WaitReadable(socket_, deadline_ns)) return Fail(Code::kTimedOut, "the Manager does not reply in time");
      continue;
    }
    if (*got == 0) return Fail(Code::kUnavailable, "the Manager closed the connection");
    reader_.Append(std::span(buffer).first(*got));
  }
}

}  // namespace orbitkv::channel
