#include "orbitkv/service/earlier_sessions.h"

#include <algorithm>

namespace orbitkv::service {

void EarlierSessions::Adopt(std::vector<pool::SessionLists::Earlier> sessions, std::span<const cache::HeldSlot> held,
                            std::uint64_t now_ns) {
  give_up_ns_ = now_ns + kUnwatchedNs;
  for (const cache::HeldSlot& slot : held) {
    const auto place = cache_.pool().Locate(slot.slot, slot.generation);
    held_.emplace(slot.slot, Held{.slot = slot, .bytes = place ? place->slot_bytes : 0});
  }
  for (pool::SessionLists::Earlier& session : sessions) {
    std::erase_if(session.slots, [this](pool::SlotIndex slot) { return !held_.contains(slot); });
    for (const pool::SlotIndex slot : session.slots) ++held_.at(slot).sessions;
    const std::uint32_t row = session.row;
    sessions_.emplace(row, std::move(session));
  }
  std::erase_if(held_, [this](const auto& one) {
    if (one.second.sessions != 0) return false;
    cache_.LetGo(one.second.slot);
    return true;
  });
}

bool EarlierSessions::End(std::uint32_t row) {
  const auto session = sessions_.find(row);
  if (session == sessions_.end()) return false;
  for (const pool::SlotIndex slot : session->second.slots) {
    const auto held = held_.find(slot);
    if (--held->second.sessions > 0) continue;
    cache_.LetGo(held->second.slot);
    held_.erase(held);
  }
  sessions_.erase(session);
  if (lists_ != nullptr) lists_->Close(row);
  ended_.push_back(row);
  return true;
}

std::optional<std::uint32_t> EarlierSessions::Drain(const Incarnation& incarnation, std::uint64_t token) {
  const auto session = std::ranges::find_if(sessions_, [&](const auto& one) {
    return one.second.owner.incarnation == incarnation && one.second.owner.token == token;
  });
  if (session == sessions_.end()) return std::nullopt;
  const std::uint32_t row = session->first;
  End(row);
  return row;
}

void EarlierSessions::Tick(std::uint64_t now_ns) {
  if (now_ns < give_up_ns_) return;
  for (auto session = sessions_.begin(); session != sessions_.end();) {
    const auto next = std::next(session);
    if (!session->second.owner.watched) End(session->first);
    session = next;
  }
}

std::optional<std::uint64_t> EarlierSessions::NextDeadline() const {
  const bool unwatched = std::ranges::any_of(sessions_, [](const auto& one) { return !one.second.owner.watched; });
  return unwatched ? std::optional(give_up_ns_) : std::nullopt;
}

std::vector<EarlierSessionStatus> EarlierSessions::statuses() const {
  std::vector<EarlierSessionStatus> all;
  for (const auto& [row, session] : sessions_) {
    EarlierSessionStatus status{.row = row,
                                .pid = session.owner.pid,
                                .watched = session.owner.watched,
                                .slots = session.slots.size(),
                                .bytes = 0};
    for (const pool::SlotIndex slot : session.slots) status.bytes += held_.at(slot).bytes;
    all.push_back(status);
  }
  return all;
}

void EarlierSessions::Export(Gauges& gauges) const {
  gauges.earlier_sessions = sessions_.size();
  gauges.held_slots = held_.size();
}

}  // namespace orbitkv::service
