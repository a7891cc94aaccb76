#include "orbitkv/service/saves.h"

#include "orbitkv/pool/pool.h"

namespace orbitkv::service {

Saves::Saves(const Limits& limits, cache::BlockCache& cache, Counters& counters)
    : limits_(limits), cache_(cache), counters_(counters) {
  if (limits.save_policy == SavePolicy::kReuse) {
    seen_ = std::make_unique<cache::FrequencySketch>(limits.save_sketch_blocks);
  }
}

void Saves::Stored(const Namespace& space, const state::BlockHash& hash) {
  if (!active()) return;
  if (seen_ != nullptr) {
    const bool again = seen_->Estimate(hash.Prefix64()) > 0;
    seen_->Add(hash.Prefix64());
    if (!again) return;
  }
  const cache::BlockUse use = cache_.Peek(space.row, hash);
  if (!use.ref.is_none()) PutInLine(space, hash, use.ref);
}

void Saves::Used(const Namespace& space, const state::BlockHash& hash, const cache::BlockUse& use) {
  if (active() && cache_.NoteSavedUse(use)) PutInLine(space, hash, use.ref);
}

void Saves::Again(const Namespace& space, const state::BlockHash& hash) {
  const cache::BlockUse use = cache_.Peek(space.row, hash);
  components_.clear();
  cache_.Unsaved(use, components_);
  if (!components_.empty()) PutInLine(space, hash, use.ref);
}

void Saves::PutInLine(const Namespace& space, const state::BlockHash& hash, cache::BlockRef ref) {
  if (line_.size() >= limits_.save_queue) {
    ++counters_.saves_dropped;
    return;
  }
  if (!cache_.AwaitSave(ref)) return;
  line_.push_back({&space, hash});
  ++rows_[space.row];
}

void Saves::Work() {
  for (std::uint32_t i = 0; i < kBlocksPerStep && HasWork(); ++i) {
    const Waiting& first = line_.front();
    if (!Send(first)) {
      blocked_ = true;
      return;
    }
    if (const auto row = rows_.find(first.space->row); --row->second == 0) rows_.erase(row);
    line_.pop_front();
  }
}

bool Saves::Send(const Waiting& block) {
  const cache::BlockUse use = cache_.Peek(block.space->row, block.hash);
  if (use.ref.is_none()) return true;  // it went, or is doubted
  components_.clear();
  cache_.Unsaved(use, components_);
  for (const std::uint32_t component : components_) {
    if (!SendComponent(block, use, component)) return false;
  }
  cache_.EndAwaitSave(use.ref);
  return true;
}

bool Saves::SendComponent(const Waiting& block, const cache::BlockUse& use, std::uint32_t component) {
  const Namespace& space = *block.space;
  const std::uint32_t group = component / space.shard_count;
  const std::uint64_t slot_bytes = pool::Pool::SlotBytes(space.contract.rule(group).block_bytes);
  if (bytes_ > 0 && bytes_ + slot_bytes > limits_.save_bytes_in_flight()) return false;
  const Result<cache::PlanSlot> slot = cache_.Plan(use.ref, component);
  if (!slot) return true;  // damaged, and gone by now
  SaveRequest request{.id = next_id_,
                      .key = {space.KeyOf(block.hash, component), slot->payload_bytes},
                      .record = {.parent = slot->parent, .depth = slot->depth, .checksum = slot->checksum},
                      .shape = space.ShapeOf(group),
                      .offset = slot->offset,
                      .generation = slot->generation};
  if (source_->Keeps(request.key, slot->checksum)) {
    ++counters_.saves_already_there;
    cache_.SetSaveState(use.ref, component, slot->generation, cache::SaveState::kSaved);
    return true;
  }
  // The block may have lost a group with the damaged component before.
  if (!cache_.PinGranted(cache::BlockUse{use.ref, 1U << group})) return true;
  cache_.SetSaveState(use.ref, component, slot->generation, cache::SaveState::kUnderWay);
  writes_.emplace(next_id_++, Write{use.ref, component, slot->generation, slot_bytes});
  bytes_ += slot_bytes;
  untaken_.push_back(request);
  return true;
}

void Saves::Done(std::uint64_t id, SaveResult result) {
  const auto found = writes_.find(id);
  if (found == writes_.end()) return;
  const Write write = found->second;
  writes_.erase(found);
  bytes_ -= write.slot_bytes;
  blocked_ = false;
  const bool saved = result == SaveResult::kSaved;
  cache_.SetSaveState(write.ref, write.component, write.generation,
                      saved ? cache::SaveState::kSaved : cache::SaveState::kNot);
  cache_.UnpinGranted(write.ref);
  switch (result) {
    case SaveResult::kSaved:
      ++counters_.saves_ok;
      counters_.saved_bytes += write.slot_bytes;
      break;
    case SaveResult::kNoRoom: ++counters_.saves_no_room; break;
    case SaveResult::kFailed: ++counters_.saves_failed; break;
  }
}

void Saves::Export(Gauges& gauges) const {
  gauges.saves_in_line = line_.size();
  gauges.saves = writes_.size();
  gauges.save_bytes = bytes_;
}

}  // namespace orbitkv::service
