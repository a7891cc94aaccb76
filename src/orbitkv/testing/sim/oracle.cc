#include "orbitkv/testing/sim/oracle.h"

#include <algorithm>

#include "orbitkv/base/check.h"
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::sim {

void Oracle::StartLife(ManagerLife& life) {
  life_ = &life;
  pinned_.clear();
  sessions_.clear();
  instances_.clear();
  leases_.clear();
  grants_.clear();
  reservations_.clear();
  loads_.clear();
  saves_.clear();
  leased_.clear();
  tickets_.clear();
  doubts_ = 0;
  claims_by_others_ = 0;
  TakeOver();
}

// ---- sessions -------------------------------------------------------------------------------------------------------

void Oracle::Opened(SessionId session, std::uint16_t abi) { sessions_[session].abi = abi; }

std::uint32_t Oracle::SpaceOf(const service::Registration& registration, const state::Digest& digest) {
  const auto [found, added] = spaces_.emplace(digest, static_cast<std::uint32_t>(space_of_.size()));
  if (added) space_of_.push_back({.digest = digest, .shards = registration.shard_count, .rules = Rules()});
  // A scheduler may say nothing about groups; a space has blocks only after its workers were here.
  if (!registration.groups.empty()) space_of_[found->second].rules = Rules(registration.groups);
  return found->second;
}

void Oracle::Registered(SessionId session, const service::Registration& registration,
                        const service::RegisterOutcome& outcome) {
  Session& registered = sessions_.at(session);
  Instance& instance = instances_[outcome.instance];
  if (!registered.registration) ++instance.sessions;
  registered.registration = registration;
  registered.instance = outcome.instance;
  bool all_live = true;
  for (std::uint32_t rank = 0; rank < registration.world_size; ++rank) all_live &= RankLive(outcome.instance, rank);
  if (all_live) Expect(outcome.namespace_ready, "all ranks are here and there is no namespace");
  if (!outcome.namespace_ready) {
    Expect(instance.space == 0, "a namespace is gone");
    return;
  }
  const std::uint32_t space = SpaceOf(registration, outcome.namespace_digest);
  Expect(instance.space == space || (instance.space == 0 && all_live), "an instance has another namespace than before");
  instance.space = space;
}

void Oracle::Unregistered(SessionId session) {
  EndHeld(session);
  EndTickets(session);
  sessions_.at(session).registration.reset();
  sessions_.at(session).instance = InstanceId();
}

void Oracle::EndTickets(SessionId id) {
  std::erase_if(tickets_, [id](const auto& ticket) { return ticket.first.first == id; });
}

void Oracle::Detached(SessionId id) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  session->second.detached = true;
  std::erase_if(leases_, [id](const auto& lease) { return lease.second.session == id; });
}

void Oracle::CheckHoldsNothing(SessionId id) {
  const bool writes = std::ranges::any_of(reservations_, [id](const auto& held) { return held.second.session == id; });
  const bool reads = std::ranges::any_of(grants_, [id](const auto& grant) {
    return std::ranges::any_of(grant.second.ranks, [id](const auto& rank) { return rank.second == id; });
  });
  Expect(!writes && !reads, "a session was ended whose process may be copying", {{"session", id.value()}});
}

void Oracle::Ended(SessionId session) {
  EndHeld(session);
  EndTickets(session);
  sessions_.erase(session);
}

// Everything of a session ends: leases, reserved slots, what it has armed, what waits on its word.
void Oracle::EndHeld(SessionId id) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end() || !session->second.registration) return;
  std::erase_if(leases_, [id](const auto& lease) { return lease.second.session == id; });
  for (auto held = reservations_.begin(); held != reservations_.end();) {
    const auto next = std::next(held);
    if (held->second.session == id) AbortReservation(held->first);
    held = next;
  }
  for (auto grant = grants_.begin(); grant != grants_.end();) {
    const auto next = std::next(grant);
    std::vector<std::uint32_t> ended;
    for (const auto& [rank, by] : grant->second.ranks) {
      if (by == id || (by.is_none() && grant->second.beginner == id)) ended.push_back(rank);
    }
    if (grant->second.beginner == id) grant->second.beginner = SessionId();
    for (const std::uint32_t rank : ended) EndRank(grant, rank);
    grant = next;
  }
  const InstanceId instance = session->second.instance;
  if (--instances_.at(instance).sessions == 0) instances_.erase(instance);
}

void Oracle::Verified(const service::VerifyRequest& request, bool equal) {
  const auto slot = slots_.find(request.generation);
  Expect(slot != slots_.end(), "a slot that was never reserved is verified", {{"generation", request.generation}});
  if (slot == slots_.end()) return;
  const bool damaged = life_->memory()->damaged.contains(request.generation);
  Expect(equal != damaged,
         equal ? "damaged bytes were found right" : "the bytes of a slot changed while it was verified",
         {{"generation", request.generation}});
  slot->second.doubted = false;
  const auto present = present_.find(slot->second.key);
  if (!equal && present != present_.end() && present->second == request.generation) present_.erase(present);
}

