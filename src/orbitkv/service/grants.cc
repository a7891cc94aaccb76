#include "orbitkv/service/grants.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

Result<BeginProgress> Grants::Begin(Session& session, LeaseId lease, const wire::BeginView& begin, GrantId grant,
                                    std::uint64_t now_ns) {
  ORBITKV_TRY(CheckBegin(session, begin, grant));
  Instance& instance = *session.instance;
  const Lease* found = leases_.Find(instance, lease);
  if (const Status admitted = Admit(instance, found, begin); !admitted) {
    ++counters_.grants_refused;
    Bury(instance.id, grant);
    return std::unexpected(admitted.error());
  }
  const std::uint32_t blocks = begin.header.boundary_blocks;
  Beginning started{.id = grant,
                    .lease = lease,
                    .blocks = blocks,
                    .begun = {.instance = &instance,
                              .beginner = &session,
                              .demand = Demand(instance.space->contract, found->prefix_blocks, blocks),
                              .hashes = {},
                              .uses = {},
                              .ranks = {},
                              .open_ranks = begin.ranks.size()}};
  for (const std::uint32_t rank : begin.ranks) started.begun.ranks.push_back({.rank = Rank(rank)});
  const Result<BeginProgress> progress = StepBegin(session, started, now_ns);
  if (progress && progress->more) beginning_.emplace(session.id, std::move(started));
  return progress;
}

Result<BeginProgress> Grants::ContinueBegin(Session& session, std::uint64_t now_ns) {
  const auto running = beginning_.find(session.id);
  if (running == beginning_.end()) return Fail(Code::kInvalid, "no begin of this session is running");
  const Result<BeginProgress> progress = StepBegin(session, running->second, now_ns);
  if (!progress || !progress->more) beginning_.erase(running);
  return progress;
}

Result<BeginProgress> Grants::StepBegin(Session& session, Beginning& beginning, std::uint64_t now_ns) {
  Instance& instance = *session.instance;
  Grant& begun = beginning.begun;
  Status pinned = PinSome(instance, beginning, now_ns);
  if (pinned && begun.uses.size() < beginning.blocks) return BeginProgress{.more = true};
  // A rank's session, or the id, may have gone since the first step.
  if (pinned) pinned = CheckFree(instance, beginning.id);
  for (const RankPin& pin : begun.ranks) {
    if (pinned) pinned = CheckLive(instance, pin.rank.value());
  }
  if (!pinned) {
    Unpin(instance, begun.uses);
    ++counters_.grants_refused;
    Bury(instance.id, beginning.id);
    return std::unexpected(pinned.error());
  }
  ++counters_.grants;
  if (beginning.late) ++counters_.grants_late;
  leases_.End(beginning.lease, beginning.blocks);
  grants_.emplace(GrantKey(instance.id, beginning.id), std::move(begun));
  ++open_grants_[instance.id];
  return BeginProgress{};
}

// What is wrong with the request itself: the grant id is not buried for it.
Status Grants::CheckBegin(const Session& session, const wire::BeginView& begin, GrantId grant) const {
  const Instance& instance = *session.instance;
  if (grant.is_none()) return Fail(Code::kInvalid, "grant ids start at 1");
  if (begin.header.boundary_blocks == 0 || begin.ranks.empty()) {
    return Fail(Code::kInvalid, "a restore begins with at least one block and one rank");
  }
  std::vector<bool> named(instance.ranks.size());
  for (const std::uint32_t rank : begin.ranks) {
    if (rank >= named.size()) return Fail(Code::kInvalid, "no such rank", rank, named.size());
    if (named[rank]) return Fail(Code::kInvalid, "a rank is named twice", rank);
    named[rank] = true;
  }
  return CheckFree(instance, grant);
}

Status Grants::CheckFree(const Instance& instance, GrantId grant) const {
  if (!grants_.contains({instance.id, grant}) && !Ended(instance.id, grant)) return {};
  return Fail(Code::kRefused, "the grant id is taken", grant.value());
}

Status Grants::CheckLive(const Instance& instance, std::uint32_t rank) {
  if (instance.RankLive(rank)) return {};
  return Fail(Code::kRefused, "a rank has no live session", rank);
}

