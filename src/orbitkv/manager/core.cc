#include "orbitkv/manager/core.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "orbitkv/cache/policies.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint64_t kBytesPerDefaultSlot = 64U << 10U;
constexpr std::uint64_t kMinDefaultSlots = 1024;
// Enough that most settings share one layout of the tables; sessions of earlier lives need rows too.
constexpr std::uint32_t kLeastSessionRows = 512;
// Beside the slot's record, and of a block with its buckets: what pool and cache keep, rounded up.
constexpr std::uint64_t kTableBytesPerSlot = 96;
constexpr std::uint64_t kTableBytesPerBlock = 256;

// One exported number of a plain struct.
template <typename Struct, typename Field>
struct Figure {
  const char* name;
  const char* help;
  Field Struct::* field;
};

template <typename Struct>
using Figure64 = Figure<Struct, std::uint64_t>;

constexpr Figure64<service::Counters> kServiceCounters[] = {
    {"orbitkv_sessions_opened_total", "Sessions that were opened.", &service::Counters::sessions_opened},
    {"orbitkv_registrations_total", "Registrations taken.", &service::Counters::registrations},
    {"orbitkv_registrations_refused_total", "Registrations refused.", &service::Counters::registrations_refused},
    {"orbitkv_queries_total", "Look-ups.", &service::Counters::queries},
    {"orbitkv_queries_not_admitted_total", "Look-ups told to come back.", &service::Counters::queries_not_admitted},
    {"orbitkv_query_blocks_total", "Blocks asked for.", &service::Counters::query_blocks},
    {"orbitkv_query_blocks_found_total", "Blocks offered.", &service::Counters::query_blocks_found},
    {"orbitkv_query_blocks_behind_total", "Of those, that were loaded from behind the pool first.",
     &service::Counters::query_blocks_behind},
    {"orbitkv_discovered_blocks_total", "Blocks that discoveries found.", &service::Counters::discovered_blocks},
    {"orbitkv_discovered_blocks_behind_total", "Of those, behind the pool only.",
     &service::Counters::discovered_blocks_behind},
    {"orbitkv_recompute_chosen_total", "Look-ups whose engine computes sooner than what is behind the pool is loaded.",
     &service::Counters::recompute_chosen},
    {"orbitkv_query_blocks_over_budget_total", "Blocks found but not offered: lease budget.",
     &service::Counters::query_blocks_over_budget},
    {"orbitkv_tickets_total", "Look-ups that outlived their submit.", &service::Counters::tickets},
    {"orbitkv_tickets_late_total", "Of those, whose wait ended before their loads.", &service::Counters::tickets_late},
    {"orbitkv_tickets_cancelled_total", "Of those, cancelled.", &service::Counters::tickets_cancelled},
    {"orbitkv_tickets_timed_out_total", "Of those, never asked for.", &service::Counters::tickets_timed_out},
    {"orbitkv_tickets_revoked_total", "Of those, that lost what they had found for room.",
     &service::Counters::tickets_revoked},
    {"orbitkv_claims_total", "Preparations claimed.", &service::Counters::claims},
    {"orbitkv_claims_not_admitted_total", "Claims of what was not prepared any more.",
     &service::Counters::claims_not_admitted},
    {"orbitkv_warm_ups_total", "Warm-ups taken.", &service::Counters::warm_ups},
    {"orbitkv_warm_ups_skipped_total", "Warm-ups skipped: too many.", &service::Counters::warm_ups_skipped},
    {"orbitkv_warm_up_blocks_total", "Blocks whose load a warm-up began.", &service::Counters::warm_up_blocks},
    {"orbitkv_load_blocks_total", "Blocks whose load began.", &service::Counters::load_blocks},
    {"orbitkv_loads_ok_total", "Components loaded.", &service::Counters::loads_ok},
    {"orbitkv_loads_short_total", "Components that came short.", &service::Counters::loads_short},
    {"orbitkv_loads_failed_total", "Components not read.", &service::Counters::loads_failed},
    {"orbitkv_loads_mismatch_total", "Components read with other bytes than saved.",
     &service::Counters::loads_mismatch},
    {"orbitkv_loaded_bytes_total", "Bytes loaded.", &service::Counters::loaded_bytes},
    {"orbitkv_saves_ok_total", "Components saved behind the pool.", &service::Counters::saves_ok},
    {"orbitkv_saved_bytes_total", "Bytes saved behind the pool.", &service::Counters::saved_bytes},
    {"orbitkv_saves_already_there_total", "Components not saved: behind the pool already.",
     &service::Counters::saves_already_there},
    {"orbitkv_saves_no_room_total", "Components not saved: no room behind the pool.",
     &service::Counters::saves_no_room},
    {"orbitkv_saves_failed_total", "Components not saved: writing failed.", &service::Counters::saves_failed},
    {"orbitkv_saves_dropped_total", "Blocks not saved: too many in line.", &service::Counters::saves_dropped},
    {"orbitkv_saves_lost_total",
     "Components in the pool whose copy behind it was lost; saved again when they are used.",
     &service::Counters::saves_lost},
    {"orbitkv_leases_expired_total", "Found leases that expired.", &service::Counters::leases_expired},
    {"orbitkv_leases_revoked_total", "Found leases revoked for room.", &service::Counters::leases_revoked},
    {"orbitkv_grants_total", "Restores begun.", &service::Counters::grants},
    {"orbitkv_grants_late_total", "Restores begun on an expired lease.", &service::Counters::grants_late},
    {"orbitkv_grants_refused_total", "Restores refused.", &service::Counters::grants_refused},
    {"orbitkv_plans_total", "Copy plans handed out.", &service::Counters::plans},
    {"orbitkv_plans_not_yet_total", "Plans asked before their begin arrived.", &service::Counters::plans_not_yet},
    {"orbitkv_plans_gone_total", "Plans asked for an ended grant.", &service::Counters::plans_gone},
    {"orbitkv_plans_corrupt_total", "Plans that met a damaged record.", &service::Counters::plans_corrupt},
    {"orbitkv_restores_ok_total", "Restores of a rank that ended well.", &service::Counters::restores_ok},
    {"orbitkv_restores_mismatch_total", "Restores that met a wrong checksum.", &service::Counters::restores_mismatch},
    {"orbitkv_mismatches_stale_total", "Reported blocks whose slot holds something else by now.",
     &service::Counters::mismatches_stale},
    {"orbitkv_restores_failed_total", "Restores not copied.", &service::Counters::restores_failed},
    {"orbitkv_restored_blocks_total", "Blocks restored, per rank.", &service::Counters::restored_blocks},
    {"orbitkv_restored_bytes_total", "Bytes restored, per rank.", &service::Counters::restored_bytes},
    {"orbitkv_verified_equal_total", "Reported slots found right.", &service::Counters::verified_equal},
    {"orbitkv_scrubbed_right_total", "Slots of an earlier Manager that were hashed again and are right.",
     &service::Counters::scrubbed_right},
    {"orbitkv_scrubbed_wrong_total", "Of those, wrong and dropped.", &service::Counters::scrubbed_wrong},
    {"orbitkv_verified_different_total", "Reported slots found wrong and dropped.",
     &service::Counters::verified_different},
    {"orbitkv_blocks_reserved_total", "Blocks that got a slot to write.", &service::Counters::blocks_reserved},
    {"orbitkv_blocks_already_here_total", "Blocks not saved: here already.", &service::Counters::blocks_already_here},
    {"orbitkv_blocks_not_now_total", "Blocks not saved: no room.", &service::Counters::blocks_not_now},
    {"orbitkv_blocks_over_budget_total", "Of those, for the session's budget.", &service::Counters::blocks_over_budget},
    {"orbitkv_blocks_stored_total", "Blocks stored.", &service::Counters::blocks_stored},
    {"orbitkv_blocks_already_there_total", "Blocks whose other writer was first.",
     &service::Counters::blocks_already_there},
    {"orbitkv_blocks_lost_total", "Commits for slots no longer reserved.", &service::Counters::blocks_lost},
    {"orbitkv_blocks_aborted_total", "Reserved blocks given back.", &service::Counters::blocks_aborted},
    {"orbitkv_stored_bytes_total", "Bytes stored.", &service::Counters::bytes_stored},
};

