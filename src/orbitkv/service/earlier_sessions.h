// Sessions of earlier Managers whose processes may still be touching slots of the pool: what is held for them, until
// each says that it has drained or is known to be gone.
//
// A slot may be held for several sessions; it is let go with the last one. A session whose process nobody can watch
// ends at the latest kUnwatchedNs after the start: by then no copy of it runs, and a write that comes later still is
// seen as wrong bytes by whoever reads them.
// Owns: the cache's held slots; the rows of these sessions in the lists, closed one by one.
// Threads: one. Blocks: no. Units: nanoseconds, bytes.
// Errors: none; what is not known here is false or none.
// Invariant: a slot is held exactly as long as a session here lists it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

class EarlierSessions {
 public:
  static constexpr std::uint64_t kUnwatchedNs = 600'000'000'000;

  explicit EarlierSessions(cache::BlockCache& cache) : cache_(cache) {}

  void SetLists(pool::SessionLists* lists) { lists_ = lists; }
  // Slots that sessions list and nobody holds are ignored.
  void Adopt(std::vector<pool::SessionLists::Earlier> sessions, std::span<const cache::HeldSlot> held,
             std::uint64_t now_ns);
  bool End(std::uint32_t row);
  std::optional<std::uint32_t> Drain(const Incarnation& incarnation, std::uint64_t token);
  void Tick(std::uint64_t now_ns);
  // Rows of sessions that have ended, each once: they are free.
  std::vector<std::uint32_t> TakeEnded() { return std::exchange(ended_, {}); }
  std::optional<std::uint64_t> NextDeadline() const;

  std::vector<EarlierSessionStatus> statuses() const;
  void Export(Gauges& gauges) const;

 private:
  struct Held {
    cache::HeldSlot slot;
    std::uint64_t bytes = 0;
    std::uint32_t sessions = 0;
  };

  cache::BlockCache& cache_;
  pool::SessionLists* lists_ = nullptr;
  std::map<std::uint32_t, pool::SessionLists::Earlier> sessions_;  // by row
  std::map<pool::SlotIndex, Held> held_;
  std::vector<std::uint32_t> ended_;
  std::uint64_t give_up_ns_ = 0;
};

}  // namespace orbitkv::service