Status Grants::Admit(const Instance& instance, const Lease* lease, const wire::BeginView& begin) {
  for (const std::uint32_t rank : begin.ranks) ORBITKV_TRY(CheckLive(instance, rank));
  if (lease == nullptr) return Fail(Code::kNotFound, "the lease is gone");
  if (begin.header.boundary_blocks > lease->found) {
    return Fail(Code::kRefused, "the boundary lies beyond what was found", begin.header.boundary_blocks, lease->found);
  }
  if (!lease->boundaries.empty() && !std::ranges::binary_search(lease->boundaries, begin.header.boundary_blocks)) {
    return Fail(Code::kRefused, "no boundary lies there", begin.header.boundary_blocks);
  }
  const auto open = open_grants_.find(instance.id);
  if (open != open_grants_.end() && open->second >= limits_.grants_per_instance) {
    return Fail(Code::kBusy, "too many restores are under way", open->second);
  }
  return {};
}

// The next blocks of the lease: what the boundary demands, and nothing else. An expired lease has hashes only, and its
// blocks must fit into the budget again; it may expire, be revoked or end between two steps.
Status Grants::PinSome(Instance& instance, Beginning& beginning, std::uint64_t now_ns) {
  const Lease* lease = leases_.Find(instance, beginning.lease);
  if (lease == nullptr) return Fail(Code::kNotFound, "the lease is gone");
  Grant& begun = beginning.begun;
  const std::size_t first = begun.uses.size();
  const std::size_t count = std::min<std::size_t>(limits_.step_hashes, beginning.blocks - first);
  const auto hashes = std::span(lease->hashes).subspan(first, count);
  std::vector<cache::BlockUse> there;
  if (lease->live) {
    there.resize(count);
    for (std::size_t i = 0; i < count; ++i) there[i].ref = lease->refs[first + i];
  } else {
    beginning.late = true;
    cache_.LookUp(instance.space->row, hashes, there);
  }
  const Namespace& space = *instance.space;
  for (std::size_t i = 0; i < count; ++i) {
    const cache::BlockUse use{there[i].ref, begun.demand.GroupsAt(static_cast<std::uint32_t>(first + i))};
    if (use.groups == 0) {
      begun.uses.emplace_back();
      continue;
    }
    const std::uint64_t bytes = HeldBytes(space, cache_, use.ref);
    if (!instance.leased.Fits(use.ref, bytes, limits_.lease_bytes_per_instance())) {
      return Fail(Code::kBusy, "the instance's budget of leased bytes is used up", first + i);
    }
    if (!cache_.PinGranted(use)) return Fail(Code::kNotFound, "a block of the lease is no longer served", first + i);
    instance.leased.Add(use.ref, bytes);
    begun.uses.push_back(use);
    saves_.Used(space, hashes[i], use);
  }
  begun.hashes.insert(begun.hashes.end(), hashes.begin(), hashes.end());
  cache_.Touch(std::span(begun.uses).subspan(first), now_ns);
  return {};
}

Result<PlanProgress> Grants::Plan(Session& session, GrantId grant, Rank rank, std::vector<wire::PlanEntry>& out) {
  out.clear();
  if (!session.IsWorker() || session.registration->rank != rank) {
    return Fail(Code::kRefused, "the session is not registered for this rank", rank.value());
  }
  Planning started{.grant = grant, .rank = rank};
  const Result<PlanProgress> progress = StepPlan(session, started, out);
  if (progress && progress->more) {
    planning_.emplace(session.id, std::move(started));
  } else {
    UnlistAll(session, started.listed);
  }
  return progress;
}

Result<PlanProgress> Grants::ContinuePlan(Session& session, std::vector<wire::PlanEntry>& out) {
  const auto running = planning_.find(session.id);
  if (running == planning_.end()) return Fail(Code::kInvalid, "no plan of this session is being made");
  const Result<PlanProgress> progress = StepPlan(session, running->second, out);
  if (!progress || !progress->more) {
    UnlistAll(session, running->second.listed);
    planning_.erase(running);
  }
  return progress;
}