constexpr Figure64<service::Gauges> kServiceGauges[] = {
    {"orbitkv_sessions", "Sessions that may hold something.", &service::Gauges::sessions},
    {"orbitkv_sessions_detached", "Of those, without a connection.", &service::Gauges::sessions_detached},
    {"orbitkv_instances", "Engines.", &service::Gauges::instances},
    {"orbitkv_namespaces", "Namespaces.", &service::Gauges::namespaces},
    {"orbitkv_queries_running", "Look-ups that take more than one turn.", &service::Gauges::running_queries},
    {"orbitkv_tickets", "Look-ups to be polled.", &service::Gauges::tickets},
    {"orbitkv_tickets_ready", "Of those, ready.", &service::Gauges::tickets_ready},
    {"orbitkv_tickets_in_line", "Of those, waiting for permits to load.", &service::Gauges::tickets_in_line},
    {"orbitkv_warm_ups", "Warm-ups that wait for their turn.", &service::Gauges::warm_ups},
    {"orbitkv_tombstones", "Ended look-ups that are remembered.", &service::Gauges::tombstones},
    {"orbitkv_loads", "Components being read.", &service::Gauges::loads},
    {"orbitkv_load_bytes", "Bytes of slots being read into.", &service::Gauges::load_bytes},
    {"orbitkv_load_bytes_per_second", "How fast they come, as measured last.", &service::Gauges::load_bytes_per_second},
    {"orbitkv_saves_in_line", "Blocks that wait to be saved.", &service::Gauges::saves_in_line},
    {"orbitkv_saves", "Components being saved.", &service::Gauges::saves},
    {"orbitkv_save_bytes", "Bytes of slots being saved.", &service::Gauges::save_bytes},
    {"orbitkv_leases", "Found leases.", &service::Gauges::leases},
    {"orbitkv_leases_remembered", "Expired leases whose hashes are kept.", &service::Gauges::leases_remembered},
    {"orbitkv_hashes_held", "Hashes kept for look-ups and leases.", &service::Gauges::hashes},
    {"orbitkv_grants", "Grants that still hold a pin.", &service::Gauges::grants},
    {"orbitkv_armed_ranks", "Ranks that may be copying.", &service::Gauges::armed_ranks},
    {"orbitkv_leased_bytes", "Distinct bytes found or granted.", &service::Gauges::leased_bytes},
    {"orbitkv_reserves_running", "Reserves that take more than one turn.", &service::Gauges::running_reserves},
    {"orbitkv_reservations", "Reservations.", &service::Gauges::reservations},
    {"orbitkv_reserved_slots", "Slots being written.", &service::Gauges::reserved_slots},
    {"orbitkv_reserved_slot_bytes", "Bytes of slots being written.", &service::Gauges::reserved_bytes},
    {"orbitkv_admissions_remembered", "Admission decisions kept.", &service::Gauges::admissions},
    {"orbitkv_verifications", "Slots being hashed again.", &service::Gauges::verifications},
    {"orbitkv_earlier_sessions", "Sessions of earlier Managers that may still touch slots.",
     &service::Gauges::earlier_sessions},
    {"orbitkv_held_slots", "Slots kept for those.", &service::Gauges::held_slots},
};

