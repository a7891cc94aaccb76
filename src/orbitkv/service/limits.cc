#include "orbitkv/service/limits.h"

namespace orbitkv::service {

Status Limits::Validate() const {
  if (pool_bytes == 0) return Fail(Code::kInvalid, "the pool has no bytes");
  if (max_sessions == 0) return Fail(Code::kInvalid, "max_sessions is 0");
  if (max_instances == 0) return Fail(Code::kInvalid, "max_instances is 0");
  if (max_namespaces == 0) return Fail(Code::kInvalid, "max_namespaces is 0");
  if (max_ranks == 0) return Fail(Code::kInvalid, "max_ranks is 0");
  // The shards that asked about a block are bits of one word.
  if (max_shards == 0 || max_shards > 64) return Fail(Code::kInvalid, "max_shards is not in 1 to 64", max_shards);
  if (step_hashes == 0) return Fail(Code::kInvalid, "step_hashes is 0");
  if (long_step_hashes == 0) return Fail(Code::kInvalid, "long_step_hashes is 0");
  if (operations_per_session == 0 || operations_per_session > operations_total) {
    return Fail(Code::kInvalid, "operations_per_session is not in 1 to operations_total", operations_per_session,
                operations_total);
  }
  if (remembered_ns < lease_ns) {
    return Fail(Code::kInvalid, "hashes are remembered for less than a lease lives", remembered_ns, lease_ns);
  }
  if (lease_percent_per_instance == 0 || lease_percent_per_instance > 100) {
    return Fail(Code::kInvalid, "lease_percent_per_instance is not in 1 to 100", lease_percent_per_instance);
  }
  if (lease_percent_per_session == 0 || lease_percent_per_session > 100) {
    return Fail(Code::kInvalid, "lease_percent_per_session is not in 1 to 100", lease_percent_per_session);
  }
  if (ticket_ns == 0) return Fail(Code::kInvalid, "ticket_ns is 0");
  if (load_percent == 0 || load_percent > 100) {
    return Fail(Code::kInvalid, "load_percent is not in 1 to 100", load_percent);
  }
  if (warm_up_percent > load_percent) {
    return Fail(Code::kInvalid, "warm_up_percent is above load_percent", warm_up_percent, load_percent);
  }
  if (save_bytes == 0) return Fail(Code::kInvalid, "save_bytes is 0");
  if (save_percent == 0 || save_percent > 100) {
    return Fail(Code::kInvalid, "save_percent is not in 1 to 100", save_percent);
  }
  if (save_queue == 0) return Fail(Code::kInvalid, "save_queue is 0");
  if (save_sketch_blocks == 0) return Fail(Code::kInvalid, "save_sketch_blocks is 0");
  if (reserved_percent_per_session == 0 || reserved_percent_per_session > 100) {
    return Fail(Code::kInvalid, "reserved_percent_per_session is not in 1 to 100", reserved_percent_per_session);
  }
  if (reservations_per_session == 0) return Fail(Code::kInvalid, "reservations_per_session is 0");
  if (verifications == 0) return Fail(Code::kInvalid, "verifications is 0");
  return {};
}

}  // namespace orbitkv::service
