// The oracle's view of restoring: grants, armed ranks, and what a plan may name.
#include <algorithm>

#include "orbitkv/testing/sim/jobs.h"
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::sim {

void Oracle::BeginAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                           std::uint64_t now_ns) {
  if (answer.status == wire::AnswerStatus::kTimedOut) return;
  const auto begin = wire::DecodeBegin(request.args);
  const Session& session = sessions_.at(id);
  Instance& instance = instances_.at(session.instance);
  const GrantKey key(session.instance, request.scalar1);
  const bool taken = grants_.contains(key) || instance.buried.contains(request.scalar1);
  const auto lease = leases_.find(request.scalar0);
  const bool known = lease != leases_.end() && lease->second.instance == session.instance;
  if (!begin) return;
  const std::uint32_t boundary = begin->header.boundary_blocks;
  if (answer.status != wire::AnswerStatus::kOk) {
    Expect(taken || !known || MayRefuse(lease->second, instance, session.instance, begin->ranks, boundary, now_ns),
           "a restore of a live lease was refused", {{"lease", request.scalar0}, {"grant", request.scalar1}});
    if (!taken && answer.status != wire::AnswerStatus::kInvalid) instance.buried.insert(request.scalar1);
    return;
  }
  ++granted_;
  Expect(!taken, "a grant's id was taken twice", {{"grant", request.scalar1}});
  if (!known || !std::ranges::binary_search(lease->second.boundaries, boundary)) {
    history_.Violation("a restore began without a lease on its blocks", {{"lease", request.scalar0}});
    return;
  }
  Grant grant{.beginner = id, .hashes = {}, .needs = {}, .space = instance.space, .ranks = {}, .armed = {}};
  grant.hashes.assign(lease->second.hashes.begin(), lease->second.hashes.begin() + boundary);
  grant.needs = space_of_[instance.space].rules.Needs(lease->second.prefix, boundary);
  std::set<std::uint32_t> pinned;
  for (const Place place : grant.needs) {
    pinned.insert(place.index);
    // What was pinned in an earlier turn may have been found damaged since; its plan says so.
    Expect(request.stepped || Present(instance.space, place.group, grant.hashes[place.index]),
           "a block was granted that is not there", {{"group", place.group}, {"index", place.index}});
  }
  grant.pins = pinned.size();
  for (const std::uint32_t rank : begin->ranks) {
    Expect(RankLive(session.instance, rank), "a rank without a live session was granted", {{"rank", rank}});
    grant.ranks[rank] = SessionId();
  }
  grants_[key] = std::move(grant);
  leases_.erase(lease);
}

bool Oracle::MayRefuse(const Lease& lease, const Instance&, InstanceId id, std::span<const std::uint32_t> ranks,
                       std::uint32_t boundary, std::uint64_t now_ns) const {
  if (!std::ranges::binary_search(lease.boundaries, boundary)) return true;
  if (now_ns - lease.answered_ns >= shape_.limits.lease_ns) return true;
  if (lease.revoked != life_->service().counters().leases_revoked || lease.doubts != doubts_) return true;
  const bool all_live = std::ranges::all_of(ranks, [&](std::uint32_t rank) { return RankLive(id, rank); });
  if (!all_live) return true;
  const auto open = std::ranges::count_if(grants_, [id](const auto& grant) { return grant.first.first == id; });
  if (open >= shape_.limits.grants_per_instance) return true;
  return std::ranges::any_of(slots_, [](const auto& slot) { return slot.second.doubted; });
}

void Oracle::PlanAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer) {
  if (answer.status == wire::AnswerStatus::kTimedOut) return;
  const Session& session = sessions_.at(id);
  const auto rank = static_cast<std::uint32_t>(request.scalar1);
  const GrantKey key(session.instance, request.scalar0);
  const auto grant = grants_.find(key);
  const bool open = grant != grants_.end() && grant->second.ranks.contains(rank);
  const bool own_rank =
      session.registration->role != service::Role::kScheduler && session.registration->rank.value() == rank;
  switch (answer.status) {
    case wire::AnswerStatus::kOk:
      Expect(open && own_rank, "a plan was given to a rank that has no grant", {{"grant", request.scalar0}});
      if (open) Arm(id, grant->second, rank, answer.payload);
      break;
    case wire::AnswerStatus::kNotYet:
      Expect(grant == grants_.end() && !instances_.at(session.instance).buried.contains(request.scalar0),
             "a grant is said not to have come, and it has", {{"grant", request.scalar0}});
      break;
    case wire::AnswerStatus::kGone:
      Expect(!open, "a grant is said to be over, and it is not", {{"grant", request.scalar0}});
      break;
    case wire::AnswerStatus::kCorrupt:
      Expect(open && doubts_ > 0, "a plan met a damaged record where none was damaged", {{"grant", request.scalar0}});
      if (open && grant->second.ranks.at(rank).is_none()) EndRank(grant, rank);
      break;
    default:
      Expect(!own_rank || (open && grant->second.ranks.at(rank) != id), "a plan was refused to its own rank",
             {{"grant", request.scalar0}, {"status", static_cast<std::uint64_t>(answer.status)}});
  }
}