constexpr Figure64<cache::CacheCounters> kCacheCounters[] = {
    {"orbitkv_cache_hits_total", "Blocks that look-ups found.", &cache::CacheCounters::hits},
    {"orbitkv_cache_misses_total", "Look-ups that ended at an absent block.", &cache::CacheCounters::misses},
    {"orbitkv_cache_inserts_total", "Blocks that became complete.", &cache::CacheCounters::inserts},
    {"orbitkv_cache_commits_total", "Components stored.", &cache::CacheCounters::commits},
    {"orbitkv_cache_evictions_total", "Blocks evicted.", &cache::CacheCounters::evictions},
    {"orbitkv_cache_evicted_unsaved_total", "Of those, that waited to be saved.",
     &cache::CacheCounters::evicted_unsaved},
    {"orbitkv_cache_reclaimed_slabs_total", "Times room of other slot sizes was taken.",
     &cache::CacheCounters::reclaimed_slabs},
    {"orbitkv_cache_incomplete_total", "Blocks that lacked a shard for too long.", &cache::CacheCounters::incomplete},
    {"orbitkv_cache_dropped_corrupt_total", "Components dropped for wrong bytes or records.",
     &cache::CacheCounters::dropped_corrupt},
    {"orbitkv_cache_dropped_total", "Components dropped.", &cache::CacheCounters::dropped},
};

