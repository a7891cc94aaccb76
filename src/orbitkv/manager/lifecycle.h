// Lifecycle frames on their way between the bootstrap socket and the service: protobuf to plain structs and back.
// Owns: nothing. Threads: pure functions. Blocks: no.
// Errors: a frame that is no valid protobuf, or whose fields are out of range, is kInvalid; whoever receives it answers
//         with EncodeError and keeps the connection.
// Invariant: nothing of a frame is used before it has been decoded and checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/service/types.h"

namespace orbitkv::manager {

struct DrainedFrame {
  std::uint64_t client_token = 0;
  Incarnation incarnation;
};

struct Health {
  std::string version;
  std::int64_t pid = 0;
  Incarnation incarnation;
  double uptime_seconds = 0;
  std::vector<MetricSample> samples;
};

Result<service::Registration> DecodeRegister(std::span<const std::byte> bytes);
Result<DrainedFrame> DecodeDrained(std::span<const std::byte> bytes);
// An empty message: unregister and health requests carry no fields; unknown ones are ignored.
Status DecodeEmpty(std::span<const std::byte> bytes);

std::vector<std::byte> EncodeRegisterReply(const service::RegisterOutcome& outcome, std::uint32_t max_reserve_blocks);
std::vector<std::byte> EncodeHealth(const Health& health);
std::vector<std::byte> EncodeEmptyReply();
std::vector<std::byte> EncodeError(Code code, std::string_view text);

// For the side that asks: orbitkv status.
std::vector<std::byte> EncodeHealthRequest();
Result<Health> DecodeHealth(std::span<const std::byte> bytes);
std::string HealthAsJson(const Health& health);
std::string HealthAsText(const Health& health);

}  // namespace orbitkv::manager
