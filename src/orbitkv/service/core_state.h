// What a Manager knows and decides, in one piece over its tables: slot lists of sessions, pool, block cache, service.
// It begins with whatever an earlier life has left in the tables, which may be nothing.
//
// Owns: pool, cache, service and the lists. The tables belong to the caller and outlive it; they say at any time, also
// in the middle of a call, what the next life has to know.
// Threads: one (the dispatcher). Blocks: no. Units: bytes, nanoseconds.
// Errors: Begin kRefused or kCorrupt for tables that are not for these settings (nothing is changed then), kInvalid for
//         settings that do not fit together.
// Invariant: generations of slots rise from life to life.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "orbitkv/base/result.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/service.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::service {

struct CoreStateConfig {
  pool::PoolConfig pool;  // first_generation is the life's
  cache::CacheConfig cache;
  cache::BlockCache::PolicyFactory policy{};  // null: LRU
  Limits limits;
  std::uint32_t session_rows = 512;  // of this life and those of earlier ones that are not over
  std::uint32_t held_percent = 25;   // of the pool, held for one session of an earlier life

  wire::TablesShape shape() const;
};

// What a life began with.
struct RecoveryReport {
  std::uint32_t life = 0;
  std::uint64_t adopted = 0;  // components
  std::uint64_t adopted_bytes = 0;
  std::uint64_t unfinished = 0;          // slots freed: their writers are gone
  std::uint64_t damaged = 0;             // slots freed: torn or damaged records
  std::uint64_t misplaced = 0;           // slots freed: their place contradicts the pool or other slots
  std::uint64_t discarded = 0;           // slots freed: no namespace knows them, or the block is here already
  std::uint64_t namespaces = 0;          // taken over
  std::uint64_t damaged_namespaces = 0;  // not
  std::uint64_t sessions_ended = 0;      // of earlier lives, whose processes are gone
  std::uint64_t sessions_alive = 0;      // whose slots are held
  std::uint64_t held_slots = 0;
};

class CoreState {
 public:
  // Whether a process of the session may still be there.
  using Alive = std::function<bool(std::uint32_t row, const pool::SessionOwner& owner)>;

  // tables: with a header of config.shape(). reserved_bytes: of the pool, backed by memory already.
  static Result<std::unique_ptr<CoreState>> Begin(wire::TableMemory& tables, const CoreStateConfig& config,
                                                  std::uint64_t reserved_bytes, const Alive& alive,
                                                  std::uint64_t now_ns);
  CoreState(const CoreState&) = delete;
  CoreState& operator=(const CoreState&) = delete;

  // As Pool::AddReserved, and for the next life.
  Status AddReserved(std::uint64_t bytes);
  pool::Pool& pool() { return *pool_; }
  cache::BlockCache& cache() { return *cache_; }
  Service& service() { return *service_; }
  pool::SessionLists& lists() { return lists_; }
  const RecoveryReport& report() const { return report_; }

 private:
  CoreState(wire::TableMemory& tables, const CoreStateConfig& config);
  Status Recover(const CoreStateConfig& config, std::uint64_t reserved_bytes, const Alive& alive, std::uint64_t now_ns);
  void AdoptNamespaces();

  wire::TableMemory& tables_;
  wire::TableWindow slot_table_;
  wire::TableWindow namespace_table_;
  wire::TableWindow session_table_;
  pool::SessionLists lists_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<cache::BlockCache> cache_;
  std::unique_ptr<Service> service_;
  RecoveryReport report_;
};

}  // namespace orbitkv::service