constexpr Figure64<cache::CacheGauges> kCacheGauges[] = {
    {"orbitkv_blocks_resident", "Complete blocks.", &cache::CacheGauges::complete},
    {"orbitkv_index_entries", "Entries of the index in use.", &cache::CacheGauges::entries},
    {"orbitkv_found_pins", "Pins of leases.", &cache::CacheGauges::found_pins},
    {"orbitkv_granted_pins", "Pins of grants.", &cache::CacheGauges::granted_pins},
    {"orbitkv_suspect_components", "Components being verified.", &cache::CacheGauges::suspect},
    {"orbitkv_draining_slots", "Dropped slots that a reader still holds.", &cache::CacheGauges::draining},
};

constexpr Figure64<pool::PoolGauges> kPoolBytes[] = {
    {"orbitkv_pool_bytes", "Size of the pool, a hard limit.", &pool::PoolGauges::pool_bytes},
    {"orbitkv_pool_reserved_bytes", "Memory reserved for the pool so far.", &pool::PoolGauges::reserved_bytes},
    {"orbitkv_pool_slab_bytes", "Bytes in slabs.", &pool::PoolGauges::slab_bytes},
    {"orbitkv_pool_used_bytes", "Bytes in slots that are not free.", &pool::PoolGauges::used_bytes},
};

constexpr Figure<pool::PoolGauges, std::uint32_t> kPoolSlots[] = {
    {"orbitkv_pool_slots_free", "Free slots of existing slabs.", &pool::PoolGauges::slots_free},
    {"orbitkv_pool_slots_writing", "Slots being written.", &pool::PoolGauges::slots_writing},
    {"orbitkv_pool_slots_sealed", "Slots that hold a component.", &pool::PoolGauges::slots_sealed},
    {"orbitkv_pool_slots_retired", "Slots taken out of use.", &pool::PoolGauges::slots_retired},
};

template <typename Figures, typename Struct>
void EmitGauges(MetricSink& sink, const Figures& figures, const Struct& values) {
  for (const auto& figure : figures) {
    sink.Gauge(figure.name, figure.help, static_cast<double>(values.*(figure.field)));
  }
}

template <typename Figures, typename Struct>
void EmitCounters(MetricSink& sink, const Figures& figures, const Struct& values) {
  for (const auto& figure : figures) {
    sink.Counter(figure.name, figure.help, static_cast<double>(values.*(figure.field)));
  }
}

void EmitLimits(MetricSink& sink, const service::Limits& limits) {
  sink.Gauge("orbitkv_limit_sessions", "Most sessions.", limits.max_sessions);
  sink.Gauge("orbitkv_limit_leased_bytes_per_instance", "Most distinct bytes leased to one engine.",
             static_cast<double>(limits.lease_bytes_per_instance()));
  sink.Gauge("orbitkv_limit_reserved_bytes_per_session", "Most bytes reserved by one session.",
             static_cast<double>(limits.reserved_bytes_per_session()));
  sink.Gauge("orbitkv_limit_load_bytes", "Most bytes being read at once.", static_cast<double>(limits.load_bytes()));
  sink.Gauge("orbitkv_limit_save_bytes", "Most bytes being saved at once.",
             static_cast<double>(limits.save_bytes_in_flight()));
  sink.Gauge("orbitkv_limit_operations", "Most look-ups and kept answers.", limits.operations_total);
}

