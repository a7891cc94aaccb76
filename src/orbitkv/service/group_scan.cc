#include "orbitkv/service/group_scan.h"

#include <algorithm>

#include "orbitkv/service/scan.h"

namespace orbitkv::service {

GroupScan::GroupScan(const Namespace& space, std::uint32_t prefix_blocks, bool whole, bool pins)
    : space_(&space),
      prefix_(prefix_blocks),
      whole_(whole),
      pins_(pins),
      scan_(space.contract, prefix_blocks),
      marked_until_(space.contract.group_count()) {}

bool GroupScan::Step(cache::BlockCache& cache, FoundPins& pins, Session& session,
                     std::span<const state::BlockHash> hashes, std::uint32_t max_hashes,
                     std::vector<cache::BlockRef>& refs) {
  looked_up_.clear();
  if (looking_) {
    looking_ = !Look(cache, hashes, max_hashes);
    if (looking_) return false;
  }
  return !pins_ || Pin(pins, session, max_hashes, refs);
}

bool GroupScan::Look(cache::BlockCache& cache, std::span<const state::BlockHash> hashes, std::uint32_t max_hashes) {
  const auto ahead = hashes.subspan(seen_.size());
  cache.LookUp(space_->row, ahead.first(std::min<std::size_t>(max_hashes, ahead.size())), looked_up_);
  for (const cache::BlockUse& use : looked_up_) {
    if (scan_.exhausted()) return true;
    seen_.push_back(use.ref);
    if (!scan_.Step(use.groups)) continue;
    if (!whole_ || seen_.size() == hashes.size()) Mark(scan_.position() - prefix_);
  }
  return scan_.exhausted() || seen_.size() == hashes.size();
}

// Later boundaries begin no earlier and end later, so that every block is marked once.
void GroupScan::Mark(std::uint32_t boundary) {
  boundaries_.push_back(boundary);
  needed_.resize(boundary);
  const state::RecoveryContract& contract = space_->contract;
  for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
    const state::GroupDemand demand = contract.DemandOf(group, prefix_, prefix_ + boundary);
    const std::uint32_t end = demand.first_block + demand.block_count;
    for (std::uint32_t block = std::max(demand.first_block, marked_until_[group]); block < end; ++block) {
      needed_[contract.KeyPosition(group, block) - prefix_] |= 1U << group;
    }
    marked_until_[group] = end;
  }
}

bool GroupScan::Pin(FoundPins& pins, Session& session, std::uint32_t max_blocks, std::vector<cache::BlockRef>& refs) {
  const std::size_t end = refs.size() + std::min<std::size_t>(max_blocks, found() - refs.size());
  while (refs.size() < end) {
    const cache::BlockUse use{seen_[refs.size()], needed_[refs.size()]};
    if (use.groups != 0 && !pins.Take(session, use)) {
      Cut(pins, session, refs);
      return true;
    }
    refs.push_back(use.groups != 0 ? use.ref : cache::BlockRef{});
  }
  return refs.size() == found();
}

// The block behind the last of refs cannot be had. Whatever stands in front of it is pinned.
void GroupScan::Cut(FoundPins& pins, Session& session, std::vector<cache::BlockRef>& refs) {
  const auto at = static_cast<std::uint32_t>(refs.size());
  over_budget_ = static_cast<std::uint32_t>(
      std::count_if(needed_.begin() + at, needed_.end(), [](std::uint32_t groups) { return groups != 0; }));
  const std::vector<std::uint32_t> before = std::move(boundaries_);
  boundaries_.clear();
  needed_.clear();
  std::ranges::fill(marked_until_, 0);
  for (const std::uint32_t boundary : before) {
    if (boundary <= at) Mark(boundary);
  }
  std::vector<cache::BlockRef> spare;
  for (std::uint32_t i = 0; i < at; ++i) {
    if (i < found() && needed_[i] != 0) continue;
    spare.push_back(refs[i]);
    refs[i] = cache::BlockRef{};
  }
  pins.Give(session, spare);
  refs.resize(found());
}

}  // namespace orbitkv::service
