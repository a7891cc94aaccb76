#include "orbitkv/channel/handshake.h"

#include <array>

#include "orbitkv/os/memfd.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {
namespace {

constexpr std::size_t kFixedFds = 3;  // Manager page, session memfd, doorbell

Result<os::UniqueFd> ConnectToOwnUser(const std::string& path, std::uint64_t deadline_ns) {
  ORBITKV_ASSIGN_OR_RETURN(os::UniqueFd socket, os::ConnectUnix(path, deadline_ns));
  ORBITKV_ASSIGN_OR_RETURN(const os::PeerCredentials peer, os::PeerOf(socket.get()));
  if (peer.uid != os::OwnUid()) {
    return Fail(Code::kRefused, "the socket belongs to another user's Manager; run both as one user", peer.uid,
                os::OwnUid());
  }
  return socket;
}

// One frame, read to its end and not beyond: what follows belongs to the session.
Result<wire::BootstrapMessage> ReceiveMessage(int socket, std::vector<os::UniqueFd>* fds, std::uint64_t deadline_ns) {
  std::uint32_t length = 0;
  ORBITKV_TRY(os::ReceiveAll(socket, std::as_writable_bytes(std::span(&length, 1)), fds, deadline_ns));
  if (length == 0 || length > wire::kMaxFrameBytes) return Fail(Code::kInvalid, "a frame of an impossible length");
  std::vector<std::byte> body(length);
  ORBITKV_TRY(os::ReceiveAll(socket, body, fds, deadline_ns));
  return wire::DecodeFrame(body);
}

std::unexpected<Error> FailRefusal(const wire::Refusal& refusal, const ConnectOptions& options) {
  if (options.message != nullptr) *options.message = refusal.text;
  if (refusal.abi_max < options.abi_min || refusal.abi_min > options.abi_max) {
    return Fail(refusal.code, "the Manager speaks no common ABI version; use client and Manager of one release",
                refusal.abi_min, refusal.abi_max);
  }
  return Fail(refusal.code, "the Manager refused the session");
}

Status CheckFile(int fd, std::uint64_t bytes, bool must_be_sealed) {
  ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t actual, os::FileBytes(fd));
  if (actual != bytes) return Fail(Code::kInvalid, "the Manager passed memory of another size", actual, bytes);
  if (!must_be_sealed) return {};
  ORBITKV_ASSIGN_OR_RETURN(const bool sealed, os::HasSizeSeals(fd));
  if (!sealed) return Fail(Code::kInvalid, "the Manager passed memory that can be resized");
  return {};
}

Status CheckShared(const Handshake& hands) {
  const auto* page = reinterpret_cast<const wire::ManagerPage*>(hands.manager_page.data());
  const wire::Welcome& welcome = hands.welcome;
  if (page->magic != wire::kManagerMagic || page->incarnation_hi != welcome.incarnation.hi ||
      page->incarnation_lo != welcome.incarnation.lo) {
    return Fail(Code::kInvalid, "the Manager page is not this Manager's");
  }
  const auto* header = reinterpret_cast<const wire::SessionHeader*>(hands.session.data());
  if (header->magic != wire::kSessionMagic || header->abi != welcome.abi ||
      header->session_epoch != welcome.session.value() || header->ring_entries != welcome.geometry.ring_entries ||
      header->slot_bytes != welcome.geometry.slot_bytes) {
    return Fail(Code::kInvalid, "the session memory does not fit the welcome");
  }
  return {};
}

}  // namespace

Result<Handshake> ShakeHands(const ConnectOptions& options) {
  Handshake hands;
  ORBITKV_ASSIGN_OR_RETURN(hands.socket, ConnectToOwnUser(options.socket_path, options.deadline_ns));
  ORBITKV_ASSIGN_OR_RETURN(const os::UniqueFd self, os::OwnPidfd());
  ORBITKV_ASSIGN_OR_RETURN(const auto hello, wire::EncodeFrame(wire::Hello{.abi_min = options.abi_min,
                                                                           .abi_max = options.abi_max,
                                                                           .purpose = options.purpose,
                                                                           .name = options.name,
                                                                           .pid = os::OwnPid(),
                                                                           .liveness = true}));
  const std::array<int, 1> passed = {self.get()};
  ORBITKV_TRY(os::SendAll(hands.socket.get(), hello, passed, options.deadline_ns));
  std::vector<os::UniqueFd> fds;
  ORBITKV_ASSIGN_OR_RETURN(const auto message, ReceiveMessage(hands.socket.get(), &fds, options.deadline_ns));
  if (const auto* refusal = std::get_if<wire::Refusal>(&message)) return FailRefusal(*refusal, options);
  const auto* welcome = std::get_if<wire::Welcome>(&message);
  if (welcome == nullptr) return Fail(Code::kInvalid, "the Manager answered the greeting with something else");
  if (welcome->abi < options.abi_min || welcome->abi > options.abi_max) {
    return Fail(Code::kInvalid, "the Manager chose an ABI version that was not offered", welcome->abi);
  }
  if (fds.size() < kFixedFds + (welcome->liveness ? 1 : 0))
    return Fail(Code::kInvalid, "the Manager passed too few descriptors", fds.size());
  hands.welcome = *welcome;
  if (welcome->liveness) {
    hands.liveness = os::OwnProcessFd(std::move(fds.back()));
    fds.pop_back();
  }
  const std::uint64_t session_bytes = welcome->geometry.total_bytes();
  ORBITKV_TRY(CheckFile(fds[0].get(), wire::kPageBytes, true));
  ORBITKV_TRY(CheckFile(fds[1].get(), session_bytes, true));
  for (std::size_t i = kFixedFds; i < fds.size(); ++i) {
    ORBITKV_TRY(CheckFile(fds[i].get(), welcome->pool_bytes, !welcome->pool_named));
    hands.pools.push_back(std::move(fds[i]));
  }
  ORBITKV_ASSIGN_OR_RETURN(hands.manager_page, os::Mapping::Map(fds[0].get(), wire::kPageBytes, os::Access::kRead));
  ORBITKV_ASSIGN_OR_RETURN(hands.session, os::Mapping::Map(fds[1].get(), session_bytes, os::Access::kReadWrite));
  hands.doorbell = std::move(fds[2]);
  ORBITKV_TRY(CheckShared(hands));
  return hands;
}

Result<std::int32_t> ProbeManager(const std::string& socket_path, std::uint64_t deadline_ns) {
  ORBITKV_ASSIGN_OR_RETURN(const os::UniqueFd socket, ConnectToOwnUser(socket_path, deadline_ns));
  ORBITKV_ASSIGN_OR_RETURN(const auto probe, wire::EncodeFrame(wire::Probe{}));
  ORBITKV_TRY(os::SendAll(socket.get(), probe, {}, deadline_ns));
  ORBITKV_ASSIGN_OR_RETURN(const auto message, ReceiveMessage(socket.get(), nullptr, deadline_ns));
  const auto* reply = std::get_if<wire::ProbeReply>(&message);
  if (reply == nullptr) return Fail(Code::kInvalid, "the listener is no Manager");
  ORBITKV_ASSIGN_OR_RETURN(const os::PeerCredentials peer, os::PeerOf(socket.get()));
  return peer.pid != 0 ? peer.pid : reply->pid;
}

}  // namespace orbitkv::channel
