// Frames of the bootstrap socket: a length, then one message. Plain structs here, protobuf inside.
// Owns: FrameReader owns the bytes of the frame that is being received.
// Threads: one per reader; the codec is pure. Blocks: no.
// Units: bytes; at most kMaxFrameBytes per frame, whatever a peer announces.
// Errors: kInvalid for a frame that is too large, empty, malformed or has a field out of range; the connection that
// sent it is to be closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::wire {

inline constexpr std::uint32_t kMaxFrameBytes = 16U << 20U;
inline constexpr std::size_t kFrameLengthBytes = 4;
inline constexpr std::size_t kMaxNameBytes = 256;

enum class Purpose : std::uint32_t {
  kControl = 1,  // one per client
  kPublish = 2,  // opened at the client's first save
  kAdmin = 3,    // asks for health only
};

struct Hello {
  std::uint16_t abi_min = kAbiMin;
  std::uint16_t abi_max = kAbiMax;
  Purpose purpose = Purpose::kControl;
  std::string name{};
  std::int32_t pid = 0;
  bool liveness = false;  // it keeps a liveness descriptor
};

struct Welcome {
  std::uint16_t abi = 0;
  Incarnation incarnation{};
  SessionId session{};
  std::uint64_t client_token = 0;
  SessionGeometry geometry{};
  std::uint64_t pool_bytes = 0;
  bool pool_named = false;
  std::int32_t manager_pid = 0;
  bool liveness = false;  // one comes behind the pool's descriptors
};

struct Refusal {
  Code code = Code::kRefused;
  std::string text{};
  std::uint16_t abi_min = kAbiMin;
  std::uint16_t abi_max = kAbiMax;
};

struct Probe {};
struct ProbeReply {
  std::int32_t pid = 0;
};

struct Lifecycle {
  SessionId session{};
  std::uint64_t id = 0;
  std::uint32_t kind = 0;
  bool refused = false;
  std::vector<std::byte> payload{};
};

using BootstrapMessage = std::variant<Hello, Welcome, Refusal, Probe, ProbeReply, Lifecycle>;

// The length and the message. kInvalid when it would exceed the limit.
Result<std::vector<std::byte>> EncodeFrame(const BootstrapMessage& message);
// One message, without its length.
Result<BootstrapMessage> DecodeFrame(std::span<const std::byte> body);

// Cuts a byte stream into frames. Memory grows with the bytes that really arrived, not with the announced length.
class FrameReader {
 public:
  void Append(std::span<const std::byte> bytes);
  // The next whole frame's body, valid until the next call; none when bytes are missing.
  Result<std::optional<std::span<const std::byte>>> Next();
  // Memory that it holds: little once every frame was taken and Next has said so.
  std::size_t capacity_bytes() const { return buffer_.capacity(); }
  // Bytes of a frame that is not complete yet.
  bool half_frame() const { return consumed_ < buffer_.size(); }

 private:
  std::vector<std::byte> buffer_;
  std::size_t consumed_ = 0;
};

}  // namespace orbitkv::wire