// ---- answers --------------------------------------------------------------------------------------------------------

WorkBefore Oracle::BeforeWork() const {
  const service::Counters& counters = life_->service().counters();
  return {life_->cache().counters().hits,
          counters.blocks_reserved + counters.blocks_already_here + counters.blocks_not_now};
}

void Oracle::AfterWork(const WorkBefore& before) {
  const WorkBefore after = BeforeWork();
  const std::uint64_t step = shape_.limits.step_hashes;
  Expect(after.reserved - before.reserved <= step, "one turn reserved more blocks than a turn may",
         {{"blocks", after.reserved - before.reserved}});
  Expect(after.looked_at - before.looked_at <= std::max<std::uint64_t>(step, shape_.longest),
         "one turn looked at more blocks than a turn may", {{"blocks", after.looked_at - before.looked_at}});
}

// The last request of a turn may take a whole step.
void Oracle::AfterTurn(const WorkBefore& before) {
  const WorkBefore after = BeforeWork();
  const std::uint64_t step = shape_.limits.step_hashes;
  Expect(after.reserved - before.reserved < 2 * step, "a session had more blocks reserved in one turn than a turn may",
         {{"blocks", after.reserved - before.reserved}});
}

void Oracle::Answered(SessionId session, SimRequest& request, const manager::CommandAnswer& answer,
                      std::uint64_t now_ns) {
  if (request.command == wire::Command::kPing) {
    Expect(answer.status == wire::AnswerStatus::kOk && answer.scalar0 == request.scalar0, "a ping was not echoed");
    return;
  }
  if (!sessions_.at(session).registration) {
    Expect(answer.status != wire::AnswerStatus::kOk, "a session that has not registered was served");
    return;
  }
  switch (request.command) {
    case wire::Command::kQuerySubmit: QueryAnswered(session, request, answer, now_ns); break;
    case wire::Command::kQueryPoll: PollAnswered(session, request, answer, now_ns); break;
    case wire::Command::kQueryClaim: ClaimAnswered(session, request, answer, now_ns); break;
    case wire::Command::kQueryCancel: CancelAnswered(session, request, answer); break;
    case wire::Command::kPublishReserve: ReserveAnswered(session, request, answer); break;
    case wire::Command::kPublishCommit: CommitAnswered(session, request, answer); break;
    case wire::Command::kPublishAbort: {
      const auto held = reservations_.find(request.scalar0);
      if (held != reservations_.end() && held->second.session == session) AbortReservation(request.scalar0);
      break;
    }
    case wire::Command::kRestoreBegin: BeginAnswered(session, request, answer, now_ns); break;
    case wire::Command::kRestorePlan: PlanAnswered(session, request, answer); break;
    case wire::Command::kRestoreEnd: EndAnswered(session, request, answer); break;
    case wire::Command::kRelease: ReleaseAnswered(session, request); break;
    default: break;
  }
}

// In all shards.
bool Oracle::Present(std::uint32_t space, std::uint32_t group, const state::BlockHash& hash) const {
  for (std::uint32_t shard = 0; shard < space_of_[space].shards; ++shard) {
    if (!present_.contains({space, hash, group, shard})) return false;
  }
  return true;
}

bool Oracle::RankLive(InstanceId instance, std::uint32_t rank) const {
  return std::ranges::any_of(sessions_, [&](const auto& one) {
    const Session& session = one.second;
    return !session.detached && session.registration && session.instance == instance &&
           session.registration->role != service::Role::kScheduler && session.registration->rank == Rank(rank);
  });
}

// Looked at when a whole request was answered, which may have given some entries back.
bool Oracle::IndexFull() const {
  constexpr std::uint64_t kGivenBack = 8;
  return life_->cache().gauges().entries + kGivenBack >= shape_.max_blocks;
}

void Oracle::Written(std::uint64_t life, std::uint64_t generation, std::uint64_t write, std::uint64_t checksum) {
  if (life_ == nullptr || life != life_->number()) return;
  const auto slot = slots_.find(generation);
  if (slot == slots_.end()) return;
  slot->second.write = write;
  slot->second.checksum = checksum;
  writes_[checksum] = write;
}

std::optional<std::uint64_t> Oracle::AnyStored(std::uint64_t pick) const {
  if (present_.empty()) return std::nullopt;
  return std::next(present_.begin(), static_cast<std::ptrdiff_t>(pick % present_.size()))->second;
}