// The rank is armed by the last step: until its plan is given out it waits like any other.
Result<PlanProgress> Grants::StepPlan(Session& session, Planning& planning, std::vector<wire::PlanEntry>& out) {
  const InstanceId instance = session.instance->id;
  const auto found = grants_.find({instance, planning.grant});
  if (found == grants_.end()) {
    out.clear();
    const bool ended = Ended(instance, planning.grant);
    ++(ended ? counters_.plans_gone : counters_.plans_not_yet);
    return PlanProgress{.status = ended ? PlanStatus::kGone : PlanStatus::kNotYet};
  }
  const Grant& grant = found->second;
  const auto pin = std::ranges::find(found->second.ranks, planning.rank, &RankPin::rank);
  if (pin == found->second.ranks.end() || pin->state == RankState::kEnded) {
    out.clear();
    ++counters_.plans_gone;
    return PlanProgress{.status = PlanStatus::kGone};
  }
  if (pin->state == RankState::kArmed && pin->armed_by != &session) {
    return Fail(Code::kRefused, "another session of this rank has fetched the plan", pin->armed_by->id.value());
  }
  const Namespace& space = *grant.instance->space;
  const std::uint32_t end = std::min(grant.demand.size(), planning.filled + limits_.step_hashes);
  out.reserve(grant.demand.size());
  for (; planning.filled < end; ++planning.filled) {
    const Demand::Place place = grant.demand.At(planning.filled);
    const std::uint32_t component = space.ComponentOf(place.group, session.registration->shard);
    const Result<cache::PlanSlot> slot = cache_.Plan(grant.uses[place.index].ref, component);
    if (!slot) {
      out.clear();
      ++counters_.plans_corrupt;
      // A rank that was armed before may be copying by its first plan.
      if (pin->state == RankState::kWaiting) EndPin(found, *pin);
      return PlanProgress{.status = PlanStatus::kCorrupt};
    }
    if (session.lists != nullptr) {
      planning.listed.push_back(slot->slot);
      session.List(slot->slot);
    }
    out.push_back({.offset = slot->offset,
                   .generation = slot->generation,
                   .slot_checksum = slot->checksum,
                   .slot_bytes = slot->payload_bytes,
                   .slab = slot->slab,
                   .group = place.group,
                   .block = place.index});
  }
  if (end < grant.demand.size()) return PlanProgress{.more = true};
  ++counters_.plans;
  if (pin->state == RankState::kWaiting) {
    pin->state = RankState::kArmed;
    pin->armed_by = &session;
    ++session.armed_ranks;
    ++armed_ranks_;
  }
  KeepListed(session, *pin, std::exchange(planning.listed, {}));
  return PlanProgress{};
}

void Grants::UnlistAll(const Session& session, std::span<const pool::SlotIndex> slots) {
  for (const pool::SlotIndex slot : slots) session.Unlist(slot);
}

// A rank that asks again may still be copying by its first plan: what both name is listed once, the rest of both stays.
void Grants::KeepListed(const Session& session, RankPin& pin, std::vector<pool::SlotIndex> listed) {
  if (pin.listed.empty()) {
    pin.listed = std::move(listed);
    return;
  }
  std::ranges::sort(pin.listed);
  const std::size_t known = pin.listed.size();
  for (const pool::SlotIndex slot : listed) {
    if (std::binary_search(pin.listed.begin(), pin.listed.begin() + static_cast<std::ptrdiff_t>(known), slot)) {
      session.Unlist(slot);
    } else {
      pin.listed.push_back(slot);
    }
  }
}

void Grants::CancelRunning(Session& session) {
  if (const auto beginning = beginning_.find(session.id); beginning != beginning_.end()) {
    Unpin(*session.instance, beginning->second.begun.uses);
    Bury(session.instance->id, beginning->second.id);
    beginning_.erase(beginning);
  }
  if (const auto planning = planning_.find(session.id); planning != planning_.end()) {
    UnlistAll(session, planning->second.listed);
    planning_.erase(planning);
  }
}

Status Grants::EndRank(Session& session, GrantId grant, Rank rank, wire::EndResult result,
                       std::span<const wire::EndEntry> mismatches) {
  if (!session.IsWorker() || session.registration->rank != rank) {
    return Fail(Code::kRefused, "the session is not registered for this rank", rank.value());
  }
  const auto found = grants_.find({session.instance->id, grant});
  if (found == grants_.end()) return {};
  Grant& ended = found->second;
  const auto pin = std::ranges::find(ended.ranks, rank, &RankPin::rank);
  if (pin == ended.ranks.end() || pin->state == RankState::kEnded) return {};
  Status status;
  if (pin->state == RankState::kArmed) {
    const std::uint32_t blocks = ended.demand.size();
    switch (result) {
      case wire::EndResult::kOk:
        ++counters_.restores_ok;
        counters_.restored_blocks += blocks;
        counters_.restored_bytes += ended.demand.bytes();
        break;
      case wire::EndResult::kMismatch:
        ++counters_.restores_mismatch;
        if (std::ranges::any_of(mismatches, [blocks](const wire::EndEntry& one) { return one.index >= blocks; })) {
          status = Fail(Code::kInvalid, "a mismatched block lies beyond the plan", blocks);
        }
        ReportMismatches(session, ended, mismatches);
        break;
      case wire::EndResult::kFailed: ++counters_.restores_failed; break;
      default: status = Fail(Code::kInvalid, "unknown result of a restore", static_cast<std::uint64_t>(result));
    }
  }
  EndPin(found, *pin);
  return status;
}

