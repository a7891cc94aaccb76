// The oracle's view of publishing: whose slot is whose, and which blocks may be there.
#include <algorithm>

#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::sim {

void Oracle::ReserveAnswered(SessionId id, const SimRequest& request, const manager::CommandAnswer& answer) {
  if (answer.status != wire::AnswerStatus::kOk) return;
  const auto reserve = wire::DecodeReserve(request.args);
  const auto entries = wire::DecodeReserveAnswer(answer.payload);
  if (!reserve || !entries || entries->size() != reserve->hashes.size()) {
    history_.Violation("a reserve was answered with something else");
    return;
  }
  const Session& session = sessions_.at(id);
  const std::uint32_t space = instances_.at(session.instance).space;
  Reservation held{.session = id, .generations = {}};
  bool stopped = false;
  bool any = false;
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const wire::ReserveEntry& entry = (*entries)[i];
    const BlockKey key{space, reserve->hashes[i], reserve->header.group, reserve->header.shard};
    const auto status = static_cast<wire::ReserveStatus>(entry.status);
    Expect(!stopped || status == wire::ReserveStatus::kNotNow, "a block was taken behind one that was not");
    stopped = stopped || status == wire::ReserveStatus::kNotNow;
    if (status == wire::ReserveStatus::kHaveIt) {
      Expect(request.stepped || present_.contains(key), "a block is said to be there that nobody stored",
             {{"index", i}});
    }
    held.generations.push_back(status == wire::ReserveStatus::kSlot ? entry.generation : 0);
    if (status != wire::ReserveStatus::kSlot) continue;
    any = true;
    Expect(space != 0, "a slot without a namespace");
    Slot& slot = TakeSlot(key, entry.offset, entry.slot_bytes, entry.generation);
    const std::uint32_t block = reserve->header.first_depth + static_cast<std::uint32_t>(i);
    slot.depth = (block + 1) * space_of_[space].rules.RatioOf(reserve->header.group) - 1;
    if (i > 0) {
      slot.parent = reserve->hashes[i - 1];
    } else if (block > 0) {
      slot.parent = reserve->header.parent;
    }
  }
  Expect(any == (answer.scalar0 != 0), "a reservation has slots without an id, or an id without slots");
  if (!any) return;
  const bool fresh = reservations_.emplace(answer.scalar0, std::move(held)).second;
  Expect(fresh, "a reservation's id came twice", {{"reservation", answer.scalar0}});
}

Oracle::Slot& Oracle::TakeSlot(const BlockKey& key, std::uint64_t offset, std::uint32_t bytes,
                               std::uint64_t generation) {
  Expect(offset % pool::kSlotAlign == 0 && offset + bytes <= shape_.pool.pool_bytes, "a slot lies outside the pool",
         {{"offset", offset}, {"bytes", bytes}});
  Expect(!slots_.contains(generation), "a generation came twice", {{"generation", generation}});
  const std::uint64_t end = offset + pool::Pool::SlotBytes(bytes);
  auto at = placed_.lower_bound(offset);
  if (at != placed_.begin()) --at;
  while (at != placed_.end() && at->first < end) {
    const auto next = std::next(at);
    Slot& older = slots_.at(at->second);
    if (older.offset + older.bytes > offset) {
      Expect(!older.read(), "a slot that somebody may read was given to a writer",
             {{"generation", at->second}, {"offset", older.offset}});
      Expect(older.state != SlotState::kReserved, "a slot has two writers", {{"generation", at->second}});
      Expect(!life_->memory()->touched.contains(at->second), "a slot was given to a writer while a process touches it",
             {{"generation", at->second}, {"offset", older.offset}});
      older.state = SlotState::kGone;
      older.doubted = false;
      const auto there = present_.find(older.key);
      if (there != present_.end() && there->second == at->second) present_.erase(there);
      placed_.erase(at);
    }
    at = next;
  }
  Slot& slot = slots_[generation];
  slot.key = key;
  slot.offset = offset;
  slot.bytes = end - offset;
  slot.payload_bytes = bytes;
  slot.record = RecordOf(generation);
  placed_[offset] = generation;
  pinned_.insert(generation);
  history_.Note("model: slot", {{"generation", generation}, {"offset", offset}});
  return slot;
}

