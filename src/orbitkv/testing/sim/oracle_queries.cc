// The oracle's view of look-ups: what may be offered, which lease goes with it, and how operations end.
#include <algorithm>

#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::sim {

Oracle::Demand::Demand(const wire::QueryView& query)
    : request(query.header.request_key_hi, query.header.request_key_lo),
      leases(query.header.mode != wire::QueryMode::kDiscovery && query.header.mode != wire::QueryMode::kWarmUp),
      whole(query.header.mode == wire::QueryMode::kFullPrefix || query.header.mode == wire::QueryMode::kSelected),
      one(query.header.mode == wire::QueryMode::kSelected),
      prepared(query.header.mode == wire::QueryMode::kPrepare),
      warm(query.header.mode == wire::QueryMode::kWarmUp),
      could(query.header.mode == wire::QueryMode::kDiscovery) {
  const auto add = [&](std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = first; i < first + count; ++i) {
      hashes.push_back(query.hashes[i]);
    }
  };
  if (!one) add(0, query.header.hash_count);
  for (const wire::HashView& view : query.views) add(view.first, view.count);
}

void Oracle::QueryAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                           std::uint64_t now_ns) {
  const bool old = sessions_.at(id).abi == 1;
  const auto query = old ? wire::DecodeQueryV1(request.args()) : wire::DecodeQuery(request.args());
  if (!query) {
    Expect(answer.status != wire::AnswerStatus::kOk, "a query that makes no sense was answered");
    return;
  }
  const Demand demand(*query);
  const std::uint64_t operation = old ? 0 : request.scalar0;
  const auto revision = static_cast<std::uint32_t>(request.scalar1);
  if (answer.status == wire::AnswerStatus::kNotYet) {
    Ticket& ticket = tickets_[{id, operation}];
    Expect(operation != 0, "a query without an operation is loading");
    Expect(!ticket.over, "an operation that is over is loading again", {{"operation", operation}});
    ticket = {.revision = revision, .over = false, .demand = demand};
    return;
  }
  if (answer.status != wire::AnswerStatus::kOk) return;
  if (operation != 0) {
    Ticket& ticket = tickets_[{id, operation}];
    Expect(!ticket.over, "an operation has two answers", {{"operation", operation}});
    ticket = {.revision = revision, .over = true, .demand = {}};
  }
  Offered({.session = id,
           .lease = answer.scalar0,
           .found = static_cast<std::uint32_t>(answer.scalar1),
           .reason = static_cast<wire::MissReason>(answer.scalar1 >> 32U),
           .now_ns = now_ns,
           .fresh = true,
           .stepped = request.stepped},
          demand);
}

// What is offered was stored under its key, and a lease goes with it if the mode has one.
void Oracle::Offered(const Offer& offer, Demand demand) {
  const std::uint32_t found = offer.found;
  if (found > demand.hashes.size() || (demand.whole && found != 0 && found < demand.hashes.size())) {
    history_.Violation("a query was answered with another number of blocks than it may be", {{"found", found}});
    return;
  }
  if (demand.warm) {
    Expect(offer.lease == 0, "a warm-up was given a lease");
    return;
  }
  const Session& session = sessions_.at(offer.session);
  const std::uint32_t space = instances_.at(session.instance).space;
  Expect((offer.lease != 0) == (demand.leases && found != 0), "blocks without a lease, or a lease without blocks");
  const bool says_why = offer.reason != wire::MissReason::kNone && offer.reason != wire::MissReason::kTooLate;
  Expect(found == 0 || !says_why, "a hit has the reason of a miss");
  Expect(found != 0 || offer.reason != wire::MissReason::kNone, "a miss has no reason");
  Expect((space == 0) == (offer.reason == wire::MissReason::kNoNamespace),
         "a query does not know whether it has a namespace");
  if (space == 0) return;
  std::uint32_t there = 0;
  const auto is_there = [&](const state::BlockHash& hash) {
    return demand.could ? Available(space, hash) : Present(space, hash);
  };
  while (there < demand.hashes.size() && is_there(demand.hashes[there])) ++there;
  if (offer.fresh && (!offer.stepped || (demand.leases && doubts_ == 0))) {
    Expect(found <= there, "a block was offered that nobody stored under this key",
           {{"found", found}, {"there", there}});
  }
  if (offer.fresh && !demand.could && NothingTaken() && life_->service().counters().query_blocks_over_budget == 0) {
    const std::uint32_t all = demand.whole && there < demand.hashes.size() ? 0 : there;
    Expect(found == all, "a block that was stored is not offered", {{"found", found}, {"there", there}});
  }
  if (!demand.leases) return;
  std::erase_if(leases_, [&](const auto& lease) {
    return lease.second.instance == session.instance && lease.second.request == demand.request;
  });
  if (found == 0) return;
  Expect(!leased_.contains(offer.lease), "a lease's id came twice", {{"lease", offer.lease}});
  leased_.insert(offer.lease);
  demand.hashes.resize(found);
  leases_[offer.lease] = {.session = offer.session,
                          .instance = session.instance,
                          .request = demand.request,
                          .hashes = std::move(demand.hashes),
                          .whole = demand.one,
                          .answered_ns = offer.fresh && !offer.stepped ? offer.now_ns : 0,
                          .revoked = life_->service().counters().leases_revoked,
                          .doubts = doubts_};
}

