#include "orbitkv/service/resaves.h"

namespace orbitkv::service {

void Resaves::SetSource(const Source* source) {
  source_ = source;
  if (source_ == nullptr || limits_.save_policy == SavePolicy::kOff) return;
  losses_ = source_->losses();
  first_ = limits_.save_policy == SavePolicy::kAll && parts_.cache.gauges().entries > 0;
  wanted_ = first_;
}

void Resaves::Note(std::uint64_t now_ns) {
  if (wanted_ || source_ == nullptr || limits_.save_policy == SavePolicy::kOff) return;
  if (source_->losses() == losses_) return;
  wanted_ = true;
  if (!running()) next_ns_ = round_ns_ == 0 ? now_ns : round_ns_ + kRoundNs;
}

std::optional<std::uint64_t> Resaves::NextDeadline() const { return busy() ? std::optional(next_ns_) : std::nullopt; }

void Resaves::Tick(std::uint64_t now_ns) {
  Note(now_ns);
  if (!busy() || now_ns < next_ns_) return;
  if (!running()) {
    losses_ = source_->losses();
    wanted_ = false;
    next_slot_ = 1;
    round_ns_ = now_ns;
  }
  next_ns_ = now_ns + kStepNs;
  for (std::uint32_t i = 0; i < kSlotsPerStep && parts_.saves.HasRoom(); ++i) {
    if (const auto content = parts_.cache.InSlot(pool::SlotIndex(next_slot_))) Look(*content);
    if (next_slot_++ < parts_.cache.pool().max_slots()) continue;
    next_slot_ = 0;
    first_ = false;
    next_ns_ = round_ns_ + kRoundNs;
    return;
  }
}

void Resaves::Look(const cache::SlotContent& content) {
  const bool saved = content.save == cache::SaveState::kSaved;
  if (!saved && (!first_ || content.save != cache::SaveState::kNot)) return;
  const Namespace* const space = parts_.registry.OfRow(content.row);
  if (space == nullptr || (saved && Keeps(*space, content))) return;
  if (saved) {
    ++parts_.counters.saves_lost;
    parts_.cache.SetSaveState(content.ref, content.component, content.generation, cache::SaveState::kNot);
    if (!content.used) return;
  }
  parts_.saves.Again(*space, content.hash);
}

bool Resaves::Keeps(const Namespace& space, const cache::SlotContent& content) {
  const Result<cache::PlanSlot> slot = parts_.cache.Plan(content.ref, content.component);
  if (!slot) return true;  // damaged, and gone by now
  return source_->Keeps({space.KeyOf(content.hash, content.component), slot->payload_bytes}, slot->checksum);
}

}  // namespace orbitkv::service
