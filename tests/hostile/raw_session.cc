#include "raw_session.h"

#include <array>
#include <cstring>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::hostile {

Result<wire::BootstrapMessage> ReceiveMessage(int socket, std::vector<os::UniqueFd>* fds) {
  const std::uint64_t deadline = os::DeadlineAfter(kRawNs);
  std::uint32_t length = 0;
  ORBITKV_TRY(os::ReceiveAll(socket, std::as_writable_bytes(std::span(&length, 1)), fds, deadline));
  if (length > wire::kMaxFrameBytes) return Fail(Code::kInvalid, "an impossible length", length);
  std::vector<std::byte> body(length);
  ORBITKV_TRY(os::ReceiveAll(socket, body, fds, deadline));
  return wire::DecodeFrame(body);
}

Result<RawSession> RawSession::Connect(const std::string& socket_path, std::string* refusal, wire::Purpose purpose) {
  RawSession session;
  const std::uint64_t deadline = os::DeadlineAfter(kRawNs);
  ORBITKV_ASSIGN_OR_RETURN(session.socket_, os::ConnectUnix(socket_path, deadline));
  ORBITKV_ASSIGN_OR_RETURN(const os::UniqueFd self, os::OwnPidfd());
  ORBITKV_ASSIGN_OR_RETURN(const auto hello, wire::EncodeFrame(wire::Hello{.purpose = purpose, .name = "hostile"}));
  const std::array<int, 1> passed = {self.get()};
  ORBITKV_TRY(os::SendAll(session.socket(), hello, passed, deadline));
  ORBITKV_ASSIGN_OR_RETURN(const auto message, ReceiveMessage(session.socket(), &session.fds_));
  if (const auto* refused = std::get_if<wire::Refusal>(&message)) {
    if (refusal != nullptr) *refusal = refused->text;
    return Fail(refused->code, "the Manager refused the session");
  }
  const auto* welcome = std::get_if<wire::Welcome>(&message);
  if (welcome == nullptr || session.fds_.size() != 4) return Fail(Code::kInvalid, "no welcome", session.fds_.size());
  session.welcome_ = *welcome;
  const wire::SessionGeometry& geometry = welcome->geometry;
  ORBITKV_ASSIGN_OR_RETURN(session.memory_,
                           os::Mapping::Map(session.session_fd(), geometry.total_bytes(), os::Access::kReadWrite));
  wire::SessionHeader& header = session.header();
  session.requests_ = channel::RingProducer(session.memory_.data() + geometry.request_ring_offset(),
                                            geometry.ring_entries, &header.request_head, &header.request_tail);
  session.answers_ = channel::RingConsumer(session.memory_.data() + geometry.answer_ring_offset(),
                                           geometry.ring_entries, &header.answer_head, &header.answer_tail);
  return session;
}

std::span<std::byte> RawSession::requests() const {
  return memory().subspan(welcome_.geometry.request_ring_offset(), welcome_.geometry.ring_bytes());
}

std::span<std::byte> RawSession::arena() const {
  return memory().subspan(welcome_.geometry.arena_offset(), welcome_.geometry.arena_bytes());
}

Result<wire::Lifecycle> RawSession::Frame(std::uint32_t kind, std::span<const std::byte> payload) {
  const wire::Lifecycle request{.session = welcome_.session,
                                .id = next_frame_++,
                                .kind = kind,
                                .refused = false,
                                .payload = {payload.begin(), payload.end()}};
  ORBITKV_ASSIGN_OR_RETURN(const auto bytes, wire::EncodeFrame(request));
  ORBITKV_TRY(os::SendAll(socket(), bytes, {}, os::DeadlineAfter(kRawNs)));
  ORBITKV_ASSIGN_OR_RETURN(auto message, ReceiveMessage(socket()));
  auto* reply = std::get_if<wire::Lifecycle>(&message);
  if (reply == nullptr || reply->id != request.id) return Fail(Code::kInvalid, "a frame that answers nothing");
  return std::move(*reply);
}

Status RawSession::Register(const std::string& instance) {
  wire::Register message;
  message.set_instance(instance);
  message.set_role(wire::Register::ROLE_BOTH);
  message.set_world_size(1);
  message.set_shard_count(1);
  message.set_computation_digest(std::string(state::kDigestBytes, 'c'));
  message.set_representation_digest(std::string(state::kDigestBytes, 'r'));
  wire::CacheGroup& group = *message.add_groups();
  group.set_block_tokens(16);
  group.set_page_count(1);
  group.set_page_bytes(4096);
  const std::string bytes = message.SerializeAsString();
  ORBITKV_ASSIGN_OR_RETURN(const auto reply, Frame(wire::FRAME_REGISTER, std::as_bytes(std::span(bytes))));
  if (reply.refused) return Fail(Code::kRefused, "the registration was refused");
  return {};
}

wire::Descriptor RawSession::Good(wire::Command command) {
  wire::Descriptor request;
  request.abi = welcome_.abi;
  request.op = static_cast<std::uint16_t>(command);
  request.flags = wire::kLastChunk;
  request.generation = generation_;
  request.request_id = generation_;
  request.session_epoch = welcome_.session.value();
  request.deadline_ns = os::DeadlineAfter(kRawNs);
  generation_ += 2;
  return request;
}

wire::Descriptor RawSession::WithArguments(wire::Command command, std::span<const std::byte> arguments,
                                           std::uint32_t slot) {
  wire::Descriptor request = Good(command);
  request.arena_offset = slot * welcome_.geometry.slot_bytes;
  request.arena_length = static_cast<std::uint32_t>(arguments.size());
  std::memcpy(Slot(slot), arguments.data(), arguments.size());
  return request;
}

bool RawSession::Push(const wire::Descriptor& request) {
  if (!requests_.Push(request)) return false;
  RingDoorbell();
  return true;
}

void RawSession::RingDoorbell() const { os::SignalEventFd(doorbell_fd()); }

std::optional<wire::Descriptor> RawSession::Take() {
  wire::Descriptor answer;
  if (answers_.Take(&answer) != channel::Pop::kGot) return std::nullopt;
  return answer;
}

std::optional<wire::Descriptor> RawSession::Call(const wire::Descriptor& request) {
  if (!Push(request)) return std::nullopt;
  const std::uint64_t deadline = os::DeadlineAfter(kRawNs);
  while (os::MonotonicNs() < deadline) {
    if (auto answer = Take()) return answer;
  }
  return std::nullopt;
}

}  // namespace orbitkv::hostile
