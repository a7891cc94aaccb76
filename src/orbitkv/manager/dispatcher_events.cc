// The dispatcher's answers to what other threads tell it: sessions that come and go, lifecycle frames, memory,
// verdicts.
#include <string_view>

#include "orbitkv/base/log.h"
#include "orbitkv/manager/dispatcher.h"
#include "orbitkv/manager/dispatcher_session.h"
#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/manager/version.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "session";

}  // namespace

bool Dispatcher::HandleEvents() {
  queue_.Take(taken_);
  if (taken_.empty()) return false;
  const std::uint64_t now_ns = os::MonotonicNs();
  for (Event& event : taken_) {
    ++events_;
    std::visit([&](auto& one) { Handle(one, now_ns); }, event);
  }
  return true;
}

void Dispatcher::Handle(SessionOpened& event, std::uint64_t) {
  auto session = std::make_unique<Session>(std::move(event.session), service_);
  const channel::ServerSession& channel = *session->channel;
  const bool publish = channel.purpose() == wire::Purpose::kPublish;
  Status opened = waiter_.Watch(channel);
  if (opened && !session->admin) {
    opened = OpenInService(*session);
    if (!opened) waiter_.Unwatch(channel);
  }
  if (!opened) {
    log::Warning(kTag, "refused session={} name=\"{}\" reason=\"{}\"", session->id.value(), channel.name(),
                 ToString(opened.error()));
    server_->Close(session->id);
    return;
  }
  if (!session->admin) {
    log::Info(kTag, "opened session={} name=\"{}\" pid={} purpose={}", session->id.value(), channel.name(),
              channel.pid(), publish ? "publish" : "control");
  }
  sessions_.push_back(std::move(session));
}

Status Dispatcher::OpenInService(Session& session) {
  const channel::ServerSession& channel = *session.channel;
  const bool publish = channel.purpose() == wire::Purpose::kPublish;
  const auto purpose = publish ? service::Purpose::kPublish : service::Purpose::kControl;
  session.seat = session.channel->TakeSeat();
  if (!session.seat.taken()) return service_.OpenSession(session.id, purpose, channel.token());
  const std::uint32_t row = session.seat.row();
  const pool::SessionOwner owner{
      .incarnation = incarnation_, .token = channel.token(), .pid = channel.pid(), .watched = session.seat.watched()};
  ORBITKV_TRY(core_.lists().Open(row, owner));
  Status opened = service_.OpenSession(session.id, purpose, channel.token(), row);
  if (!opened) core_.lists().Close(row);
  return opened;
}

void Dispatcher::Handle(EarlierSessionGone& event, std::uint64_t) {
  if (!service_.EndEarlierSession(event.row)) return;
  log::Info(kTag, "process of an earlier session ended row={}", event.row);
  FreeEarlierRows();
}

void Dispatcher::FreeEarlierRows() {
  for (const std::uint32_t row : service_.TakeEndedEarlierSessions()) {
    if (row_freed_) row_freed_(row);
  }
}

void Dispatcher::Handle(SessionHungUp& event, std::uint64_t now_ns) {
  Session* session = Find(event.session);
  if (session == nullptr) return;
  CloseChannel(*session, now_ns);
  if (session->admin) {
    server_->Close(session->id);
    Forget(session->id, now_ns);
    return;
  }
  service_.DetachSession(session->id, now_ns);
  if (!service_.HoldsNothing(session->id)) {
    log::Info(kTag, "hung up session={} waiting for its process to end or to report drained", session->id.value());
    return;
  }
  service_.EndSession(session->id, now_ns);
  server_->Close(session->id);
  log::Info(kTag, "closed session={}", session->id.value());
  Forget(session->id, now_ns);
}

void Dispatcher::Handle(SessionDied& event, std::uint64_t now_ns) {
  Session* session = Find(event.session);
  if (session == nullptr) return;
  if (!session->admin) {
    service_.EndSession(session->id, now_ns);
    log::Info(kTag, "process ended session={}", session->id.value());
  }
  Forget(event.session, now_ns);
}

void Dispatcher::Handle(MemoryReserved& event, std::uint64_t) {
  if (const Status added = core_.AddReserved(event.bytes); !added) {
    log::Error(kTag, "the pool refused reserved memory: {}", ToString(added.error()));
  }
}

void Dispatcher::Handle(SlotVerified& event, std::uint64_t now_ns) {
  if (!service::IsScrub(event.request_id)) {
    log::Warning("verifier", "a reported slot is {}",
                 event.equal ? "right; counted against the session" : "wrong; dropped");
  } else if (!event.equal) {
    log::Warning("verifier", "a slot of an earlier Manager is wrong; dropped");
  }
  service_.VerifyDone(event.request_id, event.equal, now_ns);
}

