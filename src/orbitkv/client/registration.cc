#include "orbitkv/client/registration.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::client {
namespace {

// A reply of this kind, or the Manager's words in `message`.
template <typename Reply>
Result<Reply> Read(const channel::FrameReply& reply, std::string* message) {
  const int size = static_cast<int>(reply.payload.size());
  if (reply.refused) {
    wire::ErrorReply error;
    if (!error.ParseFromArray(reply.payload.data(), size)) {
      return Fail(Code::kInvalid, "the Manager's refusal is broken");
    }
    if (message != nullptr) *message = error.text();
    return Fail(Code::kRefused, "the Manager refused; its log and the message name the reason", error.code());
  }
  Reply parsed;
  if (!parsed.ParseFromArray(reply.payload.data(), size)) return Fail(Code::kInvalid, "the Manager's reply is broken");
  return parsed;
}

template <typename Request>
Result<channel::FrameReply> Ask(channel::ClientSession& session, wire::FrameKind kind, const Request& request,
                                std::uint64_t deadline_ns) {
  const std::string bytes = request.SerializeAsString();
  return session.Exchange(kind, std::as_bytes(std::span(bytes)), deadline_ns);
}

std::string Bytes(const state::Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

wire::Register::Role RoleOf(Role role) {
  switch (role) {
    case Role::kScheduler: return wire::Register::ROLE_SCHEDULER;
    case Role::kWorker: return wire::Register::ROLE_WORKER;
    case Role::kBoth: return wire::Register::ROLE_BOTH;
  }
  return wire::Register::ROLE_UNSPECIFIED;
}

wire::CacheGroup::Kind KindOf(state::GroupKind kind) {
  switch (kind) {
    case state::GroupKind::kFullAttention: return wire::CacheGroup::KIND_FULL_ATTENTION;
    case state::GroupKind::kSlidingWindow: return wire::CacheGroup::KIND_SLIDING_WINDOW;
    case state::GroupKind::kRecurrent: return wire::CacheGroup::KIND_RECURRENT;
    case state::GroupKind::kChunkedLocal: return wire::CacheGroup::KIND_CHUNKED_LOCAL;
  }
  return wire::CacheGroup::KIND_FULL_ATTENTION;
}

// What every version of a Manager takes the groups for: those before 3 pass over what they do not know.
bool IsPlain(std::span<const state::GroupShape> groups) {
  return groups.empty() ||
         (groups.size() == 1 && groups[0].kind == state::GroupKind::kFullAttention &&
          (groups[0].hash_block_tokens == 0 || groups[0].hash_block_tokens == groups[0].block_tokens));
}

std::string SampleName(const wire::Sample& sample) {
  if (sample.labels().empty()) return sample.name();
  const std::map<std::string, std::string> sorted(sample.labels().begin(), sample.labels().end());
  std::string name = sample.name() + "{";
  for (const auto& [key, value] : sorted) {
    if (name.back() != '{') name += ",";
    name.append(key).append("=\"").append(value).append("\"");
  }
  return name.append("}");
}

}  // namespace

Result<Registered> Register(channel::ClientSession& session, const ClientOptions& options,
                            std::span<const state::GroupShape> groups, std::uint64_t deadline_ns,
                            std::string* message) {
  if (session.abi() < 3 && !IsPlain(groups)) {
    if (message != nullptr) *message = "the Manager is of an older version and keeps one group of full attention only";
    return Fail(Code::kRefused, "the Manager is of an older version and keeps one group of full attention only");
  }
  wire::Register request;
  request.set_instance(options.instance);
  request.set_role(RoleOf(options.role));
  request.set_rank(options.rank);
  request.set_world_size(options.world_size);
  request.set_shard(options.shard);
  request.set_shard_count(options.shard_count);
  request.set_computation_digest(Bytes(options.computation_digest));
  request.set_name(options.name);
  if (options.moves_bytes()) {
    request.set_representation_digest(Bytes(options.representation_digest));
  }
  for (const state::GroupShape& shape : groups) {
    wire::CacheGroup* const group = request.add_groups();
    group->set_block_tokens(shape.block_tokens);
    group->set_page_count(shape.page_count);
    group->set_page_bytes(shape.page_bytes);
    group->set_kind(KindOf(shape.kind));
    group->set_span_tokens(shape.span_tokens);
    group->set_hash_block_tokens(shape.hash_block_tokens);
  }
  ORBITKV_ASSIGN_OR_RETURN(const channel::FrameReply reply, Ask(session, wire::FRAME_REGISTER, request, deadline_ns));
  return ReadRegistered(reply, message);
}

Result<Registered> ReadRegistered(const channel::FrameReply& reply, std::string* message) {
  ORBITKV_ASSIGN_OR_RETURN(const auto read, Read<wire::RegisterReply>(reply, message));
  return Registered{read.instance_id(), read.max_reserve_blocks(), read.namespace_ready()};
}

Status ReadDone(const channel::FrameReply& reply, std::string* message) {
  // Neither reply has fields, so each reads as the other.
  ORBITKV_TRY(Read<wire::SessionDrainedReply>(reply, message));
  return {};
}

Status Unregister(channel::ClientSession& session, std::uint64_t deadline_ns) {
  ORBITKV_ASSIGN_OR_RETURN(const channel::FrameReply reply,
                           Ask(session, wire::FRAME_UNREGISTER, wire::Unregister(), deadline_ns));
  return ReadDone(reply, nullptr);
}

Status SessionDrained(channel::ClientSession& session, std::uint64_t old_token, const Incarnation& old_incarnation,
                      std::uint64_t deadline_ns) {
  wire::SessionDrained request;
  request.set_client_token(old_token);
  request.set_incarnation(IncarnationBytes(old_incarnation));
  ORBITKV_ASSIGN_OR_RETURN(const channel::FrameReply reply,
                           Ask(session, wire::FRAME_SESSION_DRAINED, request, deadline_ns));
  return ReadDone(reply, nullptr);
}

Result<Health> AskHealth(const std::string& socket_path, std::uint64_t deadline_ns) {
  channel::ConnectOptions options;
  options.socket_path = socket_path;
  options.purpose = wire::Purpose::kAdmin;
  options.name = "status";
  options.deadline_ns = deadline_ns;
  ORBITKV_ASSIGN_OR_RETURN(const std::unique_ptr<channel::ClientSession> session,
                           channel::ClientSession::Connect(options));
  ORBITKV_ASSIGN_OR_RETURN(const channel::FrameReply reply,
                           Ask(*session, wire::FRAME_HEALTH, wire::HealthRequest(), deadline_ns));
  return ReadHealth(reply);
}

Result<Health> ReadHealth(const channel::FrameReply& reply) {
  ORBITKV_ASSIGN_OR_RETURN(const auto read, Read<wire::HealthReply>(reply, nullptr));
  Health health{read.version(), read.pid(), read.incarnation(), read.uptime_seconds(), {}};
  for (const wire::Sample& sample : read.samples()) health.samples[SampleName(sample)] = sample.value();
  return health;
}

std::string IncarnationBytes(const Incarnation& incarnation) {
  std::string bytes(2 * sizeof(std::uint64_t), '\0');
  std::memcpy(bytes.data(), &incarnation.hi, sizeof(incarnation.hi));
  std::memcpy(bytes.data() + sizeof(incarnation.hi), &incarnation.lo, sizeof(incarnation.lo));
  return bytes;
}

std::optional<Incarnation> IncarnationFrom(std::string_view bytes) {
  Incarnation incarnation;
  if (bytes.size() != 2 * sizeof(std::uint64_t)) return std::nullopt;
  std::memcpy(&incarnation.hi, bytes.data(), sizeof(incarnation.hi));
  std::memcpy(&incarnation.lo, bytes.data() + sizeof(incarnation.hi), sizeof(incarnation.lo));
  return incarnation;
}

}  // namespace orbitkv::client
