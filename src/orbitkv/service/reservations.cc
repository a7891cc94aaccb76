#include "orbitkv/service/reservations.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {
namespace {

// Hash blocks that one block of the group takes.
std::uint32_t RatioOf(const std::vector<state::GroupShape>& groups, std::uint32_t group) {
  return groups[group].block_tokens / state::HashBlockTokens(groups);
}

}  // namespace

Status Reservations::Check(const Session& session, const wire::ReserveView& reserve) const {
  if (!session.IsWorker()) return Fail(Code::kRefused, "a scheduler has no shard to publish");
  if (reserve.header.shard != session.registration->shard) {
    return Fail(Code::kRefused, "the session is not registered for this shard", reserve.header.shard,
                session.registration->shard);
  }
  const std::vector<state::GroupShape>& groups = session.registration->groups;
  if (reserve.header.group >= groups.size()) {
    return Fail(Code::kInvalid, "the instance has no such cache group", reserve.header.group);
  }
  const std::uint32_t slot_bytes = SlotBytes(groups[reserve.header.group]);
  if (reserve.header.slot_bytes != slot_bytes) {
    return Fail(Code::kInvalid, "slot_bytes differs from what was registered", reserve.header.slot_bytes, slot_bytes);
  }
  if (reserve.hashes.empty() || reserve.hashes.size() > wire::kMaxBlocksPerReserve) {
    return Fail(Code::kInvalid, "too few or too many blocks in one reserve", reserve.hashes.size(),
                wire::kMaxBlocksPerReserve);
  }
  const std::uint64_t end = std::uint64_t{reserve.header.first_depth} + reserve.hashes.size();
  if (end * RatioOf(groups, reserve.header.group) > state::kMaxPosition) {
    return Fail(Code::kInvalid, "the depth is out of range", reserve.header.first_depth);
  }
  if (session.reservations >= limits_.reservations_per_session) {
    return Fail(Code::kBusy, "too many reservations are open: commit or abort some", session.reservations);
  }
  return {};
}

Result<ReserveOutcome> Reservations::Start(Session& session, const wire::ReserveView& reserve, std::uint64_t now_ns,
                                           std::vector<wire::ReserveEntry>& out) {
  out.clear();
  ORBITKV_TRY(Check(session, reserve));
  Reserve started;
  started.reservation.session = &session;
  started.reservation.header = reserve.header;
  started.reservation.blocks.resize(reserve.hashes.size());
  for (std::size_t i = 0; i < reserve.hashes.size(); ++i) started.reservation.blocks[i].hash = reserve.hashes[i];
  if (reserve.hashes.size() <= limits_.step_hashes) return Step(started, now_ns, out);
  Reserve& running = running_.emplace(session.id, std::move(started)).first->second;
  const ReserveOutcome outcome = Step(running, now_ns, out);
  if (!outcome.more) running_.erase(session.id);
  return outcome;
}

Result<ReserveOutcome> Reservations::Continue(Session& session, std::uint64_t now_ns,
                                              std::vector<wire::ReserveEntry>& out) {
  const auto running = running_.find(session.id);
  if (running == running_.end()) return Fail(Code::kInvalid, "no reserve of this session is running");
  const ReserveOutcome outcome = Step(running->second, now_ns, out);
  if (!outcome.more) running_.erase(running);
  return outcome;
}

ReserveOutcome Reservations::Step(Reserve& reserve, std::uint64_t now_ns, std::vector<wire::ReserveEntry>& out) {
  std::vector<Block>& blocks = reserve.reservation.blocks;
  const std::size_t end = std::min(blocks.size(), reserve.looked_at + limits_.step_hashes);
  out.reserve(out.size() + end - reserve.looked_at);
  for (; reserve.looked_at < end; ++reserve.looked_at) {
    out.push_back(ReserveBlock(reserve, blocks[reserve.looked_at], now_ns));
  }
  if (end < blocks.size()) return {.more = true};
  if (reserve.reservation.open_slots == 0) return {};
  reserve.reservation.reserved_ns = now_ns;
  const ReservationId id(next_reservation_++);
  ++reserve.reservation.session->reservations;
  reservations_.emplace_hint(reservations_.end(), id, std::move(reserve.reservation));
  return {.reservation = id};
}

// The group's block before, none for its first one.
std::optional<state::BlockHash> Reservations::ParentOf(const Reservation& reservation, std::uint32_t index) {
  if (index > 0) return reservation.blocks[index - 1].hash;
  if (reservation.header.first_depth > 0) return reservation.header.parent;
  return std::nullopt;
}

