// How much a Manager is willing to hold for its engines: every bound of the service layer in one place.
// Owns: plain values. Threads: values. Blocks: no.
// Units: nanoseconds of the Manager's monotonic clock, bytes, counts as named.
// Errors: Validate names the first field that is out of range.
// Invariant: fixed for the life of a Service.
#pragma once

#include <algorithm>
#include <cstdint>

#include "orbitkv/base/result.h"

namespace orbitkv::service {

// Which blocks are kept behind the pool.
enum class SavePolicy : std::uint8_t {
  kOff,
  kAll,    // every block that an engine stores
  kReuse,  // those that are used again
};

struct Limits {
  std::uint64_t pool_bytes = 0;  // what the shares below are shares of

  std::uint32_t max_sessions = 256;
  std::uint32_t max_instances = 64;
  std::uint32_t max_namespaces = 256;  // with an engine or with blocks, which outlive engines
  std::uint32_t max_ranks = 1024;      // of one instance
  std::uint32_t max_shards = 64;       // of one instance

  std::uint32_t step_hashes = 512;  // of one session in one call, so that no session holds the dispatcher
  // Of a look-up that takes several calls anyway: short ones of other sessions wait for one such step, and the index is
  // seldom in the processor's caches for so many hashes.
  std::uint32_t long_step_hashes = 64;
  std::uint32_t operations_per_session = 128;
  std::uint32_t operations_total = 1024;
  std::uint64_t hashes_total = 8U << 20U;         // of running queries and remembered answers, 32 bytes each
  std::uint64_t lease_ns = 10'000'000'000;        // a found lease after its answer
  std::uint64_t remembered_ns = 60'000'000'000;   // the hashes of an answer, for a late begin
  std::uint64_t ticket_ns = 60'000'000'000;       // an operation, from its submit
  std::uint32_t tombstones = 1024;                // ended operations that are told why
  std::uint32_t warm_ups = 64;                    // that wait for their turn
  std::uint32_t load_percent = 25;                // of pool_bytes, being read from the backing source
  bool recompute = true;                          // do not load what an engine computes sooner
  std::uint32_t warm_up_percent = 10;             // of pool_bytes, of that for warm-ups
  std::uint32_t lease_percent_per_instance = 50;  // of pool_bytes, distinct bytes found or granted
  std::uint32_t lease_percent_per_session =
      100;                                   // of pool_bytes, distinct bytes found; counted when below the instance's
  std::uint32_t grants_per_instance = 4096;  // that still hold a pin
  std::uint32_t ended_grants_remembered = 16'384;  // per instance: told "gone", and their ids not taken again

  SavePolicy save_policy = SavePolicy::kOff;
  std::uint64_t save_bytes = 64U << 20U;         // being written behind the pool, and never more than save_percent
  std::uint32_t save_percent = 10;               // of pool_bytes, which cannot be evicted meanwhile
  std::uint32_t save_queue = 65'536;             // blocks that wait to be saved
  std::uint64_t save_sketch_blocks = 1U << 20U;  // kReuse: blocks that are told apart, two bytes each

  std::uint32_t reservations_per_session = 256;
  std::uint32_t reserved_percent_per_session = 25;      // of pool_bytes, slots being written
  std::uint64_t reservation_holds_ns = 10'000'000'000;  // the blocks that it continues
  std::uint32_t admissions_remembered = 65'536;         // per instance
  std::uint32_t verifications = 1024;                   // slots whose bytes are being checked again

  std::uint64_t lease_bytes_per_instance() const { return pool_bytes / 100 * lease_percent_per_instance; }
  std::uint64_t lease_bytes_per_session() const { return pool_bytes / 100 * lease_percent_per_session; }
  std::uint64_t load_bytes() const { return pool_bytes / 100 * load_percent; }
  std::uint64_t warm_up_bytes() const { return pool_bytes / 100 * warm_up_percent; }
  std::uint64_t save_bytes_in_flight() const { return std::min(save_bytes, pool_bytes / 100 * save_percent); }
  std::uint64_t reserved_bytes_per_session() const { return pool_bytes / 100 * reserved_percent_per_session; }

  Status Validate() const;
};

}  // namespace orbitkv::service
