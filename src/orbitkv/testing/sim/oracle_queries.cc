// The oracle's view of look-ups: what may be offered, which lease goes with it, and how operations end.
#include <algorithm>

#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::sim {

Oracle::Demand::Demand(const wire::QueryView& query, bool single)
    : request(query.header.request_key_hi, query.header.request_key_lo),
      leases(query.header.mode != wire::QueryMode::kDiscovery && query.header.mode != wire::QueryMode::kWarmUp),
      whole(query.header.mode == wire::QueryMode::kFullPrefix || query.header.mode == wire::QueryMode::kSelected),
      one(query.header.mode == wire::QueryMode::kSelected),
      picked(one && single),
      prepared(query.header.mode == wire::QueryMode::kPrepare),
      warm(query.header.mode == wire::QueryMode::kWarmUp),
      could(query.header.mode == wire::QueryMode::kDiscovery),
      consumer(query.header.consumer_key_hi, query.header.consumer_key_lo),
      prefix(picked ? 0 : query.header.prefix_blocks) {
  if (!picked) {
    hashes.assign(query.hashes.begin(), query.hashes.end());
    return;
  }
  for (const wire::HashView& view : query.views) {
    const auto part = query.hashes.subspan(view.first, view.count);
    hashes.insert(hashes.end(), part.begin(), part.end());
  }
}

