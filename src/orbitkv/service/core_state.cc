#include "orbitkv/service/core_state.h"

#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/namespace_table.h"

namespace orbitkv::service {
namespace {

wire::TableWindow WindowOf(wire::TableMemory& tables, const wire::TablesSection& section) {
  return {tables, section.offset, section.bytes};
}

}  // namespace

wire::TablesShape CoreStateConfig::shape() const {
  return {.pool_bytes = pool.pool_bytes,
          .unit_bytes = pool.unit_bytes,
          .max_slots = pool.max_slots,
          .namespace_rows = limits.max_namespaces,
          .session_rows = session_rows};
}

CoreState::CoreState(wire::TableMemory& tables, const CoreStateConfig& config)
    : tables_(tables),
      slot_table_(WindowOf(tables, wire::TablesLayout(config.shape()).slots)),
      namespace_table_(WindowOf(tables, wire::TablesLayout(config.shape()).namespaces)),
      session_table_(WindowOf(tables, wire::TablesLayout(config.shape()).sessions)),
      lists_(session_table_, config.session_rows, config.pool.max_slots) {}

Result<std::unique_ptr<CoreState>> CoreState::Begin(wire::TableMemory& tables, const CoreStateConfig& config,
                                                    std::uint64_t reserved_bytes, const Alive& alive,
                                                    std::uint64_t now_ns) {
  ORBITKV_TRY(config.pool.Validate());
  ORBITKV_TRY(config.limits.Validate());
  ORBITKV_ASSIGN_OR_RETURN(const wire::TablesHeader header, wire::LoadTablesHeader(tables.bytes()));
  ORBITKV_TRY(wire::CheckTables(header, config.shape()));
  if (tables.bytes().size() < wire::TablesLayout(config.shape()).total_bytes) {
    return Fail(Code::kCorrupt, "the tables are shorter than their header says", tables.bytes().size());
  }
  std::unique_ptr<CoreState> state(new CoreState(tables, config));
  ORBITKV_ASSIGN_OR_RETURN(state->report_.life, wire::BeginLife(tables));
  CoreStateConfig own = config;
  own.pool.first_generation = wire::FirstGeneration(state->report_.life);
  ORBITKV_TRY(state->Recover(own, reserved_bytes, alive, now_ns));
  return state;
}

Status CoreState::Recover(const CoreStateConfig& config, std::uint64_t reserved_bytes, const Alive& alive,
                          std::uint64_t now_ns) {
  std::vector<pool::SessionLists::Earlier> living;
  for (pool::SessionLists::Earlier& session : lists_.Load()) {
    if (alive(session.row, session.owner)) {
      living.push_back(std::move(session));
    } else {
      lists_.Close(session.row);
      ++report_.sessions_ended;
    }
  }
  report_.sessions_alive = living.size();
  const std::vector<bool> held = pool::SlotsToHold(living, slot_table_.bytes(), config.pool.max_slots,
                                                   config.pool.pool_bytes / 100 * config.held_percent);
  ORBITKV_ASSIGN_OR_RETURN(pool::Recovered recovered,
                           pool::Pool::Recover(config.pool, slot_table_, reserved_bytes, held));
  pool_ = std::move(recovered.pool);
  report_.unfinished = recovered.unfinished;
  report_.damaged = recovered.damaged;
  report_.misplaced = recovered.misplaced;
  ORBITKV_ASSIGN_OR_RETURN(cache_, cache::BlockCache::Create(config.cache, *pool_, config.policy));
  service_ = std::make_unique<Service>(config.limits, *cache_);
  service_->SetTables(&namespace_table_, &lists_);
  AdoptNamespaces();
  const cache::AdoptOutcome outcome = cache_->Adopt(std::move(recovered.slots), now_ns);
  report_.adopted = outcome.adopted;
  report_.adopted_bytes = outcome.adopted_bytes;
  report_.discarded = outcome.discarded;
  report_.held_slots = outcome.held.size();
  service_->AdoptSessions(std::move(living), outcome.held, now_ns);
  if (outcome.adopted > 0) service_->BeginScrub(config.pool.first_generation);
  return {};
}

Status CoreState::AddReserved(std::uint64_t bytes) {
  ORBITKV_TRY(pool_->AddReserved(bytes));
  return wire::StoreReservedBytes(tables_, pool_->gauges().reserved_bytes);
}

void CoreState::AdoptNamespaces() {
  const auto rows = static_cast<std::uint32_t>(namespace_table_.bytes().size() / wire::kNamespaceRecordBytes);
  for (std::uint32_t row = 1; row <= rows; ++row) {
    const auto record = wire::LoadNamespace(namespace_table_.bytes(), NamespaceRow(row));
    if (record && !*record) continue;
    const bool taken = record && service_->AdoptNamespace(NamespaceRow(row), **record).has_value();
    if (!taken) ORBITKV_CHECK(wire::ClearNamespace(namespace_table_, NamespaceRow(row)));
    ++(taken ? report_.namespaces : report_.damaged_namespaces);
  }
}

}  // namespace orbitkv::service
