#include "orbitkv/channel/client_session.h"

#include "orbitkv/channel/client_rings.h"
#include "orbitkv/channel/frame_exchange.h"
#include "orbitkv/channel/handshake.h"
#include "orbitkv/os/fork_guard.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::channel {

class ClientSession::Impl {
 public:
  Impl(Handshake hands, const ConnectOptions& options)
      : hands_(std::move(hands)),
        purpose_(options.purpose),
        rings_({.geometry = hands_.welcome.geometry,
                .abi = hands_.welcome.abi,
                .session = hands_.welcome.session,
                .spin_ns = options.spin_ns,
                .doorbell_fd = hands_.doorbell.get(),
                .late_answer = options.late_answer},
               hands_.session.data(),
               &reinterpret_cast<const wire::ManagerPage*>(hands_.manager_page.data())->dispatcher_asleep),
        frames_(hands_.socket.get(), hands_.welcome.session) {}

  Status Check() const {
    if (guard_.InChild()) return Fail(Code::kRefused, "called after fork; connect again in the child process");
    return {};
  }

  const Handshake hands_;
  const wire::Purpose purpose_;
  const os::ForkGuard guard_;
  ClientRings rings_;
  FrameExchange frames_;
};

Result<std::unique_ptr<ClientSession>> ClientSession::Connect(const ConnectOptions& options) {
  ORBITKV_ASSIGN_OR_RETURN(Handshake hands, ShakeHands(options));
  return std::unique_ptr<ClientSession>(new ClientSession(std::make_unique<Impl>(std::move(hands), options)));
}

ClientSession::ClientSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClientSession::~ClientSession() = default;

Incarnation ClientSession::incarnation() const { return impl_->hands_.welcome.incarnation; }
wire::Purpose ClientSession::purpose() const { return impl_->purpose_; }
SessionId ClientSession::epoch() const { return impl_->hands_.welcome.session; }
std::uint64_t ClientSession::token() const { return impl_->hands_.welcome.client_token; }
std::int32_t ClientSession::manager_pid() const { return impl_->hands_.welcome.manager_pid; }
std::uint16_t ClientSession::abi() const { return impl_->hands_.welcome.abi; }
std::uint32_t ClientSession::slot_capacity() const { return impl_->hands_.welcome.geometry.slot_bytes; }
int ClientSession::pool_fd() const { return impl_->hands_.pools.empty() ? -1 : impl_->hands_.pools.front().get(); }
std::uint64_t ClientSession::pool_bytes() const { return impl_->hands_.welcome.pool_bytes; }
bool ClientSession::pool_named() const { return impl_->hands_.welcome.pool_named; }
bool ClientSession::pool_outlives() const { return impl_->hands_.liveness.valid(); }
int ClientSession::hangup_fd() const { return impl_->hands_.socket.get(); }
bool ClientSession::hung_up() const { return os::HungUp(impl_->hands_.socket.get()); }
bool ClientSession::broken() const { return impl_->Check() && impl_->rings_.broken(); }

Result<RequestId> ClientSession::Post(const Request& request) {
  ORBITKV_TRY(impl_->Check());
  return impl_->rings_.Post(request);
}

Status ClientSession::PostNeverLost(Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                    std::span<const std::byte> args) {
  ORBITKV_TRY(impl_->Check());
  return impl_->rings_.PostNeverLost(command, scalar0, scalar1, args);
}

std::size_t ClientSession::unacknowledged() const { return impl_->Check() ? impl_->rings_.unacknowledged() : 0; }

Result<std::optional<Answer>> ClientSession::TryTake(RequestId id) {
  Answer answer;
  ORBITKV_ASSIGN_OR_RETURN(const bool taken, TryTakeInto(id, &answer));
  if (!taken) return std::optional<Answer>();
  return std::optional<Answer>(std::move(answer));
}

Result<Answer> ClientSession::Wait(RequestId id, std::uint64_t until_ns) {
  Answer answer;
  ORBITKV_TRY(WaitInto(id, until_ns, &answer));
  return answer;
}

Result<bool> ClientSession::TryTakeInto(RequestId id, Answer* answer) {
  ORBITKV_TRY(impl_->Check());
  return impl_->rings_.TryTakeInto(id, answer);
}

Status ClientSession::WaitInto(RequestId id, std::uint64_t until_ns, Answer* answer) {
  ORBITKV_TRY(impl_->Check());
  return impl_->rings_.WaitInto(id, until_ns, answer);
}

void ClientSession::Abandon(RequestId id) {
  if (impl_->Check()) impl_->rings_.Abandon(id);
}

Result<Answer> ClientSession::Call(const Request& request) {
  ORBITKV_ASSIGN_OR_RETURN(const RequestId id, Post(request));
  Answer answer;
  const Status waited = WaitInto(id, request.deadline_ns, &answer);
  if (waited) return answer;
  Abandon(id);
  return std::unexpected(waited.error());
}

std::uint32_t ClientSession::completions() const { return impl_->Check() ? impl_->rings_.completions() : 0; }

void ClientSession::WaitCompletions(std::uint32_t seen, std::uint64_t until_ns) const {
  if (impl_->Check()) impl_->rings_.WaitCompletions(seen, until_ns);
}

void ClientSession::Pump() {
  if (impl_->Check()) impl_->rings_.Pump();
}

std::size_t ClientSession::pending() const { return impl_->Check() ? impl_->rings_.pending() : 0; }

ClientSessionStats ClientSession::stats() const {
  return impl_->Check() ? impl_->rings_.stats() : ClientSessionStats{};
}

Result<FrameReply> ClientSession::Exchange(std::uint32_t kind, std::span<const std::byte> payload,
                                           std::uint64_t deadline_ns) {
  ORBITKV_TRY(impl_->Check());
  return impl_->frames_.Exchange(kind, payload, deadline_ns);
}

void ClientSession::Shutdown() {
  if (!impl_->Check()) return;
  impl_->rings_.Shutdown();
  os::ShutdownSocket(impl_->hands_.socket.get());
}

}  // namespace orbitkv::channel