void Dispatcher::Handle(SlotLoaded& event, std::uint64_t now_ns) {
  service_.LoadDone(event.id, event.result, event.checksum, now_ns);
}

void Dispatcher::Handle(SlotSaved& event, std::uint64_t now_ns) { service_.SaveDone(event.id, event.result, now_ns); }

void Dispatcher::Handle(FrameArrived& event, std::uint64_t now_ns) {
  const Session* session = Find(event.session);
  if (session == nullptr || session->channel == nullptr) return;
  if (event.dropped) return ReplyError(event, Code::kBusy, "too many frames wait for the Manager; send it again later");
  if (event.kind == wire::FRAME_HEALTH) return ReplyHealth(event, now_ns);
  // Also where no other session has a place: what is drained may be what fills them.
  if (event.kind == wire::FRAME_SESSION_DRAINED) return Drained(event, now_ns);
  if (session->admin) return ReplyError(event, Code::kRefused, "this session was opened to ask for health only");
  switch (event.kind) {
    case wire::FRAME_REGISTER: return Register(*session, event, now_ns);
    case wire::FRAME_UNREGISTER: return Unregister(*session, event, now_ns);
    default: return ReplyError(event, Code::kUnsupported, "this Manager does not know that kind of frame");
  }
}

void Dispatcher::Register(const Session& session, const FrameArrived& frame, std::uint64_t now_ns) {
  auto registration = DecodeRegister(frame.payload);
  if (!registration) return ReplyError(frame, registration.error().code, registration.error().text);
  if (registration->name.empty()) registration->name = session.channel->name();
  const service::RegisterOutcome outcome = service_.Register(session.id, *registration, now_ns);
  if (outcome.refused) {
    log::Warning(kTag, "registration refused session={} instance=\"{}\" reason=\"{}\"", session.id.value(),
                 registration->instance, outcome.text);
    return ReplyError(frame, *outcome.refused, outcome.text);
  }
  log::Info(kTag, "registered session={} instance=\"{}\" rank={}/{} shard={}/{} namespace_ready={}", session.id.value(),
            registration->instance, registration->rank.value(), registration->world_size, registration->shard,
            registration->shard_count, outcome.namespace_ready);
  server_->Reply(frame.session, frame.frame_id, EncodeRegisterReply(outcome, wire::kMaxBlocksPerReserve));
}

void Dispatcher::Unregister(const Session& session, const FrameArrived& frame, std::uint64_t now_ns) {
  if (const Status ok = DecodeEmpty(frame.payload); !ok) return ReplyError(frame, ok.error().code, ok.error().text);
  if (const Status done = service_.Unregister(session.id, now_ns); !done) {
    return ReplyError(frame, done.error().code, done.error().text);
  }
  server_->Reply(frame.session, frame.frame_id, EncodeEmptyReply());
}

void Dispatcher::Drained(const FrameArrived& frame, std::uint64_t now_ns) {
  const auto drained = DecodeDrained(frame.payload);
  if (!drained) return ReplyError(frame, drained.error().code, drained.error().text);
  if (drained->incarnation == incarnation_) {
    if (const auto ended = service_.DrainSession(drained->client_token, now_ns)) {
      log::Info(kTag, "drained session={}", ended->value());
      if (*ended != frame.session) {
        server_->Close(*ended);
        Forget(*ended, now_ns);
      }
    }
  } else if (const auto row = service_.DrainEarlierSession(drained->incarnation, drained->client_token)) {
    log::Info(kTag, "drained a session of an earlier Manager row={}", *row);
    FreeEarlierRows();
  }
  server_->Reply(frame.session, frame.frame_id, EncodeEmptyReply());
}

void Dispatcher::ReplyHealth(const FrameArrived& frame, std::uint64_t now_ns) {
  if (const Status ok = DecodeEmpty(frame.payload); !ok) return ReplyError(frame, ok.error().code, ok.error().text);
  Health health;
  health.version = kVersion;
  health.pid = os::OwnPid();
  health.incarnation = incarnation_;
  health.uptime_seconds = static_cast<double>(now_ns - started_ns_) / 1e9;
  health.samples = metrics_.Collect();
  server_->Reply(frame.session, frame.frame_id, EncodeHealth(health));
}

void Dispatcher::ReplyError(const FrameArrived& frame, Code code, std::string_view text) {
  server_->Reply(frame.session, frame.frame_id, EncodeError(code, text), true);
}

}  // namespace orbitkv::manager
