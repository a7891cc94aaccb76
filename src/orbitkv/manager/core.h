// The deciding half of a Manager in one object: tables, pool, block cache and service, sized from the settings. It goes
// on from what the tables hold.
//
// Owns: all but the tables' memory, unless it makes that itself. Not the pool's bytes: nobody here touches those.
// Threads: one (the dispatcher) once it runs; Create by the owner before. Blocks: no.
// Errors: Create kInvalid when settings do not fit together, kExhausted when the tables find no memory; kRefused and
//         kCorrupt as CoreState.
// Invariant: tables are sized at Create and never grow.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/service/core_state.h"
#include "orbitkv/service/service.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::manager {

// What outlives the process, or nothing.
struct CoreMemory {
  std::span<std::byte> tables{};      // with their header; empty: the Core makes its own
  std::uint64_t reserved_bytes = 0;   // of the pool
  service::CoreState::Alive alive{};  // with tables
  std::uint64_t now_ns = 0;
};

class Core {
 public:
  // About what the tables of these settings take, rounded up.
  static std::uint64_t TableBytes(const Config& config);
  // Of the tables that these settings make.
  static wire::TablesShape Shape(const Config& config);
  // seed: random, so that nobody can aim at one bucket of the index.
  static Result<std::unique_ptr<Core>> Create(const Config& config, std::uint64_t seed, const CoreMemory& memory = {});
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  service::Service& service() { return state_->service(); }
  Status AddReserved(std::uint64_t bytes) { return state_->AddReserved(bytes); }
  pool::Pool& pool() { return state_->pool(); }
  const cache::BlockCache& cache() const { return state_->cache(); }
  pool::SessionLists& lists() { return state_->lists(); }
  const service::RecoveryReport& recovery() const { return state_->report(); }

  // Registers every counter, gauge and budget of the three.
  void AddFigures(Metrics& metrics) const;

 private:
  Core() = default;
  os::Mapping memory_;
  std::unique_ptr<wire::SpanTable> table_;
  std::string eviction_policy_;
  std::unique_ptr<service::CoreState> state_;
};

}  // namespace orbitkv::manager
