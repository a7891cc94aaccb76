#include "orbitkv/manager/lifecycle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <google/protobuf/message_lite.h>
#include <limits>

#include <nlohmann/json.hpp>

#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::manager {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxGroups = 64;
constexpr std::size_t kIncarnationBytes = 16;

bool Parse(google::protobuf::MessageLite& message, std::span<const std::byte> bytes) {
  return bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()) &&
         message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

std::vector<std::byte> Serialize(const google::protobuf::MessageLite& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

bool ToDigest(const std::string& bytes, state::Digest& digest) {
  if (bytes.size() != digest.size()) return false;
  std::memcpy(digest.data(), bytes.data(), digest.size());
  return true;
}

std::string IncarnationBytes(const Incarnation& incarnation) {
  std::string bytes(kIncarnationBytes, '\0');
  std::memcpy(bytes.data(), &incarnation.hi, sizeof(incarnation.hi));
  std::memcpy(bytes.data() + sizeof(incarnation.hi), &incarnation.lo, sizeof(incarnation.lo));
  return bytes;
}

bool ToIncarnation(const std::string& bytes, Incarnation& incarnation) {
  if (bytes.size() != kIncarnationBytes) return false;
  std::memcpy(&incarnation.hi, bytes.data(), sizeof(incarnation.hi));
  std::memcpy(&incarnation.lo, bytes.data() + sizeof(incarnation.hi), sizeof(incarnation.lo));
  return true;
}

std::string IncarnationHex(const Incarnation& incarnation) {
  return fmt::format("{:016x}{:016x}", incarnation.hi, incarnation.lo);
}

Result<state::GroupShape> ToShape(const wire::CacheGroup& group) {
  state::GroupShape shape{group.block_tokens(), group.page_count(), group.page_bytes()};
  shape.span_tokens = group.span_tokens();
  shape.hash_block_tokens = group.hash_block_tokens();
  switch (group.kind()) {
    case wire::CacheGroup::KIND_FULL_ATTENTION: shape.kind = state::GroupKind::kFullAttention; return shape;
    case wire::CacheGroup::KIND_SLIDING_WINDOW: shape.kind = state::GroupKind::kSlidingWindow; return shape;
    case wire::CacheGroup::KIND_RECURRENT: shape.kind = state::GroupKind::kRecurrent; return shape;
    case wire::CacheGroup::KIND_CHUNKED_LOCAL: shape.kind = state::GroupKind::kChunkedLocal; return shape;
    default: return Fail(Code::kInvalid, "a cache group of unknown kind", static_cast<std::uint64_t>(group.kind()));
  }
}

Result<service::Role> ToRole(wire::Register::Role role) {
  switch (role) {
    case wire::Register::ROLE_SCHEDULER: return service::Role::kScheduler;
    case wire::Register::ROLE_WORKER: return service::Role::kWorker;
    case wire::Register::ROLE_BOTH: return service::Role::kBoth;
    default: return Fail(Code::kInvalid, "the registration names no known role");
  }
}

}  // namespace

Result<service::Registration> DecodeRegister(std::span<const std::byte> bytes) {
  wire::Register message;
  if (!Parse(message, bytes)) return Fail(Code::kInvalid, "the registration is no valid message");
  service::Registration registration;
  ORBITKV_ASSIGN_OR_RETURN(registration.role, ToRole(message.role()));
  if (message.instance().empty() || message.instance().size() > kMaxNameBytes ||
      message.name().size() > kMaxNameBytes) {
    return Fail(Code::kInvalid, "the names of instance and process have 1 to 256 bytes");
  }
  if (message.groups_size() > static_cast<int>(kMaxGroups)) {
    return Fail(Code::kInvalid, "the registration names more cache groups than allowed",
                static_cast<std::uint64_t>(message.groups_size()), kMaxGroups);
  }
  registration.instance = message.instance();
  registration.name = message.name();
  registration.rank = Rank(message.rank());
  registration.world_size = message.world_size();
  registration.shard = message.shard();
  registration.shard_count = message.shard_count();
  if (!ToDigest(message.computation_digest(), registration.computation)) {
    return Fail(Code::kInvalid, "the computation digest has 32 bytes", message.computation_digest().size());
  }
  if (!message.representation_digest().empty()) {
    state::Digest digest{};
    if (!ToDigest(message.representation_digest(), digest)) {
      return Fail(Code::kInvalid, "the representation digest has 32 bytes", message.representation_digest().size());
    }
    registration.representation = digest;
  }
  for (const wire::CacheGroup& group : message.groups()) {
    ORBITKV_ASSIGN_OR_RETURN(registration.groups.emplace_back(), ToShape(group));
  }
  return registration;
}

