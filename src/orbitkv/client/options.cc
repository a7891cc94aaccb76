#include "orbitkv/client/options.h"

#include <algorithm>

#include "orbitkv/wire/commands.h"

namespace orbitkv::client {
namespace {

bool IsZero(const state::Digest& digest) {
  return std::ranges::all_of(digest, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Status ClientOptions::Validate() const {
  if (socket_path.empty()) return Fail(Code::kInvalid, "socket is empty; give the path of the Manager's socket");
  if (instance.empty()) return Fail(Code::kInvalid, "instance is empty; give the engine's id");
  if (instance.size() > 256) return Fail(Code::kInvalid, "instance is longer than 256 bytes", instance.size());
  if (world_size == 0 || world_size > wire::kMaxRanks) {
    return Fail(Code::kInvalid, "world_size must be 1 to 1024", world_size);
  }
  if (rank >= world_size) return Fail(Code::kInvalid, "rank must be below world_size", rank, world_size);
  if (shard_count == 0 || shard_count > world_size) {
    return Fail(Code::kInvalid, "shard_count must be 1 to world_size", shard_count, world_size);
  }
  if (shard >= shard_count) return Fail(Code::kInvalid, "shard must be below shard_count", shard, shard_count);
  if (role == Role::kBoth && world_size != 1) {
    return Fail(Code::kInvalid, "role both needs world_size 1; use scheduler and worker", world_size);
  }
  if (IsZero(computation_digest)) return Fail(Code::kInvalid, "computation_digest must be 32 bytes that are not zero");
  if (moves_bytes() && IsZero(representation_digest)) {
    return Fail(Code::kInvalid, "representation_digest must be 32 bytes that are not zero for roles worker and both");
  }
  if (moves_bytes() && !expected_groups.empty()) {
    return Fail(Code::kInvalid, "expected groups are a scheduler's; roles worker and both register theirs");
  }
  if (copy_threads > 64) return Fail(Code::kInvalid, "copy_threads must be at most 64", copy_threads);
  if (max_queued_saves == 0 || max_jobs == 0) return Fail(Code::kInvalid, "queue limits must be at least 1");
  if (query_deadline_ms == 0 || call_deadline_ms == 0 || load_deadline_ms == 0 || connect_deadline_ms == 0 ||
      min_backoff_ms == 0) {
    return Fail(Code::kInvalid, "deadlines and backoff must be at least 1 ms");
  }
  if (max_backoff_ms < min_backoff_ms) {
    return Fail(Code::kInvalid, "max_backoff_ms must be at least min_backoff_ms", max_backoff_ms, min_backoff_ms);
  }
  return {};
}

}  // namespace orbitkv::client