void Grants::ReportMismatches(const Session& session, const Grant& grant, std::span<const wire::EndEntry> mismatches) {
  for (const wire::EndEntry& one : mismatches) {
    if (one.index >= grant.demand.size()) continue;
    const Demand::Place place = grant.demand.At(one.index);
    verifications_.Report(*grant.instance->space, {.by = session.id,
                                                   .hash = grant.hashes[place.index],
                                                   .ref = grant.uses[place.index].ref,
                                                   .group = place.group,
                                                   .shard = session.registration->shard,
                                                   .generation = one.generation});
  }
}

void Grants::Release(Session& session, GrantId grant) {
  const auto found = grants_.find({session.instance->id, grant});
  if (found != grants_.end()) {
    EndWaiting(found);
  } else if (!grant.is_none() && !Ended(session.instance->id, grant)) {
    // Given up before its begin arrived: neither that begin nor a rank that waits for it shall succeed.
    Bury(session.instance->id, grant);
  }
}

void Grants::EndSession(Session& session) {
  if (session.instance == nullptr) return;
  CancelRunning(session);
  const InstanceId instance = session.instance->id;
  auto found = grants_.lower_bound({instance, GrantId(0)});
  while (found != grants_.end() && found->first.first == instance) {
    const auto next = std::next(found);
    bool gone = false;
    for (RankPin& pin : found->second.ranks) {
      if (pin.armed_by != &session || pin.state != RankState::kArmed) continue;
      gone = found->second.open_ranks == 1;
      EndPin(found, pin);
      if (gone) break;
    }
    if (!gone && found->second.beginner == &session) {
      if (!EndWaiting(found)) found->second.beginner = nullptr;
    }
    found = next;
  }
  ORBITKV_CHECK(session.armed_ranks == 0);
}

void Grants::EndPin(GrantMap::iterator found, RankPin& pin) {
  Grant& grant = found->second;
  ORBITKV_CHECK(pin.state != RankState::kEnded);
  if (pin.state == RankState::kArmed) {
    UnlistAll(*pin.armed_by, pin.listed);
    pin.listed = {};
    --pin.armed_by->armed_ranks;
    --armed_ranks_;
  }
  pin.state = RankState::kEnded;
  pin.armed_by = nullptr;
  if (--grant.open_ranks > 0) return;
  Unpin(*grant.instance, grant.uses);
  const auto [instance, id] = found->first;
  if (const auto open = open_grants_.find(instance); --open->second == 0) open_grants_.erase(open);
  grants_.erase(found);
  Bury(instance, id);
}

// Whether the grant is gone, because no rank is armed.
bool Grants::EndWaiting(GrantMap::iterator found) {
  for (RankPin& pin : found->second.ranks) {
    if (pin.state != RankState::kWaiting) continue;
    const bool last = found->second.open_ranks == 1;
    EndPin(found, pin);
    if (last) return true;
  }
  return false;
}

void Grants::Unpin(Instance& instance, std::span<const cache::BlockUse> uses) {
  for (const cache::BlockUse& use : uses) {
    if (use.ref.is_none()) continue;
    cache_.UnpinGranted(use.ref);
    instance.leased.Remove(use.ref);
  }
}

bool Grants::Ended(InstanceId instance, GrantId grant) const {
  const auto ended = ended_.find(instance);
  return ended != ended_.end() && ended->second.ids.contains(grant);
}

void Grants::Bury(InstanceId instance, GrantId grant) {
  EndedIds& ended = ended_[instance];
  if (!ended.ids.insert(grant).second) return;
  ended.order.push_back(grant);
  if (ended.order.size() > limits_.ended_grants_remembered) {
    ended.ids.erase(ended.order.front());
    ended.order.pop_front();
  }
}

void Grants::Export(Gauges& gauges) const {
  gauges.grants = grants_.size();
  gauges.armed_ranks = armed_ranks_;
}

}  // namespace orbitkv::service
