#include "orbitkv/testing/sim/shape.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "orbitkv/copy/pages.h"

namespace orbitkv::sim {
namespace {

constexpr std::uint64_t kUnitBytes = 4096;

state::Digest DigestOf(std::uint8_t kind, std::uint32_t model) {
  state::Digest digest;
  digest.fill(std::byte{kind});
  digest[0] = static_cast<std::byte>(model + 1);
  return digest;
}

using state::GroupKind;

// Blocks that are stored for every prompt, by the size of their pages.
state::GroupShape Full(std::uint32_t block_tokens, std::uint32_t pages, std::uint64_t page_bytes) {
  return {.block_tokens = block_tokens, .page_count = pages, .page_bytes = page_bytes};
}

state::GroupShape Local(GroupKind kind, std::uint32_t block_tokens, std::uint32_t span_tokens, std::uint32_t pages,
                        std::uint64_t page_bytes) {
  return {.block_tokens = block_tokens,
          .page_count = pages,
          .page_bytes = page_bytes,
          .kind = kind,
          .span_tokens = span_tokens};
}

}  // namespace

// Models differ in what they compute, in their cache groups and in the size of their pages. All are hashed every 16
// tokens.
std::vector<state::GroupShape> EngineShape::groups() const {
  switch (model) {
    case 2: return {Full(16, 2, 500)};
    case 3: return {Full(16, 2, 96), Local(GroupKind::kSlidingWindow, 32, 72, 1, 200)};
    case 4: return {Full(16, 1, 300), Local(GroupKind::kRecurrent, 48, 0, 1, 700)};
    case 5:
      return {Full(16, 2, 96), Local(GroupKind::kSlidingWindow, 16, 40, 2, 120),
              Local(GroupKind::kRecurrent, 32, 0, 1, 300)};
    case 6: return {Local(GroupKind::kRecurrent, 16, 0, 1, 300)};
    case 7: return {Full(32, 1, 200), Local(GroupKind::kChunkedLocal, 16, 64, 1, 160)};
    default: return {Full(16, 2, 96)};
  }
}

service::Registration EngineShape::RegistrationOf(std::uint32_t process) const {
  service::Registration registration;
  registration.instance = name;
  registration.role = service::Role::kScheduler;
  registration.world_size = world;
  registration.shard_count = shards;
  registration.computation = DigestOf(1, model);
  registration.name = fmt::format("{}/{}", name, process);
  if (!IsWorker(process)) {
    if (groups().size() > 1) registration.groups = groups();  // the rules that it expects
    return registration;
  }
  registration.role = IsScheduler(process) ? service::Role::kBoth : service::Role::kWorker;
  registration.rank = Rank(RankOf(process));
  registration.shard = ShardOf(process);
  registration.representation = DigestOf(2, model);
  registration.groups = groups();
  return registration;
}

Shape MakeShape(std::uint64_t seed) {
  Prng prng(seed * 0x2545f4914f6cdd1dULL + 11);
  Shape shape;
  shape.pool.unit_bytes = kUnitBytes;
  shape.pool.pool_bytes = kUnitBytes * (6 + prng.Below(24));
  shape.pool.max_slots = 512;
  shape.max_blocks = static_cast<std::uint32_t>(prng.Below(4) == 0 ? 24 + prng.Below(40) : 512);
  shape.geometry = {.ring_entries = 32, .slot_count = 4, .slot_bytes = 4096};
  service::Limits& limits = shape.limits;
  limits.pool_bytes = shape.pool.pool_bytes;
  limits.max_sessions = 28;
  limits.max_namespaces = 16;
  limits.step_hashes = static_cast<std::uint32_t>(4 + prng.Below(12));
  limits.operations_per_session = static_cast<std::uint32_t>(3 + prng.Below(8));
  limits.operations_total = 24;
  limits.grants_per_instance = static_cast<std::uint32_t>(2 + prng.Below(8));
  limits.reservations_per_session = static_cast<std::uint32_t>(1 + prng.Below(4));
  limits.verifications = static_cast<std::uint32_t>(1 + prng.Below(4));
  limits.lease_percent_per_instance = static_cast<std::uint32_t>(10 + prng.Below(60));
  limits.lease_percent_per_session = static_cast<std::uint32_t>(
      prng.Below(2) == 0 ? limits.lease_percent_per_instance : 5 + prng.Below(limits.lease_percent_per_instance - 4));
  limits.reserved_percent_per_session = static_cast<std::uint32_t>(10 + prng.Below(60));

  const std::vector<EngineShape> kinds = {
      {.name = "single", .model = 0, .world = 1, .shards = 1, .own_scheduler = false},
      {.name = "twin", .model = 0, .world = 1, .shards = 1, .own_scheduler = true, .abi = wire::kAbiMin},
      {.name = "sharded", .model = 0, .world = 2, .shards = 2, .own_scheduler = true},
      {.name = "replicas", .model = 1, .world = 2, .shards = 1, .own_scheduler = false},
      {.name = "large", .model = 2, .world = 1, .shards = 1, .own_scheduler = false},
      {.name = "hybrid", .model = 3, .world = 1, .shards = 1, .own_scheduler = true},
      {.name = "old", .model = 3, .world = 1, .shards = 1, .own_scheduler = false, .abi = wire::kAbiMin},
      {.name = "mixed", .model = 5, .world = 2, .shards = 2, .own_scheduler = false},
      {.name = "stateful", .model = 4, .world = 2, .shards = 1, .own_scheduler = true},
      {.name = "states", .model = 6, .world = 1, .shards = 1, .own_scheduler = true},
      {.name = "chunked", .model = 7, .world = 2, .shards = 2, .own_scheduler = true},
  };
  // Two or three different ones, in turn order from a random start.
  const std::uint64_t first = prng.Below(kinds.size());
  const std::uint64_t count = 2 + prng.Below(2);
  for (std::uint64_t i = 0; i < count; ++i) shape.engines.push_back(kinds[(first + i) % kinds.size()]);
  shape.steps = 3000 + prng.Below(6000);
  shape.families = static_cast<std::uint32_t>(1 + prng.Below(4));
  shape.longest = static_cast<std::uint32_t>(4 + prng.Below(16));
  shape.faults = static_cast<std::uint32_t>(prng.Below(4) == 0 ? 0 : 1 + prng.Below(12));
  shape.backed = prng.Below(3) != 0;
  limits.load_percent = static_cast<std::uint32_t>(5 + prng.Below(40));
  limits.warm_up_percent = static_cast<std::uint32_t>(3 + prng.Below(limits.load_percent - 2));
  limits.warm_ups = static_cast<std::uint32_t>(1 + prng.Below(4));
  limits.tombstones = 1024;
  constexpr service::SavePolicy kPolicies[] = {service::SavePolicy::kOff, service::SavePolicy::kAll,
                                               service::SavePolicy::kReuse};
  limits.save_policy = shape.backed ? kPolicies[prng.Below(std::size(kPolicies))] : service::SavePolicy::kOff;
  if (limits.save_policy != service::SavePolicy::kOff && prng.Below(2) == 0) {
    constexpr DiskFaults kFaults[] = {DiskFaults::kNone, DiskFaults::kFailing, DiskFaults::kLying};
    shape.disk = DiskShape{.segment_bytes = 16 * 1024 * (1 + prng.Below(2)),
                           .segments = static_cast<std::uint32_t>(4 + prng.Below(4)),
                           .faults = kFaults[prng.Below(std::size(kFaults))]};
  }
  limits.save_percent = static_cast<std::uint32_t>(3 + prng.Below(20));
  limits.save_queue = static_cast<std::uint32_t>(4 + prng.Below(60));
  limits.save_sketch_blocks = 256;
  shape.corrupting = prng.Below(3) == 0;
  if (shape.disk) shape.disk->exact = !shape.corrupting && shape.disk->faults != DiskFaults::kLying;
  shape.copy_turns = prng.Below(3) == 0 ? 12 : 1;
  shape.manager_crashes = prng.Below(2) == 0;
  shape.survives = prng.Below(2) == 0;
  shape.policy = cache::Policies()[prng.Below(cache::Policies().size())].make;
  return shape;
}

service::CoreStateConfig Shape::core(std::uint64_t life) const {
  service::CoreStateConfig config;
  config.pool = pool;
  config.policy = policy;
  config.cache.max_blocks = max_blocks;
  config.cache.max_namespaces = limits.max_namespaces;
  config.cache.hash_seed = life * 0x9e3779b97f4a7c15ULL;
  config.cache.max_revokes = 4;
  config.limits = limits;
  config.session_rows = 64;
  config.held_percent = 100;  // all that a process may be touching is held
  return config;
}

std::uint64_t Shape::largest_block_bytes() const {
  std::uint64_t most = 0;
  for (const EngineShape& engine : engines) {
    std::uint64_t bytes = 0;
    for (const state::GroupShape& group : engine.groups()) {
      bytes += pool::Pool::SlotBytes(copy::SlotBytes(group.page_count, group.page_bytes)) * engine.shards;
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::uint64_t Shape::largest_slot_bytes() const {
  std::uint64_t most = 0;
  for (const EngineShape& engine : engines) {
    for (const state::GroupShape& group : engine.groups()) {
      most = std::max(most, pool::Pool::SlotBytes(copy::SlotBytes(group.page_count, group.page_bytes)));
    }
  }
  return most;
}

std::vector<state::BlockHash> MakeChain(std::uint64_t family, std::uint64_t branch, std::uint64_t branch_at,
                                        std::size_t length) {
  std::vector<state::BlockHash> hashes(length);
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint64_t line = i < branch_at ? 0 : branch * 64 + branch_at;
    const std::uint64_t words[3] = {
        (family * 0x9e3779b97f4a7c15ULL + line * 0xbf58476d1ce4e5b9ULL + i) * 0x94d049bb133111ebULL,
        family << 32U | line, i};
    std::memcpy(hashes[i].bytes.data(), words, sizeof(words));
  }
  return hashes;
}

}  // namespace orbitkv::sim