std::optional<std::uint64_t> Oracle::AnyRead(std::uint64_t pick) const {
  if (pinned_.empty()) return std::nullopt;
  const std::uint64_t generation = *std::next(pinned_.begin(), static_cast<std::ptrdiff_t>(pick % pinned_.size()));
  return slots_.at(generation).read() ? std::optional(generation) : std::nullopt;
}

// ---- after every step -----------------------------------------------------------------------------------------------

void Oracle::Check() {
  CheckSlots();
  CheckTouched();
  CheckFigures();
  CheckBudgets();
  CheckSessions();
}

// A slot that somebody may be reading or writing is still what it was.
void Oracle::CheckSlots() {
  for (const std::uint64_t generation : pinned_) {
    const Slot& slot = slots_.at(generation);
    const auto record = wire::LoadSlotRecord(life_->table(), slot.record);
    const bool reading = slot.read();
    if (!record || record->generation != generation || record->offset != slot.offset ||
        record->state != (reading ? wire::SlotState::kSealed : wire::SlotState::kWriting)) {
      history_.Violation(reading ? "a slot was freed while somebody may read it" : "a slot was taken from its writer",
                         {{"generation", generation}, {"offset", slot.offset}});
    }
  }
}

void Oracle::CheckFigures() {
  const service::Gauges gauges = life_->service().gauges();
  const cache::CacheGauges& cache = life_->cache().gauges();
  std::uint64_t slots = 0;
  for (const auto& [id, held] : reservations_) {
    slots += held.generations.size() - static_cast<std::size_t>(std::ranges::count(held.generations, 0U));
  }
  std::uint64_t armed = 0;
  std::uint64_t granted = 0;
  for (const auto& [key, grant] : grants_) {
    for (const auto& [rank, by] : grant.ranks) armed += by.is_none() ? 0 : 1;
    granted += grant.pins;
  }
  Expect(gauges.sessions == sessions_.size(), "sessions are miscounted", {{"service", gauges.sessions}});
  Expect(gauges.instances == instances_.size(), "instances are miscounted", {{"service", gauges.instances}});
  Expect(gauges.grants == grants_.size(), "grants are miscounted",
         {{"service", gauges.grants}, {"model", grants_.size()}});
  // A begin that takes several turns pins before it is answered.
  const bool stepping = life_->stepping();
  Expect(gauges.armed_ranks == armed, "armed ranks are miscounted",
         {{"service", gauges.armed_ranks}, {"model", armed}});
  Expect(gauges.reservations == reservations_.size(), "reservations are miscounted",
         {{"service", gauges.reservations}, {"model", reservations_.size()}});
  Expect(stepping ? gauges.reserved_slots >= slots : gauges.reserved_slots == slots, "reserved slots are miscounted",
         {{"service", gauges.reserved_slots}, {"model", slots}});
  Expect(gauges.loads == loads_.size(), "loads are miscounted", {{"service", gauges.loads}, {"model", loads_.size()}});
  Expect(gauges.saves == saves_.size(), "saves are miscounted", {{"service", gauges.saves}, {"model", saves_.size()}});
  Expect(cache.reserved_slots == gauges.reserved_slots + gauges.loads,
         "cache and service disagree about reserved slots");
  Expect(cache.granted_pins >= granted &&
             (stepping || cache.granted_pins <= granted + gauges.verifications + gauges.saves + gauges.held_slots),
         "granted pins are miscounted", {{"cache", cache.granted_pins}, {"model", granted}});
  const std::uint64_t open = gauges.running_queries + gauges.tickets + gauges.warm_ups;
  Expect(gauges.leases + open > 0 || cache.found_pins == 0, "a found pin belongs to nobody");
  // A look-up that repeats a request has the place of the request's lease, and both are open while it runs.
  const std::uint64_t most = shape_.limits.operations_total + gauges.running_queries + gauges.tickets;
  Expect(gauges.leases + gauges.leases_remembered + open <= most, "more operations are open than the limit");
  Expect(gauges.leases + gauges.leases_remembered <= leases_.size(), "more leases are kept than were given",
         {{"service", gauges.leases + gauges.leases_remembered}, {"model", leases_.size()}});
}