// The place of a slot's record in the table. The slot is in use.
std::uint32_t Oracle::RecordOf(std::uint64_t generation) const {
  for (std::uint32_t index = 0; index < shape_.pool.max_slots; ++index) {
    const auto record = wire::LoadSlotRecord(life_->table(), index);
    if (record && record->generation == generation) return index;
  }
  history_.Violation("a slot that was handed out has no record", {{"generation", generation}});
  return 0;
}

void Oracle::CommitAnswered(SessionId id, SimRequest& request, const manager::CommandAnswer& answer) {
  Expect(answer.status != wire::AnswerStatus::kTimedOut, "a commit that had begun was given up");
  if (answer.status != wire::AnswerStatus::kOk) return;
  const auto outcomes = wire::DecodeCommitAnswer(answer.payload);
  const auto commit = wire::DecodeCommit(request.args);
  if (!commit || !outcomes || outcomes->size() != commit->entries.size()) {
    history_.Violation("a commit was answered with something else");
    return;
  }
  Committing(id, request, *outcomes);
  const auto stored = static_cast<std::uint64_t>(
      std::ranges::count(*outcomes, static_cast<std::uint32_t>(wire::CommitOutcome::kStored)));
  Expect(stored == answer.scalar0, "stored blocks are miscounted", {{"model", stored}, {"told", answer.scalar0}});
}

// What a commit has stored is there for others before it is answered.
void Oracle::Committing(SessionId id, SimRequest& request, std::span<const std::uint32_t> outcomes) {
  const auto commit = wire::DecodeCommit(request.args);
  const auto found = reservations_.find(request.scalar0);
  Reservation* held = found != reservations_.end() && found->second.session == id ? &found->second : nullptr;
  Expect(outcomes.size() - request.decided <= shape_.limits.step_hashes, "one turn committed more than a turn may",
         {{"blocks", outcomes.size() - request.decided}});
  for (; request.decided < outcomes.size(); ++request.decided) {
    const wire::CommitEntry& entry = commit->entries[request.decided];
    Committed(held, entry.index, entry.generation, outcomes[request.decided]);
  }
  if (held != nullptr && std::ranges::count(held->generations, 0U) == std::ssize(held->generations)) {
    reservations_.erase(found);
  }
}

void Oracle::Committed(Reservation* reservation, std::uint32_t index, std::uint64_t generation,
                       std::uint32_t outcome_value) {
  const auto outcome = static_cast<wire::CommitOutcome>(outcome_value);
  const bool open = reservation != nullptr && index < reservation->generations.size() &&
                    reservation->generations[index] == generation;
  if (!open) {
    Expect(outcome == wire::CommitOutcome::kLost, "a slot was committed that is not the session's",
           {{"generation", generation}});
    return;
  }
  reservation->generations[index] = 0;
  pinned_.erase(generation);
  Slot& slot = slots_.at(generation);
  const auto there = present_.find(slot.key);
  const bool doubted = there != present_.end() && slots_.at(there->second).doubted;
  slot.state = SlotState::kGone;
  switch (outcome) {
    case wire::CommitOutcome::kStored:
      Expect(slot.write != 0, "a slot was stored that nobody has filled", {{"generation", generation}});
      slot.state = SlotState::kStored;
      present_[slot.key] = generation;
      break;
    case wire::CommitOutcome::kAlreadyThere:
      Expect(there != present_.end(), "another commit is said to have come first, and there was none",
             {{"generation", generation}});
      break;
    case wire::CommitOutcome::kLost:
      Expect(doubted || IndexFull(), "a commit of an open slot was lost",
             {{"generation", generation}, {"there", there == present_.end() ? 0 : there->second}});
      break;
  }
}

void Oracle::AbortReservation(std::uint64_t id) {
  const auto held = reservations_.find(id);
  for (const std::uint64_t generation : held->second.generations) {
    if (generation == 0) continue;
    slots_.at(generation).state = SlotState::kGone;
    pinned_.erase(generation);
  }
  reservations_.erase(held);
}

}  // namespace orbitkv::sim
