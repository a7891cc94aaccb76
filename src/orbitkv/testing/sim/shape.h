// What one simulated host looks like: how much memory, which limits, which engines, how much goes wrong. All of it
// follows from the seed.
// Owns: plain values. Threads: values. Blocks: no. Units: bytes, nanoseconds, steps.
// Errors: none. Invariant: MakeShape gives the same shape for the same seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/policies.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/service/core_state.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/types.h"
#include "orbitkv/testing/sim/disk.h"
#include "orbitkv/wire/session_layout.h"

namespace orbitkv::sim {

inline constexpr std::uint64_t kMs = 1'000'000;
inline constexpr std::uint64_t kSecond = 1'000'000'000;
// Where virtual time begins. Far behind the real clock, which parts of the channel look at: nothing they see expires.
inline constexpr std::uint64_t kEpochNs = std::uint64_t{1} << 60U;

// One engine: ranks, whether its scheduler is a process of its own, how old its client is.
struct EngineShape {
  std::string name;
  std::uint32_t model = 0;  // what it computes, and which cache groups that takes
  std::uint32_t world = 1;
  std::uint32_t shards = 1;
  bool own_scheduler = false;
  std::uint16_t abi = wire::kAbiMax;  // that its processes speak

  std::uint32_t processes() const { return world + (own_scheduler ? 1 : 0); }
  bool IsScheduler(std::uint32_t process) const { return process == 0; }
  bool IsWorker(std::uint32_t process) const { return !own_scheduler || process > 0; }
  std::uint32_t RankOf(std::uint32_t process) const { return own_scheduler ? process - 1 : process; }
  std::uint32_t ShardOf(std::uint32_t process) const { return RankOf(process) % shards; }
  std::vector<state::GroupShape> groups() const;
  service::Registration RegistrationOf(std::uint32_t process) const;
};

struct Shape {
  pool::PoolConfig pool;
  std::uint32_t max_blocks = 0;
  cache::PolicyMaker policy = nullptr;
  service::Limits limits;
  wire::SessionGeometry geometry;
  std::vector<EngineShape> engines;
  std::uint64_t steps = 0;
  std::uint32_t families = 0;    // chains of block hashes that share nothing
  std::uint32_t longest = 0;     // blocks of a chain, most of the time
  std::uint32_t faults = 0;      // out of 1000 steps
  bool backed = false;           // blocks are saved behind the pool and loaded again
  std::uint32_t copy_turns = 1;  // of a process for each in which a copy goes on
  bool corrupting = false;       // bytes of the pool are overwritten now and then
  bool manager_crashes = false;
  std::optional<DiskShape> disk{};  // what is behind the pool is a store on a disk
  bool survives = false;            // a Manager finds the pool and the tables of the one before

  // What a Manager is made of; the same for each life but for its number.
  service::CoreStateConfig core(std::uint64_t life) const;

  // A block of the engine that keeps most of one, in all its groups and shards; a slot that is the largest.
  std::uint64_t largest_block_bytes() const;
  std::uint64_t largest_slot_bytes() const;
};

Shape MakeShape(std::uint64_t seed);

// The hashes of a prompt: a chain of the family up to where it branches off.
std::vector<state::BlockHash> MakeChain(std::uint64_t family, std::uint64_t branch, std::uint64_t branch_at,
                                        std::size_t length);

}  // namespace orbitkv::sim
