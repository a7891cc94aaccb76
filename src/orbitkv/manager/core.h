// The deciding half of a Manager in one object: slot table, pool, block cache and service, sized from the settings.
//
// Owns: all of them, and the table's memory. Not the pool's bytes: nobody here touches those.
// Threads: one (the dispatcher) once it runs; Create by the owner before. Blocks: no.
// Errors: Create kInvalid when settings do not fit together, kExhausted when the tables find no memory.
// Invariant: tables are sized at Create and never grow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/service/service.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::manager {

class Core {
 public:
  // About what the tables of these settings take, rounded up.
  static std::uint64_t TableBytes(const Config& config);
  // seed: random, so that nobody can aim at one bucket of the index.
  static Result<std::unique_ptr<Core>> Create(const Config& config, std::uint64_t seed);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  service::Service& service() { return *service_; }
  pool::Pool& pool() { return *pool_; }
  const cache::BlockCache& cache() const { return *cache_; }

  // Registers every counter, gauge and budget of the three.
  void AddFigures(Metrics& metrics) const;

 private:
  Core() = default;
  std::unique_ptr<os::Mapping> memory_;
  std::unique_ptr<wire::SpanTable> table_;
  std::unique_ptr<pool::Pool> pool_;
  std::string eviction_policy_;
  std::unique_ptr<cache::BlockCache> cache_;
  std::unique_ptr<service::Service> service_;
};

}  // namespace orbitkv::manager
