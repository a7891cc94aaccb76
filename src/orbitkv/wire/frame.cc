#include "orbitkv/wire/frame.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/wire/bootstrap.pb.h"

namespace orbitkv::wire {
namespace {

// Memory that a reader keeps while it waits for the next frame.
constexpr std::size_t kKeptBytes = 64U << 10U;
constexpr std::uint32_t kMaxCode = static_cast<std::uint32_t>(Code::kCancelled);

void Fill(const Hello& from, pb::BootstrapMessage& message) {
  auto* to = message.mutable_hello();
  to->set_abi_min(from.abi_min);
  to->set_abi_max(from.abi_max);
  to->set_purpose(static_cast<std::uint32_t>(from.purpose));
  to->set_name(from.name.substr(0, kMaxNameBytes));
  to->set_pid(from.pid);
  to->set_liveness(from.liveness);
}

void Fill(const Welcome& from, pb::BootstrapMessage& message) {
  auto* to = message.mutable_welcome();
  to->set_abi(from.abi);
  to->set_incarnation_hi(from.incarnation.hi);
  to->set_incarnation_lo(from.incarnation.lo);
  to->set_session_epoch(from.session.value());
  to->set_client_token(from.client_token);
  to->set_ring_entries(from.geometry.ring_entries);
  to->set_slot_count(from.geometry.slot_count);
  to->set_slot_bytes(from.geometry.slot_bytes);
  to->set_session_bytes(from.geometry.total_bytes());
  to->set_pool_bytes(from.pool_bytes);
  to->set_pool_named(from.pool_named);
  to->set_manager_pid(from.manager_pid);
  to->set_liveness(from.liveness);
}

void Fill(const Refusal& from, pb::BootstrapMessage& message) {
  auto* to = message.mutable_refusal();
  to->set_code(static_cast<std::uint32_t>(from.code));
  to->set_text(from.text);
  to->set_abi_min(from.abi_min);
  to->set_abi_max(from.abi_max);
}

void Fill(const Probe&, pb::BootstrapMessage& message) { message.mutable_probe(); }

void Fill(const ProbeReply& from, pb::BootstrapMessage& message) { message.mutable_probe_reply()->set_pid(from.pid); }

void Fill(const Lifecycle& from, pb::BootstrapMessage& message) {
  auto* to = message.mutable_lifecycle();
  to->set_session_epoch(from.session.value());
  to->set_id(from.id);
  to->set_kind(from.kind);
  to->set_refused(from.refused);
  to->set_payload(from.payload.data(), from.payload.size());
}

Result<BootstrapMessage> Take(const pb::Hello& from) {
  if (from.abi_min() == 0 || from.abi_min() > from.abi_max() || from.abi_max() > 0xffffU) {
    return Fail(Code::kInvalid, "hello with an ABI range out of order", from.abi_min(), from.abi_max());
  }
  if (from.purpose() < static_cast<std::uint32_t>(Purpose::kControl) ||
      from.purpose() > static_cast<std::uint32_t>(Purpose::kAdmin)) {
    return Fail(Code::kInvalid, "hello with an unknown purpose", from.purpose());
  }
  if (from.name().size() > kMaxNameBytes) return Fail(Code::kInvalid, "hello with a name that is too long");
  return Hello{.abi_min = static_cast<std::uint16_t>(from.abi_min()),
               .abi_max = static_cast<std::uint16_t>(from.abi_max()),
               .purpose = static_cast<Purpose>(from.purpose()),
               .name = from.name(),
               .pid = from.pid(),
               .liveness = from.liveness()};
}

Result<BootstrapMessage> Take(const pb::Welcome& from) {
  Welcome to{.abi = static_cast<std::uint16_t>(from.abi()),
             .incarnation = {from.incarnation_hi(), from.incarnation_lo()},
             .session = SessionId(from.session_epoch()),
             .client_token = from.client_token(),
             .geometry = {from.ring_entries(), from.slot_count(), from.slot_bytes()},
             .pool_bytes = from.pool_bytes(),
             .pool_named = from.pool_named(),
             .manager_pid = from.manager_pid(),
             .liveness = from.liveness()};
  if (from.abi() == 0 || from.abi() > 0xffffU) return Fail(Code::kInvalid, "welcome without an ABI version");
  if (to.session.is_none() || to.incarnation == Incarnation{}) return Fail(Code::kInvalid, "welcome without identity");
  ORBITKV_TRY(to.geometry.Validate());
  if (to.geometry.total_bytes() != from.session_bytes()) {
    return Fail(Code::kInvalid, "welcome with sizes that disagree", from.session_bytes(), to.geometry.total_bytes());
  }
  return to;
}

Result<BootstrapMessage> Take(const pb::Refusal& from) {
  if (from.code() == 0 || from.code() > kMaxCode) return Fail(Code::kInvalid, "refusal with an unknown code");
  return Refusal{.code = static_cast<Code>(from.code()),
                 .text = from.text(),
                 .abi_min = static_cast<std::uint16_t>(from.abi_min()),
                 .abi_max = static_cast<std::uint16_t>(from.abi_max())};
}

Result<BootstrapMessage> Take(const pb::Lifecycle& from) {
  if (from.kind() == 0) return Fail(Code::kInvalid, "lifecycle frame without a kind");
  Lifecycle to{
      .session = SessionId(from.session_epoch()), .id = from.id(), .kind = from.kind(), .refused = from.refused()};
  const auto* bytes = reinterpret_cast<const std::byte*>(from.payload().data());
  to.payload.assign(bytes, bytes + from.payload().size());
  return to;
}

}  // namespace

Result<std::vector<std::byte>> EncodeFrame(const BootstrapMessage& message) {
  pb::BootstrapMessage body;
  std::visit([&body](const auto& m) { Fill(m, body); }, message);
  const std::size_t length = body.ByteSizeLong();
  if (length > kMaxFrameBytes) return Fail(Code::kInvalid, "the frame is larger than 16 MiB", length);
  std::vector<std::byte> bytes(kFrameLengthBytes + length);
  const auto prefix = static_cast<std::uint32_t>(length);
  std::memcpy(bytes.data(), &prefix, sizeof prefix);
  body.SerializeToArray(bytes.data() + kFrameLengthBytes, static_cast<int>(length));
  return bytes;
}

Result<BootstrapMessage> DecodeFrame(std::span<const std::byte> body) {
  if (body.size() > kMaxFrameBytes) return Fail(Code::kInvalid, "the frame is larger than 16 MiB", body.size());
  pb::BootstrapMessage message;
  if (!message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return Fail(Code::kInvalid, "the frame is no bootstrap message", body.size());
  }
  switch (message.body_case()) {
    case pb::BootstrapMessage::kHello: return Take(message.hello());
    case pb::BootstrapMessage::kWelcome: return Take(message.welcome());
    case pb::BootstrapMessage::kRefusal: return Take(message.refusal());
    case pb::BootstrapMessage::kProbe: return Probe{};
    case pb::BootstrapMessage::kProbeReply: return ProbeReply{.pid = message.probe_reply().pid()};
    case pb::BootstrapMessage::kLifecycle: return Take(message.lifecycle());
    case pb::BootstrapMessage::BODY_NOT_SET: break;
  }
  return Fail(Code::kInvalid, "the frame holds no message that this version knows");
}

void FrameReader::Append(std::span<const std::byte> bytes) {
  if (consumed_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(consumed_));
    consumed_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<std::span<const std::byte>>> FrameReader::Next() {
  const auto rest = std::span<const std::byte>(buffer_).subspan(consumed_);
  if (rest.empty() && buffer_.capacity() > kKeptBytes) {
    std::vector<std::byte>().swap(buffer_);
    consumed_ = 0;
    return std::nullopt;
  }
  if (rest.size() < kFrameLengthBytes) return std::nullopt;
  std::uint32_t length = 0;
  std::memcpy(&length, rest.data(), sizeof length);
  if (length == 0 || length > kMaxFrameBytes) {
    return Fail(Code::kInvalid, "a frame must be from 1 byte to 16 MiB long", length);
  }
  if (rest.size() - kFrameLengthBytes < length) return std::nullopt;
  consumed_ += kFrameLengthBytes + length;
  return rest.subspan(kFrameLengthBytes, length);
}

}  // namespace orbitkv::wire