void Oracle::PollAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                          std::uint64_t now_ns) {
  if (answer.status != wire::AnswerStatus::kOk) return;
  const auto poll = wire::DecodePoll(request.args());
  const auto told = wire::DecodePollAnswer(answer.payload);
  if (!poll || !told || told->entries.size() != poll->size()) {
    history_.Violation("a poll was answered with something else");
    return;
  }
  for (std::size_t i = 0; i < poll->size(); ++i) {
    const wire::PollEntry& entry = told->entries[i];
    Expect(entry.operation == (*poll)[i].operation, "a poll's entries are out of order");
    const auto found = tickets_.find({id, entry.operation});
    const bool open = found != tickets_.end() && !found->second.over;
    const bool live = open && found->second.revision == (*poll)[i].revision;
    switch (static_cast<wire::TicketState>(entry.state)) {
      case wire::TicketState::kLoading:
        Expect(live, "an operation is loading that is not open", {{"operation", entry.operation}});
        break;
      case wire::TicketState::kReady:
        Expect(live, "an operation has two answers, or one without a question", {{"operation", entry.operation}});
        if (!live) break;
        // A preparation stays until it is claimed.
        found->second.over = !found->second.demand.prepared;
        if (!found->second.demand.prepared) {
          Offered({.session = id,
                   .lease = entry.lease,
                   .found = entry.found,
                   .reason = static_cast<wire::MissReason>(entry.reason),
                   .now_ns = now_ns,
                   .fresh = false},
                  found->second.demand);
        }
        break;
      case wire::TicketState::kStaleRevision:
        Expect(!live, "the live revision is called stale", {{"operation", entry.operation}});
        break;
      case wire::TicketState::kUnknown:
        Expect(!live, "an open operation is unknown", {{"operation", entry.operation}});
        break;
      case wire::TicketState::kNotAdmitted:
      case wire::TicketState::kTimedOut:
      case wire::TicketState::kCancelled:
        Expect(found != tickets_.end(), "an operation that was never submitted has ended");
        if (found != tickets_.end()) found->second.over = true;
        break;
    }
  }
}

void Oracle::ClaimAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                           std::uint64_t now_ns) {
  const auto claim = wire::DecodeClaim(request.args());
  if (answer.status != wire::AnswerStatus::kOk || !claim) return;
  const auto found = tickets_.find({id, claim->operation});
  const bool live = found != tickets_.end() && !found->second.over && found->second.demand.prepared;
  Expect(live && found->second.revision == claim->revision, "a claim was answered with what was not prepared for it",
         {{"operation", claim->operation}});
  if (!live) return;
  found->second.over = true;
  Offered({.session = id,
           .lease = answer.scalar0,
           .found = static_cast<std::uint32_t>(answer.scalar1),
           .reason = static_cast<wire::MissReason>(answer.scalar1 >> 32U),
           .now_ns = now_ns,
           .fresh = false},
          found->second.demand);
}

void Oracle::CancelAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer) {
  if (answer.status != wire::AnswerStatus::kOk) return;
  const auto found = tickets_.find({id, request.scalar0});
  const bool live = found != tickets_.end() && found->second.revision == request.scalar1;
  Expect(live, "a revision was cancelled that is not live", {{"operation", request.scalar0}});
  if (live) found->second.over = true;
}

// In the pool or behind it.
bool Oracle::Available(std::uint32_t space, const state::BlockHash& hash) const {
  for (std::uint32_t shard = 0; shard < space_of_[space].shards; ++shard) {
    const service::ComponentKey key{
        .namespace_digest = space_of_[space].digest, .hash = hash, .group = 0, .shard = shard, .slot_bytes = 0};
    if (!present_.contains({space, hash, shard}) && life_->store().Find(key) == nullptr) return false;
  }
  return true;
}

// Nothing was ever taken away in this life, so all that was stored is there.
bool Oracle::NothingTaken() const {
  const cache::CacheCounters& counters = life_->cache().counters();
  return counters.evictions == 0 && counters.dropped == 0 && life_->cache().gauges().suspect == 0;
}

}  // namespace orbitkv::sim
