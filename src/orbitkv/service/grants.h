// Restores that an engine has decided on: a grant pins its blocks until each rank that it names has ended.
//
// A rank waits until it fetches its plan, which arms it: from then on it may be copying out of the slots, and only its
// own end, drain or death is proof that it is not. A rank that still waits may be ended by the beginner's word or
// death. All ranks of a grant share one pin per block.
//
// Owns: grants with their granted pins in the cache and in the instances' accounts, and a bounded memory of ended ids.
//       A Session outlives what it began or armed here: EndSession comes before it goes.
// Threads: one. Blocks: no. Units: blocks.
// Errors: as service.h says of each call.
// Invariants: a grant has at least one rank that has not ended; an id is used once while it is remembered.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/demand.h"
#include "orbitkv/service/leases.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/saves.h"
#include "orbitkv/service/types.h"
#include "orbitkv/service/verifications.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::service {

class Grants {
 public:
  struct Parts {
    cache::BlockCache& cache;
    Leases& leases;
    Saves& saves;
    Verifications& verifications;
    Counters& counters;
  };
  Grants(const Limits& limits, const Parts& parts)
      : limits_(limits),
        cache_(parts.cache),
        leases_(parts.leases),
        saves_(parts.saves),
        verifications_(parts.verifications),
        counters_(parts.counters) {}

  // Sessions are registered and have nothing of this running. A step looks at no more than Limits::step_hashes blocks.
  Result<BeginProgress> Begin(Session& session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                              std::uint64_t now_ns);
  Result<BeginProgress> ContinueBegin(Session& session, std::uint64_t now_ns);
  Result<PlanProgress> Plan(Session& session, GrantId grant, Rank rank, std::vector<wire::PlanEntry>& out);
  Result<PlanProgress> ContinuePlan(Session& session, std::vector<wire::PlanEntry>& out);
  bool Running(const Session& session) const {
    return beginning_.contains(session.id) || planning_.contains(session.id);
  }
  // What was pinned by a begin that nobody was answered is undone.
  void CancelRunning(Session& session);
  Status EndRank(Session& session, GrantId grant, Rank rank, wire::EndResult result,
                 std::span<const wire::EndEntry> mismatches);
  void Release(Session& session, GrantId grant);

  void EndSession(Session& session);
  void ForgetInstance(InstanceId instance) { ended_.erase(instance); }
  void Export(Gauges& gauges) const;

 private:
  enum class RankState : std::uint8_t { kWaiting, kArmed, kEnded };
  struct RankPin {
    Rank rank;
    RankState state = RankState::kWaiting;
    Session* armed_by = nullptr;
    std::vector<pool::SlotIndex> listed{};  // by armed_by, each once
  };
  struct Grant {
    Instance* instance = nullptr;
    Session* beginner = nullptr;
    Demand demand;
    std::vector<state::BlockHash> hashes;
    std::vector<cache::BlockUse> uses;  // one per hash; none where the boundary needs nothing
    std::vector<RankPin> ranks;
    std::size_t open_ranks = 0;
  };
  // A begin under way.
  struct Beginning {
    GrantId id;
    LeaseId lease;
    std::uint32_t blocks = 0;
    Grant begun;
    bool late = false;  // on an expired lease
  };
  // A plan under way.
  struct Planning {
    GrantId grant;
    Rank rank;
    std::uint32_t filled = 0;
    std::vector<pool::SlotIndex> listed{};
  };
  // The newest ended ids of one instance.
  struct EndedIds {
    std::deque<GrantId> order;
    absl::flat_hash_set<GrantId> ids;  // looked up only
  };
  using GrantKey = std::pair<InstanceId, GrantId>;
  using GrantMap = std::map<GrantKey, Grant>;

  Status CheckBegin(const Session& session, const wire::BeginView& begin, GrantId grant) const;
  Status Admit(const Instance& instance, const Lease* lease, const wire::BeginView& begin);
  Status CheckFree(const Instance& instance, GrantId grant) const;
  static Status CheckLive(const Instance& instance, std::uint32_t rank);
  Result<BeginProgress> StepBegin(Session& session, Beginning& beginning, std::uint64_t now_ns);
  Status PinSome(Instance& instance, Beginning& beginning, std::uint64_t now_ns);
  Result<PlanProgress> StepPlan(Session& session, Planning& planning, std::vector<wire::PlanEntry>& out);
  static void UnlistAll(const Session& session, std::span<const pool::SlotIndex> slots);
  static void KeepListed(const Session& session, RankPin& pin, std::vector<pool::SlotIndex> listed);
  void ReportMismatches(const Session& session, const Grant& grant, std::span<const wire::EndEntry> mismatches);
  // Ends one rank; the grant goes with the last one, and then found is no longer valid.
  void EndPin(GrantMap::iterator found, RankPin& pin);
  bool EndWaiting(GrantMap::iterator found);
  void Unpin(Instance& instance, std::span<const cache::BlockUse> uses);
  bool Ended(InstanceId instance, GrantId grant) const;
  void Bury(InstanceId instance, GrantId grant);

  const Limits& limits_;
  cache::BlockCache& cache_;
  Leases& leases_;
  Saves& saves_;
  Verifications& verifications_;
  Counters& counters_;
  GrantMap grants_;
  std::map<SessionId, Beginning> beginning_;
  std::map<SessionId, Planning> planning_;
  std::map<InstanceId, EndedIds> ended_;
  std::map<InstanceId, std::size_t> open_grants_;
  std::uint64_t armed_ranks_ = 0;
};

}  // namespace orbitkv::service