void Oracle::Arm(SessionId id, Grant& grant, std::uint32_t rank, std::span<const std::byte> payload) {
  const auto plan = ReadPlan(payload, sessions_.at(id).abi);
  if (!plan || plan->size() != grant.needs.size()) {
    history_.Violation("a plan has another number of blocks than its grant");
    return;
  }
  SessionId& by = grant.ranks.at(rank);
  Expect(by.is_none() || by == id, "a rank was armed by two sessions");
  const bool again = !by.is_none();
  by = id;
  const std::uint32_t shard = sessions_.at(id).registration->shard;
  std::vector<std::uint64_t> generations;
  for (std::size_t i = 0; i < plan->size(); ++i) {
    const wire::PlanEntry& entry = (*plan)[i];
    const Place place = grant.needs[i];
    const auto found = slots_.find(entry.generation);
    if (found == slots_.end() || found->second.state != SlotState::kStored || found->second.offset != entry.offset ||
        found->second.key != BlockKey{grant.space, grant.hashes[place.index], place.group, shard} ||
        found->second.checksum != entry.slot_checksum || entry.group != place.group || entry.block != place.index) {
      history_.Violation("a plan names a slot that does not hold its block",
                         {{"block", i}, {"generation", entry.generation}, {"offset", entry.offset}});
      return;
    }
    generations.push_back(entry.generation);
  }
  if (again) {
    Expect(grant.armed.at(rank) == generations, "a plan has changed while its rank was armed");
    return;
  }
  for (const std::uint64_t generation : generations) {
    ++slots_.at(generation).armed;
    pinned_.insert(generation);
  }
  grant.armed[rank] = std::move(generations);
}

void Oracle::EndAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer) {
  if (answer.status == wire::AnswerStatus::kTimedOut) return;
  const Session& session = sessions_.at(id);
  const auto rank = static_cast<std::uint32_t>(request.scalar1);
  const auto grant = grants_.find({session.instance, request.scalar0});
  if (grant == grants_.end() || !grant->second.ranks.contains(rank)) return;
  Expect(answer.status == wire::AnswerStatus::kOk, "the end of a restore was refused", {{"grant", request.scalar0}});
  const auto armed = grant->second.armed.find(rank);
  if (armed != grant->second.armed.end() &&
      static_cast<wire::EndResult>(request.scalar1 >> 32U) == wire::EndResult::kMismatch) {
    DoubtReported(session, request, armed->second);
  }
  EndRank(grant, rank);
}

void Oracle::DoubtReported(const Session& session, const SimRequest& request,
                           const std::vector<std::uint64_t>& planned) {
  if (request.args.empty()) return;
  if (session.abi > 1) {
    // The report names the slot: what is stored under its key by now is not meant.
    const wire::EndView end = wire::DecodeEnd(request.args).value();
    for (const wire::EndEntry& one : end.mismatches) {
      ++doubts_;
      Expect(one.generation == planned[one.index], "a client names another slot than was planned");
      slots_.at(one.generation).doubted = true;
    }
    return;
  }
  const wire::EndViewV1 end = wire::DecodeEndV1(request.args).value();
  for (const std::uint32_t index : end.indices) {
    ++doubts_;
    Slot& slot = slots_.at(planned[index]);
    slot.doubted = true;
    // The report names the block: whatever is stored under its key by now is looked at.
    const auto there = present_.find(slot.key);
    if (there != present_.end()) slots_.at(there->second).doubted = true;
  }
}

void Oracle::Disarm(Grant& grant, std::uint32_t rank) {
  const auto armed = grant.armed.find(rank);
  if (armed == grant.armed.end()) return;
  for (const std::uint64_t generation : armed->second) {
    Slot& slot = slots_.at(generation);
    --slot.armed;
    if (!slot.read()) pinned_.erase(generation);
  }
  grant.armed.erase(armed);
}

void Oracle::EndRank(std::map<GrantKey, Grant>::iterator grant, std::uint32_t rank) {
  Disarm(grant->second, rank);
  grant->second.ranks.erase(rank);
  if (!grant->second.ranks.empty()) return;
  instances_.at(grant->first.first).buried.insert(grant->first.second);
  grants_.erase(grant);
}

void Oracle::EndWaiting(std::map<GrantKey, Grant>::iterator grant) {
  std::vector<std::uint32_t> waiting;
  for (const auto& [rank, by] : grant->second.ranks) {
    if (by.is_none()) waiting.push_back(rank);
  }
  for (const std::uint32_t rank : waiting) EndRank(grant, rank);
}

void Oracle::ReleaseAnswered(SessionId id, const SimRequest& request) {
  const Session& session = sessions_.at(id);
  if (!session.registration) return;
  if (request.scalar0 == static_cast<std::uint64_t>(wire::ReleaseKind::kLease)) {
    const auto lease = leases_.find(request.scalar1);
    if (lease != leases_.end() && lease->second.instance == session.instance) leases_.erase(lease);
    return;
  }
  const auto grant = grants_.find({session.instance, request.scalar1});
  if (grant != grants_.end()) {
    EndWaiting(grant);
  } else if (request.scalar1 != 0) {
    instances_.at(session.instance).buried.insert(request.scalar1);
  }
}

}  // namespace orbitkv::sim
