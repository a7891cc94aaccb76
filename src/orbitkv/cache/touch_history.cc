#include "orbitkv/cache/touch_history.h"

#include <algorithm>
#include <bit>

namespace orbitkv::cache {
namespace {

// Each use passes every edge once, and an edge has its turn once in kBins - 1 calls at that rate; this is twice what
// keeps up.
constexpr std::uint32_t kEdgesPerCall = 2;
constexpr std::uint32_t kUsesPerEdge = ReuseModel::kBins;

}  // namespace

TouchHistory::TouchHistory(std::uint32_t capacity, ReuseModel& model)
    : model_(model), ring_(std::bit_floor(std::max(capacity, 2U))), table_(ring_.size() * 2, kFree) {}

std::size_t TouchHistory::FindPlace(std::uint64_t key) const {
  std::size_t at = Home(key);
  while (table_[at] != kFree && ring_[table_[at]].key != key) at = Next(at);
  return at;
}

TouchHistory::Use* TouchHistory::Find(std::uint64_t key) {
  const std::uint32_t place = table_[FindPlace(key)];
  return place == kFree ? nullptr : &ring_[place];
}

void TouchHistory::ErasePlace(std::size_t hole) {
  for (std::size_t at = Next(hole); table_[at] != kFree; at = Next(at)) {
    const std::size_t home = Home(ring_[table_[at]].key);
    if (((at - home) & (table_.size() - 1)) < ((at - hole) & (table_.size() - 1))) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kFree;
}

void TouchHistory::PassEdges(Use& use, Ticks now) {
  while (use.bin + 1U < ReuseModel::kBins && now - use.touched >= model_.edge(use.bin + 1U)) {
    model_.Leave(use.cls, use.bin, use.touched, use.touched + model_.edge(use.bin + 1U), false);
    ++use.bin;
    model_.Enter(use.cls, use.bin, use.touched);
  }
}

void TouchHistory::Add(const Use& use) {
  const auto place = static_cast<std::uint32_t>(added_ & (ring_.size() - 1));
  Use& oldest = ring_[place];
  if (oldest.bin != kDead) {  // forgotten, as a rule without a use
    PassEdges(oldest, use.touched);
    model_.Leave(oldest.cls, oldest.bin, oldest.touched, use.touched, oldest.key == use.key);
    oldest.bin = kDead;
    if (oldest.key != use.key) ErasePlace(FindPlace(oldest.key));
  }
  const std::size_t at = FindPlace(use.key);
  if (table_[at] != kFree && table_[at] != place) {
    Use& before = ring_[table_[at]];
    PassEdges(before, use.touched);
    model_.Leave(before.cls, before.bin, before.touched, use.touched, true);
    before.bin = kDead;
  }
  table_[at] = place;
  oldest = use;
  oldest.bin = 0;
  model_.Enter(use.cls, 0, use.touched);
  ++added_;
}

void TouchHistory::Advance(Ticks now) {
  const std::uint64_t first = added_ > ring_.size() ? added_ - ring_.size() : 0;
  for (std::uint32_t i = 0; i < kEdgesPerCall; ++i) {
    const std::uint32_t edge = next_edge_;
    next_edge_ = next_edge_ + 1 == ReuseModel::kBins ? 1 : next_edge_ + 1;
    std::uint64_t& passed = passed_[edge];
    passed = std::max(passed, first);
    for (std::uint32_t uses = 0; uses < kUsesPerEdge && passed < added_; ++uses, ++passed) {
      Use& use = UseOf(passed);
      if (use.bin == kDead) continue;
      if (now - use.touched < model_.edge(edge)) break;
      PassEdges(use, now);
    }
  }
}

}  // namespace orbitkv::cache
