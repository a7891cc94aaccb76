// What look-ups found: a lease pins the found blocks for one request of one instance.
//
// A lease is live for Limits::lease_ns after its answer, then its pins end and only the hashes are kept, until
// Limits::remembered_ns, so that a late begin can pin again what is still there. Ids rise with the time of the answer:
// the leases that are no longer live are always the oldest ones.
//
// Owns: leases and their found pins; the accounts of look-ups that are not answered yet, which Operations keeps. A
//       Session outlives what it holds here: EndSession comes before it goes.
// Threads: one. Blocks: no. Units: nanoseconds, blocks.
// Errors: none; Admit says no when a bound of Limits is reached, at no cost that grows with anything.
// Invariant: a request (of an instance) has at most one lease.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/lookups.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/scan.h"
#include "orbitkv/service/types.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::service {

struct Lease {
  LeaseId id;
  Session* session = nullptr;
  RequestKey request;
  std::uint64_t answered_ns = 0;
  bool live = true;
  std::uint32_t prefix_blocks = 0;
  std::uint32_t attempt = 0;
  bool selected = false;                  // the discovery before it was the look-up
  std::uint32_t found = 0;                // blocks
  std::vector<std::uint32_t> boundaries;  // that may be taken; empty: every one up to found
  std::vector<state::BlockHash> hashes;   // all that were asked for, the found ones first
  std::vector<cache::BlockRef> refs;      // while live, one per found block; none where no boundary needs it
};

class Leases {
 public:
  Leases(const Limits& limits, cache::BlockCache& cache, Lookups& lookups, Counters& counters)
      : limits_(limits), lookups_(lookups), counters_(counters), pins_(limits, cache) {}

  // Whether a look-up of so many hashes may begin; makes room for it if it may. replaces: an operation of the session
  // makes place for it.
  bool Admit(const Session& session, const RequestKey& request, std::uint64_t hash_count, bool replaces = false);
  // The accounts of a look-up that has begun and is not answered.
  void Hold(Session& session, std::uint64_t hash_count);
  void Drop(Session& session, std::uint64_t hash_count);
  // The request's new lease, which takes pins and hashes of the scan; none when it found nothing. The lease that the
  // request had before is over.
  LeaseId Answer(Session& session, const RequestKey& request, std::uint32_t attempt, Scan& scan, std::uint64_t now_ns);
  FoundPins& pins() { return pins_; }

  // Null when no lease of that id belongs to the instance.
  const Lease* Find(const Instance& instance, LeaseId lease) const;
  // taken: blocks that a restore took from it.
  void End(LeaseId lease, std::uint32_t taken);
  void EndSession(Session& session);

  // Gives up the pins of the oldest live lease; false when there is none.
  bool RevokeOne();
  void Tick(std::uint64_t now_ns);
  std::optional<std::uint64_t> NextDeadline() const;
  void Export(Gauges& gauges) const;

 private:
  using LeaseMap = std::map<LeaseId, Lease>;

  void Expire(Lease& lease);
  // counted: its logical look-up is over with it.
  LeaseMap::iterator Erase(LeaseMap::iterator lease, std::uint32_t taken = 0, bool counted = true);
  LeaseMap::iterator FirstLive() { return leases_.lower_bound(first_live_); }

  const Limits& limits_;
  Lookups& lookups_;
  Counters& counters_;
  FoundPins pins_;
  LeaseMap leases_;
  absl::flat_hash_map<RequestKey, LeaseId> by_request_;  // looked up only
  LeaseId first_live_{1};                                // no lease before it is live
  std::uint64_t next_lease_ = 1;
  std::uint64_t live_ = 0;
  std::uint64_t open_ = 0;    // look-ups that are not answered
  std::uint64_t hashes_ = 0;  // of those and of leases
};

}  // namespace orbitkv::service