wire::ReserveEntry Reservations::ReserveBlock(Reserve& reserve, Block& block, std::uint64_t now_ns) {
  Session& session = *reserve.reservation.session;
  const Instance& instance = *session.instance;
  const wire::ReserveHeader& header = reserve.reservation.header;
  wire::ReserveEntry entry{.offset = 0,
                           .generation = 0,
                           .slot_bytes = header.slot_bytes,
                           .status = static_cast<std::uint32_t>(wire::ReserveStatus::kNotNow)};
  if (instance.space == nullptr) {  // no name to store a block under
    ++counters_.blocks_not_now;
    reserve.stopped = true;  // also when a namespace is formed between two steps
    return entry;
  }
  Admissions& admissions = admissions_
                               .try_emplace(instance.id, instance.space->contract.group_count() * instance.shard_count,
                                            limits_.admissions_remembered)
                               .first->second;
  const std::uint32_t component = instance.space->ComponentOf(header.group, header.shard);
  const std::optional<bool> decided = admissions.Ask(block.hash, component);
  const bool over_budget =
      session.reserved_bytes > 0 &&
      session.reserved_bytes + pool::Pool::SlotBytes(header.slot_bytes) > limits_.reserved_bytes_per_session();
  cache::ReserveOutcome outcome;
  if (!reserve.stopped && !over_budget && decided.value_or(true)) {
    const auto index = static_cast<std::uint32_t>(reserve.looked_at);
    outcome = cache_.Reserve({.row = instance.space->row,
                              .hash = block.hash,
                              .component = component,
                              .parent = ParentOf(reserve.reservation, index),
                              .depth = instance.space->contract.KeyPosition(header.group, header.first_depth + index)},
                             now_ns);
  }
  if (!decided) admissions.Decide(block.hash, component, outcome.status != cache::ReserveStatus::kNotNow);
  switch (outcome.status) {
    case cache::ReserveStatus::kHaveIt:
      ++counters_.blocks_already_here;
      entry.status = static_cast<std::uint32_t>(wire::ReserveStatus::kHaveIt);
      break;
    case cache::ReserveStatus::kSlot:
      ++counters_.blocks_reserved;
      entry.status = static_cast<std::uint32_t>(wire::ReserveStatus::kSlot);
      entry.offset = outcome.slot.offset;
      entry.generation = outcome.slot.generation;
      block.slot = outcome.slot.index;
      block.generation = outcome.slot.generation;
      block.slot_bytes = outcome.slot.slot_bytes;
      session.List(block.slot);
      ++reserve.reservation.open_slots;
      ++reserved_slots_;
      reserved_bytes_ += block.slot_bytes;
      session.reserved_bytes += block.slot_bytes;
      break;
    case cache::ReserveStatus::kNotNow:
      ++counters_.blocks_not_now;
      if (over_budget && !reserve.stopped) ++counters_.blocks_over_budget;
      reserve.stopped = true;
      break;
  }
  return entry;
}

CommitProgress Reservations::Commit(const Session& session, ReservationId reservation, const wire::CommitView& commit,
                                    std::uint64_t now_ns, std::vector<std::uint32_t>& outcomes) {
  outcomes.clear();
  outcomes.reserve(commit.entries.size());
  CommitProgress progress = StepCommit(session, reservation, commit.entries, now_ns, outcomes);
  if (progress.more) {
    committing_[session.id] = {reservation, {commit.entries.begin(), commit.entries.end()}, progress.stored};
  }
  return progress;
}

Result<CommitProgress> Reservations::ContinueCommit(const Session& session, std::uint64_t now_ns,
                                                    std::vector<std::uint32_t>& outcomes) {
  const auto running = committing_.find(session.id);
  if (running == committing_.end()) return Fail(Code::kInvalid, "no commit of this session is running");
  OpenCommit& commit = running->second;
  CommitProgress progress = StepCommit(session, commit.reservation, commit.entries, now_ns, outcomes);
  progress.stored = commit.stored += progress.stored;
  if (!progress.more) committing_.erase(running);
  return progress;
}

// Goes on behind the outcomes that there are.
CommitProgress Reservations::StepCommit(const Session& session, ReservationId reservation,
                                        std::span<const wire::CommitEntry> entries, std::uint64_t now_ns,
                                        std::vector<std::uint32_t>& outcomes) {
  const auto found = Find(session, reservation);
  const std::size_t end = std::min<std::size_t>(entries.size(), outcomes.size() + limits_.step_hashes);
  CommitProgress progress;
  for (std::size_t i = outcomes.size(); i < end; ++i) {
    const wire::CommitOutcome outcome =
        found == reservations_.end() ? wire::CommitOutcome::kLost : CommitBlock(found->second, entries[i], now_ns);
    switch (outcome) {
      case wire::CommitOutcome::kStored:
        ++progress.stored;
        ++counters_.blocks_stored;
        counters_.bytes_stored += found->second.header.slot_bytes;
        break;
      case wire::CommitOutcome::kAlreadyThere: ++counters_.blocks_already_there; break;
      case wire::CommitOutcome::kLost: ++counters_.blocks_lost; break;
    }
    outcomes.push_back(static_cast<std::uint32_t>(outcome));
  }
  if (found != reservations_.end() && found->second.open_slots == 0) Erase(found);
  progress.more = end < entries.size();
  return progress;
}