Result<DrainedFrame> DecodeDrained(std::span<const std::byte> bytes) {
  wire::SessionDrained message;
  DrainedFrame frame;
  if (!Parse(message, bytes) || !ToIncarnation(message.incarnation(), frame.incarnation)) {
    return Fail(Code::kInvalid, "the session-drained frame is no valid message");
  }
  frame.client_token = message.client_token();
  return frame;
}

Status DecodeEmpty(std::span<const std::byte> bytes) {
  wire::HealthRequest message;
  if (!Parse(message, bytes)) return Fail(Code::kInvalid, "the request is no valid message");
  return {};
}

std::vector<std::byte> EncodeRegisterReply(const service::RegisterOutcome& outcome, std::uint32_t max_reserve_blocks) {
  wire::RegisterReply message;
  message.set_instance_id(outcome.instance.value());
  message.set_namespace_ready(outcome.namespace_ready);
  if (outcome.namespace_ready) {
    std::string digest(outcome.namespace_digest.size(), '\0');
    std::memcpy(digest.data(), outcome.namespace_digest.data(), digest.size());
    message.set_namespace_digest(std::move(digest));
  }
  message.set_max_reserve_blocks(max_reserve_blocks);
  return Serialize(message);
}

std::vector<std::byte> EncodeHealth(const Health& health) {
  wire::HealthReply message;
  message.set_version(health.version);
  message.set_pid(health.pid);
  message.set_incarnation(IncarnationBytes(health.incarnation));
  message.set_uptime_seconds(health.uptime_seconds);
  for (const MetricSample& sample : health.samples) {
    wire::Sample& out = *message.add_samples();
    out.set_name(sample.name);
    out.set_value(sample.value);
    out.set_is_counter(sample.is_counter);
    out.set_help(sample.help);
    for (const auto& [key, value] : sample.labels) (*out.mutable_labels())[key] = value;
  }
  return Serialize(message);
}

std::vector<std::byte> EncodeEmptyReply() { return Serialize(wire::UnregisterReply()); }

std::vector<std::byte> EncodeError(Code code, std::string_view text) {
  wire::ErrorReply message;
  message.set_code(static_cast<std::uint32_t>(code));
  message.set_text(std::string(text));
  return Serialize(message);
}

std::vector<std::byte> EncodeHealthRequest() { return Serialize(wire::HealthRequest()); }

Result<Health> DecodeHealth(std::span<const std::byte> bytes) {
  wire::HealthReply message;
  Health health;
  if (!Parse(message, bytes) || !ToIncarnation(message.incarnation(), health.incarnation)) {
    return Fail(Code::kInvalid, "the Manager's health answer is no valid message");
  }
  health.version = message.version();
  health.pid = message.pid();
  health.uptime_seconds = message.uptime_seconds();
  for (const wire::Sample& sample : message.samples()) {
    MetricSample out{sample.name(), sample.help(), {}, sample.value(), sample.is_counter()};
    for (const auto& [key, value] : sample.labels()) out.labels.emplace_back(key, value);
    std::ranges::sort(out.labels);
    health.samples.push_back(std::move(out));
  }
  return health;
}

std::string HealthAsJson(const Health& health) {
  nlohmann::ordered_json json;
  json["version"] = health.version;
  json["pid"] = health.pid;
  json["incarnation"] = IncarnationHex(health.incarnation);
  json["uptime_seconds"] = health.uptime_seconds;
  json["samples"] = nlohmann::ordered_json::array();
  for (const MetricSample& sample : health.samples) {
    nlohmann::ordered_json labels = nlohmann::ordered_json::object();
    for (const auto& [key, value] : sample.labels) labels[key] = value;
    json["samples"].push_back({{"name", sample.name},
                               {"value", sample.value},
                               {"is_counter", sample.is_counter},
                               {"labels", std::move(labels)},
                               {"help", sample.help}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string HealthAsText(const Health& health) {
  std::string text = fmt::format("orbitkv-manager {} pid={} incarnation={} uptime={:.1f}s\n", health.version,
                                 health.pid, IncarnationHex(health.incarnation), health.uptime_seconds);
  for (const MetricSample& sample : health.samples) {
    std::string labels;
    for (const auto& [key, value] : sample.labels) {
      labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", key, value);
    }
    const std::string name = labels.empty() ? sample.name : sample.name + "{" + labels + "}";
    const bool whole = std::abs(sample.value) < 1e15 && sample.value == std::trunc(sample.value);
    text += whole ? fmt::format("  {:<56} {:.0f}\n", name, sample.value)
                  : fmt::format("  {:<56} {:g}\n", name, sample.value);
  }
  return text;
}

}  // namespace orbitkv::manager
