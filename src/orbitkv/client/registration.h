// The lifecycle frames that a client sends on the bootstrap socket: who it is, that it goes, that old copies have
// ended.
// Owns: nothing. Threads: any. Blocks: each call, until its deadline.
// Errors: kRefused when the Manager understood and denied, with its words in `message`; else what the session says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/client/options.h"
#include "orbitkv/state/identity.h"

namespace orbitkv::client {

struct Registered {
  std::uint32_t instance_id = 0;
  std::uint32_t max_reserve_blocks = 0;
  bool namespace_ready = false;
};

// groups: of a worker, or those that a scheduler expects. kRefused when the Manager is of a version that knows one
// group of full attention, and there are others.
Result<Registered> Register(channel::ClientSession& session, const ClientOptions& options,
                            std::span<const state::GroupShape> groups, std::uint64_t deadline_ns, std::string* message);
// Gives up everything that the session holds, for an orderly end.
Status Unregister(channel::ClientSession& session, std::uint64_t deadline_ns);
// Says that no copy of a replaced session runs any more.
Status SessionDrained(channel::ClientSession& session, std::uint64_t old_token, const Incarnation& old_incarnation,
                      std::uint64_t deadline_ns);

struct Health {
  std::string version;
  std::int64_t pid = 0;
  std::string incarnation;  // 16 bytes
  double uptime_seconds = 0;
  std::map<std::string, double> samples;  // by name, labels in braces behind it
};

// Asks whatever Manager listens there, on a connection of its own.
Result<Health> AskHealth(const std::string& socket_path, std::uint64_t deadline_ns);

// What the Manager replied; kInvalid for what makes no sense, kRefused for its refusal, with its words in `message`.
Result<Registered> ReadRegistered(const channel::FrameReply& reply, std::string* message);
Status ReadDone(const channel::FrameReply& reply, std::string* message);
Result<Health> ReadHealth(const channel::FrameReply& reply);

// 16 bytes, as frames carry an incarnation.
std::string IncarnationBytes(const Incarnation& incarnation);
std::optional<Incarnation> IncarnationFrom(std::string_view bytes);

}  // namespace orbitkv::client
