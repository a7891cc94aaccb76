// Slots that are being checked again, and their bytes kept meanwhile: those that an engine found wrong, which are not
// served until then, and those that a scrub looks at, which are.
// Owns: one granted pin for each block that it has open, and the suspect mark of each component that was reported.
// Threads: one. Blocks: no. Units: counts.
// Errors: none. A report that cannot be checked (the bound is reached, the record is damaged, the block is on its way
//         out) costs the block: doubt is a miss. A report of a slot that has been dropped or filled anew since it was
//         planned concerns nobody and is only counted.
// Invariant: a component has at most one open request; its slot is not reused while the request is open.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

class Verifications {
 public:
  Verifications(const Limits& limits, cache::BlockCache& cache, Counters& counters)
      : limits_(limits), cache_(cache), counters_(counters) {}

  struct Doubt {
    SessionId by;
    state::BlockHash hash;
    cache::BlockRef ref;
    std::uint32_t group = 0;
    std::uint32_t shard = 0;
    std::uint64_t generation = 0;  // of the slot that was read; wire::kNoGeneration: whatever is there
  };
  void Report(const Namespace& space, const Doubt& doubt);
  // A scrub comes by: the bytes that will be hashed, 0 when that cannot be done now.
  std::uint64_t Check(const Namespace& space, const state::BlockHash& hash, cache::BlockRef ref, std::uint32_t group,
                      std::uint32_t shard);
  std::vector<VerifyRequest> Take() { return std::exchange(untaken_, {}); }
  // The session whose report was wrong, when it was.
  std::optional<SessionId> Done(std::uint64_t request_id, bool equal);
  std::size_t open_count() const { return open_.size(); }

 private:
  struct Open {
    SessionId by;
    cache::BlockRef ref;
    std::uint32_t component = 0;
  };

  bool IsStale(cache::BlockRef ref, std::uint32_t component, std::uint64_t generation);
  void Send(const Namespace& space, const state::BlockHash& hash, const Open& open, std::uint64_t id_bits,
            const cache::PlanSlot& slot);
  bool Hold(const cache::BlockUse& use);
  void LetGo(cache::BlockRef ref);

  const Limits& limits_;
  cache::BlockCache& cache_;
  Counters& counters_;
  std::map<std::uint64_t, Open> open_;
  std::map<std::pair<cache::BlockRef, std::uint32_t>, std::uint64_t> by_component_;
  std::map<cache::BlockRef, std::uint32_t> held_;  // open requests of each block
  std::vector<VerifyRequest> untaken_;
  std::uint64_t next_id_ = 1;
};

}  // namespace orbitkv::service
