// A session without the client library: the greeting, the descriptors that the Manager passes, both rings and the arena
// as plain bytes, for tests that break every rule.
// Owns: the socket, the descriptors, the mapping of the session's memory. Threads: one; the memory may be scribbled on
// by others. Blocks: Connect and Frame, for kRawNs at most.
// Errors: what the sockets report; a refusal's code, with its text in `refusal`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/channel/ring.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/frame.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::hostile {

inline constexpr std::uint64_t kRawNs = 20'000'000'000;

// What the Manager sends on a connection; kUnavailable when it closed it.
Result<wire::BootstrapMessage> ReceiveMessage(int socket, std::vector<os::UniqueFd>* fds = nullptr);

class RawSession {
 public:
  static Result<RawSession> Connect(const std::string& socket_path, std::string* refusal = nullptr,
                                    wire::Purpose purpose = wire::Purpose::kControl);

  int socket() const { return socket_.get(); }
  int page_fd() const { return fds_.at(0).get(); }
  int session_fd() const { return fds_.at(1).get(); }
  int doorbell_fd() const { return fds_.at(2).get(); }
  int pool_fd() const { return fds_.at(3).get(); }
  const wire::Welcome& welcome() const { return welcome_; }
  wire::SessionHeader& header() const { return *reinterpret_cast<wire::SessionHeader*>(memory_.data()); }
  std::span<std::byte> memory() const { return memory_.bytes(); }
  std::span<std::byte> requests() const;
  std::span<std::byte> arena() const;
  std::byte* Slot(std::uint32_t index) const { return arena().data() + index * welcome_.geometry.slot_bytes; }

  // A lifecycle frame and its reply.
  Result<wire::Lifecycle> Frame(std::uint32_t kind, std::span<const std::byte> payload);
  // As the one rank of an instance; its blocks are one page of 4096 bytes.
  Status Register(const std::string& instance);

  // A request in good order, with the next generation; whoever spoils it does so before Push.
  wire::Descriptor Good(wire::Command command = wire::Command::kPing);
  // The same with arguments in a slot.
  wire::Descriptor WithArguments(wire::Command command, std::span<const std::byte> arguments, std::uint32_t slot = 0);
  bool has_room() const { return requests_.Free() > 0; }
  // False when the ring is full: the generation of the request is then lost, and those after it are out of order.
  bool Push(const wire::Descriptor& request);
  void RingDoorbell() const;
  std::optional<wire::Descriptor> Take();
  // Push, and the answer to it; none when it does not come.
  std::optional<wire::Descriptor> Call(const wire::Descriptor& request);

 private:
  RawSession() = default;

  os::UniqueFd socket_;
  std::vector<os::UniqueFd> fds_;
  wire::Welcome welcome_;
  os::Mapping memory_;
  channel::RingProducer requests_;
  channel::RingConsumer answers_;
  std::uint32_t generation_ = 1;
  std::uint64_t next_frame_ = 1;
};

}  // namespace orbitkv::hostile