wire::CommitOutcome Reservations::CommitBlock(Reservation& reservation, const wire::CommitEntry& entry,
                                              std::uint64_t now_ns) {
  if (entry.index >= reservation.blocks.size()) return wire::CommitOutcome::kLost;
  Block& block = reservation.blocks[entry.index];
  if (block.slot.is_none() || block.generation != entry.generation) return wire::CommitOutcome::kLost;
  const wire::ReserveHeader& header = reservation.header;
  const Namespace& space = *reservation.session->instance->space;
  cache::CommitRequest request;
  request.row = space.row;
  request.hash = block.hash;
  request.depth = space.contract.KeyPosition(header.group, header.first_depth + entry.index);
  request.parent = ParentOf(reservation, entry.index);
  request.component = space.ComponentOf(header.group, header.shard);
  request.slot = block.slot;
  request.generation = block.generation;
  request.checksum = entry.slot_checksum;
  request.prompt_tokens = header.prompt_tokens;
  request.answer_tokens = header.answer_tokens;
  const cache::CommitOutcome outcome = cache_.Commit(request, now_ns);
  CloseSlot(reservation, block);
  switch (outcome) {
    case cache::CommitOutcome::kStored: saves_.Stored(space, request.hash); return wire::CommitOutcome::kStored;
    case cache::CommitOutcome::kAlreadyThere: return wire::CommitOutcome::kAlreadyThere;
    case cache::CommitOutcome::kLost: break;
  }
  return wire::CommitOutcome::kLost;
}

void Reservations::Abort(const Session& session, ReservationId reservation) {
  const auto found = Find(session, reservation);
  if (found == reservations_.end()) return;
  AbortSlots(found->second);
  Erase(found);
}

void Reservations::CancelRunning(Session& session) {
  // What was committed stays; the slots of the rest are the reservation's.
  committing_.erase(session.id);
  const auto running = running_.find(session.id);
  if (running == running_.end()) return;
  AbortSlots(running->second.reservation);
  running_.erase(running);
}

void Reservations::EndSession(Session& session) {
  CancelRunning(session);
  for (auto found = reservations_.begin(); found != reservations_.end() && session.reservations > 0;) {
    const auto next = std::next(found);
    if (found->second.session == &session) {
      AbortSlots(found->second);
      Erase(found);
    }
    found = next;
  }
  ORBITKV_CHECK(session.reservations == 0 && session.reserved_bytes == 0);
}

// One reservation in a call, so that no call takes long.
void Reservations::Tick(std::uint64_t now_ns) {
  const auto oldest = reservations_.lower_bound(first_holding_);
  if (oldest == reservations_.end() || now_ns - oldest->second.reserved_ns < limits_.reservation_holds_ns) return;
  for (const Block& block : oldest->second.blocks) {
    if (!block.slot.is_none()) cache_.LetParentGo(block.slot, block.generation);
  }
  first_holding_ = ReservationId(oldest->first.value() + 1);
}

std::optional<std::uint64_t> Reservations::NextDeadline() const {
  const auto oldest = reservations_.lower_bound(first_holding_);
  if (oldest == reservations_.end()) return std::nullopt;
  return oldest->second.reserved_ns + limits_.reservation_holds_ns;
}

Reservations::ReservationMap::iterator Reservations::Find(const Session& session, ReservationId reservation) {
  const auto found = reservations_.find(reservation);
  return found != reservations_.end() && found->second.session == &session ? found : reservations_.end();
}

void Reservations::CloseSlot(Reservation& reservation, Block& block) {
  --reservation.open_slots;
  --reserved_slots_;
  reserved_bytes_ -= block.slot_bytes;
  reservation.session->reserved_bytes -= block.slot_bytes;
  reservation.session->Unlist(block.slot);
  block.slot = pool::SlotIndex();
}

void Reservations::AbortSlots(Reservation& reservation) {
  if (reservation.open_slots == 0) return;
  const NamespaceRow row = reservation.session->instance->space->row;
  for (Block& block : reservation.blocks) {
    if (block.slot.is_none()) continue;
    ORBITKV_CHECK(cache_.AbortReserved(block.slot, block.generation).has_value());
    CloseSlot(reservation, block);
    ++counters_.blocks_aborted;
    // What other shards have stored of this block may now stay without this one's part.
    cache_.WriterLost(row, block.hash);
  }
}

void Reservations::Erase(ReservationMap::iterator reservation) {
  --reservation->second.session->reservations;
  reservations_.erase(reservation);
}

void Reservations::Export(Gauges& gauges) const {
  gauges.running_reserves = running_.size();
  gauges.reservations = reservations_.size();
  gauges.reserved_slots = reserved_slots_;
  gauges.reserved_bytes = reserved_bytes_;
  for (const auto& [instance, admissions] : admissions_) gauges.admissions += admissions.size();
}

}  // namespace orbitkv::service