void Oracle::QueryAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                           std::uint64_t now_ns) {
  const bool old = sessions_.at(id).abi == 1;
  const auto query = old ? wire::DecodeQueryV1(request.args) : wire::DecodeQuery(request.args);
  if (!query) {
    Expect(answer.status != wire::AnswerStatus::kOk, "a query that makes no sense was answered");
    return;
  }
  const InstanceId instance = sessions_.at(id).instance;
  const Demand demand(*query, space_of_[instances_.at(instance).space].rules.single());
  const std::uint64_t operation = old ? 0 : request.scalar0;
  const auto revision = static_cast<std::uint32_t>(request.scalar1);
  if (answer.status == wire::AnswerStatus::kNotYet) {
    Ticket& ticket = tickets_[{id, operation}];
    Expect(operation != 0, "a query without an operation is loading");
    Expect(!ticket.over, "an operation that is over is loading again", {{"operation", operation}});
    ticket = {.revision = revision, .over = false, .instance = instance, .demand = demand};
    return;
  }
  if (answer.status != wire::AnswerStatus::kOk) return;
  if (operation != 0) {
    Ticket& ticket = tickets_[{id, operation}];
    Expect(!ticket.over, "an operation has two answers", {{"operation", operation}});
    ticket = {.revision = revision, .over = true, .instance = instance, .demand = {}};
  }
  const auto boundaries = wire::DecodeBoundaries(answer.payload);
  Expect(boundaries.has_value(), "the boundaries of an answer make no sense");
  Offered({.session = id,
           .lease = answer.scalar0,
           .found = static_cast<std::uint32_t>(answer.scalar1),
           .boundaries = boundaries.value_or(std::span<const std::uint32_t>()),
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
  const bool may_have_part = offer.reason == wire::MissReason::kNone || offer.reason == wire::MissReason::kTooLate ||
                             offer.reason == wire::MissReason::kRecompute;
  Expect(found == 0 || may_have_part, "a hit has the reason of a miss");
  Expect(found != 0 || offer.reason != wire::MissReason::kNone, "a miss has no reason");
  Expect((space == 0) == (offer.reason == wire::MissReason::kNoNamespace),
         "a query does not know whether it has a namespace");
  if (space == 0) return;
  const std::vector<std::uint32_t> boundaries = BoundariesOf(offer, demand, space);
  if (offer.fresh) CheckOffer(offer, demand, space);
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
                          .prefix = demand.prefix,
                          .boundaries = boundaries,
                          .answered_ns = offer.fresh && !offer.stepped ? offer.now_ns : 0,
                          .revoked = life_->service().counters().leases_revoked,
                          .doubts = doubts_};
}

// Where the client may stop, by what it was told.
std::vector<std::uint32_t> Oracle::BoundariesOf(const Offer& offer, const Demand& demand, std::uint32_t space) {
  std::vector<std::uint32_t> boundaries(offer.boundaries.begin(), offer.boundaries.end());
  const bool says_which = demand.one || !space_of_[space].rules.single();
  Expect(boundaries.empty() || says_which, "an answer names boundaries where every one is legal");
  Expect(!says_which || boundaries.empty() == (offer.found == 0), "blocks without a boundary to stop at");
  Expect(std::ranges::is_sorted(boundaries) && (boundaries.empty() || boundaries.back() == offer.found),
         "an answer's boundaries are not those up to what was found");
  if (says_which) return boundaries;
  for (std::uint32_t boundary = 1; boundary <= offer.found; ++boundary) boundaries.push_back(boundary);
  return boundaries;
}

// A fresh answer against the rules: each boundary's needs are there, and none is kept back.
void Oracle::CheckOffer(const Offer& offer, const Demand& demand, std::uint32_t space) {
  const Rules& rules = space_of_[space].rules;
  std::vector<std::uint32_t> legal =
      rules.Boundaries(demand.prefix, static_cast<std::uint32_t>(demand.hashes.size()), [&](Place place) {
        const state::BlockHash& hash = demand.hashes[place.index];
        return demand.could ? Available(space, place.group, hash) : Present(space, place.group, hash);
      });
  if (demand.whole) {
    // Of one group all of it is found, and any part may be taken.
    const bool all = !legal.empty() && legal.back() == demand.hashes.size();
    const bool parts = all && rules.single() && !demand.picked;
    std::erase_if(legal, [&](std::uint32_t boundary) { return !parts && boundary != demand.hashes.size(); });
  }
  std::vector<std::uint32_t> offered = BoundariesOf(offer, demand, space);
  const std::uint64_t most = legal.empty() ? 0 : legal.back();
  if (!offer.stepped || (demand.leases && doubts_ == 0)) {
    Expect(std::ranges::includes(legal, offered), "a boundary was offered whose blocks nobody stored",
           {{"found", offer.found}, {"legal", most}});
  }
  // Who speaks version 1 cannot be told where it may stop.
  if (sessions_.at(offer.session).abi == 1 && !rules.single()) {
    Expect(offer.found == 0, "a session was offered boundaries that it cannot know");
    return;
  }
  const bool all = NothingTaken() && life_->service().counters().query_blocks_over_budget == 0;
  if (demand.could || offer.stepped || !all) return;
  Expect(offered == legal, "a boundary whose blocks were stored is not offered",
         {{"found", offer.found}, {"legal", most}});
}

void Oracle::PollAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                          std::uint64_t now_ns) {
  if (answer.status != wire::AnswerStatus::kOk) return;
  const auto poll = wire::DecodePoll(request.args);
  const auto told = wire::DecodePollAnswer(answer.payload);
  if (!poll || !told || told->entries.size() != poll->size()) {
    history_.Violation("a poll was answered with something else");
    return;
  }
  std::size_t behind = 0;  // boundaries of the entries before
  for (std::size_t i = 0; i < poll->size(); ++i) {
    const wire::PollEntry& entry = told->entries[i];
    const auto boundaries = told->boundaries.subspan(behind, entry.boundary_count);
    behind += entry.boundary_count;
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
                   .boundaries = boundaries,
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

// Whoever of the instance claims for the consumer gets what the newest preparation for it has found.
void Oracle::ClaimAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer,
                           std::uint64_t now_ns) {
  const auto claim = wire::DecodeClaim(request.args);
  const bool told = answer.status == wire::AnswerStatus::kOk || answer.status == wire::AnswerStatus::kNotYet;
  if (!told || !claim) return;
  const InstanceId instance = sessions_.at(id).instance;
  const auto found = std::ranges::find_if(tickets_, [&](const auto& one) {
    const Ticket& ticket = one.second;
    return ticket.instance == instance && !ticket.over && ticket.demand.prepared &&
           ticket.demand.consumer == std::pair(claim->consumer_key_hi, claim->consumer_key_lo) &&
           ticket.revision == claim->revision && (claim->operation == 0 || one.first.second == claim->operation);
  });
  Expect(found != tickets_.end(), "a claim was answered with what was not prepared for it",
         {{"operation", claim->operation}});
  if (found == tickets_.end() || answer.status == wire::AnswerStatus::kNotYet) return;
  if (found->first.first != id) ++claims_by_others_;
  found->second.over = true;
  const auto boundaries = wire::DecodeBoundaries(answer.payload);
  Expect(boundaries.has_value(), "the boundaries of a claim make no sense");
  Offered({.session = id,
           .lease = answer.scalar0,
           .found = static_cast<std::uint32_t>(answer.scalar1),
           .boundaries = boundaries.value_or(std::span<const std::uint32_t>()),
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
bool Oracle::Available(std::uint32_t space, std::uint32_t group, const state::BlockHash& hash) const {
  for (std::uint32_t shard = 0; shard < space_of_[space].shards; ++shard) {
    const service::ComponentKey key{
        {.namespace_digest = space_of_[space].digest, .hash = hash, .group = group, .shard = shard}, 0};
    if (!present_.contains({space, hash, group, shard}) && !life_->Behind(key)) return false;
  }
  return true;
}

// Nothing was ever taken away in this life, so all that was stored is there.
bool Oracle::NothingTaken() const {
  const cache::CacheCounters& counters = life_->cache().counters();
  return counters.evictions == 0 && counters.dropped == 0 && life_->cache().gauges().suspect == 0;
}

}  // namespace orbitkv::sim