// Budgets and limits; of each kind of bytes one block is always allowed.
void Oracle::CheckBudgets() {
  const service::Gauges gauges = life_->service().gauges();
  const pool::PoolGauges& pool = life_->cache().pool().gauges();
  const std::uint64_t block = shape_.largest_block_bytes();
  Expect(gauges.warm_ups <= shape_.limits.warm_ups, "more warm-ups wait than the limit");
  Expect(gauges.load_bytes <= std::max(shape_.limits.load_bytes(), block), "more bytes are read than permitted",
         {{"bytes", gauges.load_bytes}});
  Expect(gauges.save_bytes <= std::max(shape_.limits.save_bytes_in_flight(), shape_.largest_slot_bytes()),
         "more bytes are being saved than permitted", {{"bytes", gauges.save_bytes}});
  Expect(gauges.saves_in_line <= shape_.limits.save_queue, "more blocks wait to be saved than the limit");
  Expect(gauges.verifications <= shape_.limits.verifications, "more verifications are open than the limit");
  Expect(pool.used_bytes <= pool.slab_bytes && pool.slab_bytes <= shape_.pool.pool_bytes, "the pool is beyond its size",
         {{"used", pool.used_bytes}, {"slabs", pool.slab_bytes}});
  const std::uint64_t entries = life_->cache().gauges().entries;
  Expect(entries <= shape_.max_blocks, "the index is beyond its size", {{"entries", entries}});
  const std::uint64_t leased = std::max(shape_.limits.lease_bytes_per_instance(), block);
  Expect(gauges.leased_bytes <= leased * std::max<std::uint64_t>(1, gauges.instances), "leases are beyond their budget",
         {{"bytes", gauges.leased_bytes}});
}

// What each session holds, those among them whose connection is gone.
void Oracle::CheckSessions() {
  struct Held {
    std::uint64_t armed = 0;
    std::uint64_t reserved_bytes = 0;
  };
  std::map<SessionId, Held> model;
  for (const auto& [key, grant] : grants_) {
    for (const auto& [rank, by] : grant.ranks) {
      if (!by.is_none()) ++model[by].armed;
    }
  }
  for (const auto& [id, reservation] : reservations_) {
    for (const std::uint64_t generation : reservation.generations) {
      if (generation != 0) model[reservation.session].reserved_bytes += slots_.at(generation).bytes;
    }
  }
  const std::uint64_t most = std::max(shape_.limits.reserved_bytes_per_session(), shape_.largest_slot_bytes());
  for (const service::SessionStatus& session : life_->service().sessions()) {
    const auto known = sessions_.find(session.id);
    const Held held = model[session.id];
    const std::uint64_t id = session.id.value();
    Expect(known != sessions_.end() && known->second.detached == session.detached,
           "a session is open that the model does not know so", {{"session", id}});
    Expect(session.armed_ranks == held.armed, "a session's armed ranks are miscounted",
           {{"session", id}, {"service", session.armed_ranks}, {"model", held.armed}});
    // A reserve that takes several turns has slots before it is answered.
    Expect(session.reserved_bytes == held.reserved_bytes ||
               (life_->stepping() && session.reserved_bytes > held.reserved_bytes),
           "a session's reserved bytes are miscounted",
           {{"session", id}, {"service", session.reserved_bytes}, {"model", held.reserved_bytes}});
    Expect(session.reserved_bytes <= most, "a session's reserved slots are beyond its budget",
           {{"session", id}, {"bytes", session.reserved_bytes}});
  }
}

void Oracle::CheckQuiet(bool gone) {
  const service::Gauges gauges = life_->service().gauges();
  const cache::CacheGauges& cache = life_->cache().gauges();
  const std::pair<const char*, std::uint64_t> left[] = {
      {"running queries are left", gauges.running_queries},
      {"leases are left", gauges.leases},
      {"remembered answers are left", gauges.leases_remembered},
      {"hashes are left", gauges.hashes},
      {"grants are left", gauges.grants},
      {"armed ranks are left", gauges.armed_ranks},
      {"leased bytes are left", gauges.leased_bytes},
      {"running reserves are left", gauges.running_reserves},
      {"reservations are left", gauges.reservations},
      {"reserved slots are left", gauges.reserved_slots},
      {"reserved bytes are left", gauges.reserved_bytes},
      {"verifications are left", gauges.verifications},
      {"earlier sessions are left", gauges.earlier_sessions},
      {"slots are left held for them", gauges.held_slots},
      {"tickets are left", gauges.tickets},
      {"warm-ups are left", gauges.warm_ups},
      {"loads are left", gauges.loads},
      {"permits are left", gauges.load_bytes},
      {"saves are left", gauges.saves},
      {"bytes of saves are left", gauges.save_bytes},
      {"blocks are left in line to be saved", gauges.saves_in_line},
      {"found pins are left", cache.found_pins},
      {"granted pins are left", cache.granted_pins},
      {"slots reserved in the cache are left", cache.reserved_slots},
      {"suspect components are left", cache.suspect},
      {"draining slots are left", cache.draining},
      {"writing slots are left in the pool", life_->cache().pool().gauges().slots_writing},
      {"sessions are left", gone ? gauges.sessions : 0},
      {"detached sessions are left", gone ? gauges.sessions_detached : 0},
      {"instances are left", gone ? gauges.instances : 0},
      {"admissions are left", gone ? gauges.admissions : 0},
      {"tombstones are left", gone ? gauges.tombstones : 0},
  };
  for (const auto& [what, count] : left) Expect(count == 0, what, {{"count", count}});
}

}  // namespace orbitkv::sim