void EmitInstances(MetricSink& sink, const service::Service& service) {
  for (const service::InstanceStatus& instance : service.instances()) {
    const MetricSink::Labels labels = {{"instance", instance.name}};
    sink.Counter("orbitkv_instance_lookups_total", "Logical look-ups that are over.",
                 static_cast<double>(instance.lookups), labels);
    sink.Counter("orbitkv_instance_lookup_blocks_total", "Blocks that they asked for.",
                 static_cast<double>(instance.lookup_blocks), labels);
    sink.Counter("orbitkv_instance_hit_blocks_total", "Blocks that restores took.",
                 static_cast<double>(instance.hit_blocks), labels);
    sink.Gauge("orbitkv_instance_unbounded_hit_rate",
               "Share of them that a cache without bounds would have, estimated.", instance.unbounded_hit_rate, labels);
  }
}

void EmitSessions(MetricSink& sink, const service::Service& service) {
  for (const service::SessionStatus& session : service.sessions()) {
    const MetricSink::Labels labels = {{"session", fmt::format("{}", session.id.value())}, {"name", session.name}};
    sink.Gauge("orbitkv_session_armed_ranks", "Ranks of the session that may be copying.",
               static_cast<double>(session.armed_ranks), labels);
    sink.Gauge("orbitkv_session_reserved_bytes", "Bytes that the session is writing.",
               static_cast<double>(session.reserved_bytes), labels);
    sink.Counter("orbitkv_session_false_alarms_total", "Mismatches it reported on blocks that were right.",
                 static_cast<double>(session.false_alarms), labels);
  }
}

service::SavePolicy SavePolicyOf(WritePolicy policy) {
  switch (policy) {
    case WritePolicy::kOff: break;
    case WritePolicy::kAll: return service::SavePolicy::kAll;
    case WritePolicy::kReuse: return service::SavePolicy::kReuse;
  }
  return service::SavePolicy::kOff;
}

void EmitEarlier(MetricSink& sink, const service::Service& service) {
  for (const service::EarlierSessionStatus& session : service.earlier_sessions()) {
    sink.Gauge("orbitkv_earlier_session_held_bytes", "Bytes kept for one session of an earlier Manager.",
               static_cast<double>(session.bytes),
               {{"row", fmt::format("{}", session.row)}, {"pid", fmt::format("{}", session.pid)}});
  }
}

struct RecoveryFigure {
  const char* kind;
  std::uint64_t service::RecoveryReport::* field;
};
constexpr RecoveryFigure kRecoveryFigures[] = {
    {"adopted", &service::RecoveryReport::adopted},     {"unfinished", &service::RecoveryReport::unfinished},
    {"damaged", &service::RecoveryReport::damaged},     {"misplaced", &service::RecoveryReport::misplaced},
    {"discarded", &service::RecoveryReport::discarded}, {"held", &service::RecoveryReport::held_slots},
};

void EmitRecovery(MetricSink& sink, const service::RecoveryReport& report) {
  for (const RecoveryFigure& figure : kRecoveryFigures) {
    sink.Gauge("orbitkv_recovered_slots", "Slots that the start found in the tables, by what became of them.",
               static_cast<double>(report.*(figure.field)), {{"result", figure.kind}});
  }
  sink.Gauge("orbitkv_recovered_bytes", "Bytes of blocks that the start took over.",
             static_cast<double>(report.adopted_bytes));
}

std::uint32_t SlotsFor(const Config& config) {
  if (config.max_slots != 0) return config.max_slots;
  const std::uint64_t wanted = std::max(config.pool_bytes / kBytesPerDefaultSlot, kMinDefaultSlots);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, 1U << 28U));
}

std::uint32_t BlocksFor(const Config& config) { return config.max_blocks != 0 ? config.max_blocks : SlotsFor(config); }

