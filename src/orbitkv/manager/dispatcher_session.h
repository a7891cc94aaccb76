// One session as the dispatcher keeps it: until its process is gone, also after its connection.
// Owns: the channel's end of it. Threads: the dispatcher only. Blocks: no. Included by the dispatcher's sources alone.
// Invariant: the channel is open exactly while its connection is.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "orbitkv/channel/server_session.h"
#include "orbitkv/manager/dispatcher.h"
#include "orbitkv/manager/session_turn.h"

namespace orbitkv::manager {

struct Dispatcher::Session {
  Session(std::unique_ptr<channel::ServerSession> opened, service::Service& service)
      : id(opened->id()),
        admin(opened->purpose() == wire::Purpose::kAdmin),
        channel(std::move(opened)),
        turn(service, *channel) {}

  const SessionId id;
  const bool admin;                                 // unknown to the service: asks for health only
  std::unique_ptr<channel::ServerSession> channel;  // null after the connection ended
  channel::Seat seat;                               // its row, where it has one
  SessionTurn turn;
  bool told_broken = false;
  bool told_muted = false;
  std::uint64_t muted_until_ns = 0;  // 0: its doorbell is listened to
};

}  // namespace orbitkv::manager
