// What a CacheClient is told at its construction: where the Manager listens, which process of which engine this is, and
// the limits that keep an engine step from waiting.
// Owns: plain values. Threads: values. Blocks: no.
// Units: in the names. Errors: Validate names the first field that is wrong and what it must be.
// Invariant: every process of one engine gives the same instance, world_size, shard_count and computation_digest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::client {

enum class Role : std::uint8_t {
  kScheduler,  // asks, begins restores for all ranks, moves no bytes
  kWorker,     // one rank: publishes and restores its shard
  kBoth,       // its own scheduler and its only rank
};

struct ClientOptions {
  std::string socket_path;
  std::string instance;
  Role role = Role::kBoth;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t shard = 0;
  std::uint32_t shard_count = 1;
  state::Digest computation_digest{};
  state::Digest representation_digest{};  // of workers
  // Of a scheduler: the cache groups that it counts with; their pages are the workers' to say. The Manager refuses
  // whoever of the instance comes later with other rules. Empty: not compared.
  std::vector<state::GroupShape> expected_groups;
  std::string name;  // for logs; empty: "orbitkv-client"

  std::uint32_t copy_threads = 0;  // 0: two, or one on a single cpu
  std::vector<int> copy_cpus;      // pins the copy threads; empty: not pinned
  copy::Stores restore_stores = copy::Stores::kNonTemporal;
  bool read_only = false;      // maps the pool for reading; nothing can be published
  bool populate_pool = true;   // fault the pool in, in the background
  std::uint64_t spin_us = 20;  // before a wait for an answer sleeps

  std::uint64_t query_deadline_ms = 50;   // without an answer by then: no hit, and the Manager is suspect
  std::uint64_t call_deadline_ms = 1000;  // one command of a background job
  std::uint64_t load_deadline_ms = 2000;  // a restore whose plan has not come by then has failed
  std::uint64_t silent_load_ms = 250;     // a restore without a plan fails when the Manager was suspect for so long
  std::uint64_t save_max_age_ms = 1000;   // saves that wait longer for a lost Manager are dropped
  std::uint64_t connect_deadline_ms = 1000;
  std::uint64_t drain_patience_ms = 10'000;  // of an end, with copies that do not end; then their pages are lost
  std::uint64_t min_backoff_ms = 50;         // between two attempts to connect; doubles up to the maximum
  std::uint64_t max_backoff_ms = 1000;
  std::uint32_t max_queued_saves = 1024;  // publish jobs that have not finished
  std::uint32_t max_jobs = 8192;          // jobs whose completion has not been taken

  bool moves_bytes() const { return role != Role::kScheduler; }
  bool asks() const { return role != Role::kWorker; }
  Status Validate() const;
};

}  // namespace orbitkv::client