service::CoreStateConfig StateConfig(const Config& config, std::uint64_t seed) {
  service::CoreStateConfig state;
  state.pool.pool_bytes = config.pool_bytes;
  state.pool.max_slots = SlotsFor(config);
  state.session_rows = std::max(kLeastSessionRows, 4 * config.max_sessions);

  service::Limits& limits = state.limits;
  limits.pool_bytes = config.pool_bytes;
  limits.max_sessions = config.max_sessions;
  limits.lease_ns = std::uint64_t{config.lease_ms} * 1'000'000;
  limits.remembered_ns = std::max(limits.remembered_ns, limits.lease_ns);
  limits.lease_percent_per_instance = config.lease_budget_percent;
  limits.lease_percent_per_session = config.session_lease_budget_percent;
  limits.load_percent = config.load_budget_percent;
  limits.warm_up_percent = std::min(limits.warm_up_percent, limits.load_percent);
  limits.reserved_percent_per_session = config.publish_budget_percent;
  limits.recompute = config.recompute;
  limits.save_policy = SavePolicyOf(config.ssd_write_policy);

  state.cache.max_blocks = BlocksFor(config);
  state.cache.max_namespaces = std::max(state.cache.max_namespaces, limits.max_namespaces);
  state.cache.hash_seed = seed;
  state.policy = cache::FindPolicy(config.eviction_policy);
  return state;
}

}  // namespace

Core::~Core() = default;

std::uint64_t Core::TableBytes(const Config& config) {
  return wire::TablesLayout(Shape(config)).total_bytes + SlotsFor(config) * kTableBytesPerSlot +
         BlocksFor(config) * kTableBytesPerBlock;
}

wire::TablesShape Core::Shape(const Config& config) { return StateConfig(config, 0).shape(); }

Result<std::unique_ptr<Core>> Core::Create(const Config& config, std::uint64_t seed, const CoreMemory& memory) {
  auto core = std::unique_ptr<Core>(new Core);
  core->eviction_policy_ = config.eviction_policy;
  const service::CoreStateConfig state_config = StateConfig(config, seed);
  ORBITKV_TRY(state_config.pool.Validate());
  ORBITKV_TRY(state_config.limits.Validate());
  std::span<std::byte> tables = memory.tables;
  if (tables.empty()) {
    ORBITKV_ASSIGN_OR_RETURN(core->memory_,
                             os::Mapping::Anonymous(wire::TablesLayout(state_config.shape()).total_bytes));
    tables = core->memory_.bytes();
  }
  core->table_ = std::make_unique<wire::SpanTable>(tables);
  if (core->memory_.valid()) {
    ORBITKV_TRY(wire::StoreTablesHeader(*core->table_, {.shape = state_config.shape()}));
  }
  const auto alive = [&](std::uint32_t row, const pool::SessionOwner& owner) {
    return memory.alive && memory.alive(row, owner);
  };
  ORBITKV_ASSIGN_OR_RETURN(core->state_, service::CoreState::Begin(*core->table_, state_config, memory.reserved_bytes,
                                                                   alive, memory.now_ns));
  return core;
}

void Core::AddFigures(Metrics& metrics) const {
  metrics.AddSource([this](MetricSink& sink) {
    EmitCounters(sink, kServiceCounters, state_->service().counters());
    EmitGauges(sink, kServiceGauges, state_->service().gauges());
    EmitLimits(sink, state_->service().limits());
    EmitCounters(sink, kCacheCounters, state_->cache().counters());
    EmitGauges(sink, kCacheGauges, state_->cache().gauges());
    sink.Gauge("orbitkv_eviction_policy", "1 for the policy that is in use.", 1, {{"policy", eviction_policy_}});
    EmitGauges(sink, kPoolBytes, state_->pool().gauges());
    EmitGauges(sink, kPoolSlots, state_->pool().gauges());
    for (const pool::ClassGauges& one : state_->pool().class_gauges()) {
      const MetricSink::Labels labels = {{"slot_bytes", fmt::format("{}", one.slot_bytes)}};
      sink.Gauge("orbitkv_pool_class_slots", "Slots of one size.", one.slots, labels);
      sink.Gauge("orbitkv_pool_class_used", "Slots of one size in use.", one.used, labels);
    }
    EmitInstances(sink, state_->service());
    EmitSessions(sink, state_->service());
    EmitEarlier(sink, state_->service());
    EmitRecovery(sink, recovery());
  });
}

}  // namespace orbitkv::manager
