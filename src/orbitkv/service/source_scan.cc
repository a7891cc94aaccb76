#include "orbitkv/service/source_scan.h"

#include <algorithm>

#include "orbitkv/service/demand.h"

namespace orbitkv::service {

SourceScan::SourceScan(const Scan& scan, std::uint64_t most_bytes) : most_bytes_(most_bytes) {
  if (scan.grouped()) {
    walk_.emplace(scan.space().contract, scan.prefix_blocks());
  } else {
    at_ = found_ = scan.found();  // those are here
    tiers_.assign(found_, wire::Tier::kPool);
  }
}

bool SourceScan::Step(const cache::BlockCache& cache, const Loads& loads, const Scan& scan,
                      std::uint32_t max_components) {
  const Namespace& space = scan.space();
  const std::uint32_t at_once = space.contract.group_count() * space.shard_count;
  const std::uint32_t max_hashes = std::max(1U, max_components / at_once);
  return walk_ ? StepGroups(cache, loads, scan, max_hashes) : StepSingle(cache, loads, scan, max_hashes);
}

bool SourceScan::StepSingle(const cache::BlockCache& cache, const Loads& loads, const Scan& scan,
                            std::uint32_t max_hashes) {
  const Namespace& space = scan.space();
  const auto count = static_cast<std::uint32_t>(scan.hashes().size());
  for (std::uint32_t i = 0; i < max_hashes; ++i, ++at_) {
    if (at_ == count || (at_ + std::uint64_t{1}) * space.block_bytes() > most_bytes_) break;
    const state::BlockHash& hash = scan.hashes()[at_];
    const bool here = cache.Peek(space.row, hash).groups != 0;
    if (!here) {
      if (!loads.Locatable(space, hash, scan.DepthOf(at_), 0)) {
        if (scan.all_or_nothing()) found_ = scan.found();
        return true;
      }
      missing_bytes_ += space.block_bytes();
    }
    found_ = at_ + 1;
    tiers_.push_back(here ? wire::Tier::kPool : wire::Tier::kBehind);
  }
  const bool over = at_ == count || (at_ + std::uint64_t{1}) * space.block_bytes() > most_bytes_;
  if (over && scan.all_or_nothing() && found_ < count) found_ = scan.found();
  return over;
}

bool SourceScan::StepGroups(const cache::BlockCache& cache, const Loads& loads, const Scan& scan,
                            std::uint32_t max_hashes) {
  for (std::uint32_t i = 0; i < max_hashes; ++i) {
    if (at_ == scan.hashes().size() || walk_->exhausted()) return true;
    const std::uint32_t present = Present(cache, loads, scan);
    ++at_;
    if (walk_->Step(present) && (!scan.all_or_nothing() || at_ == scan.hashes().size())) Offer(scan);
  }
  return at_ == scan.hashes().size() || walk_->exhausted();
}

// The groups that are, or could be, complete at the next hash.
std::uint32_t SourceScan::Present(const cache::BlockCache& cache, const Loads& loads, const Scan& scan) {
  const Namespace& space = scan.space();
  const state::BlockHash& hash = scan.hashes()[at_];
  const std::uint32_t depth = scan.DepthOf(at_);
  std::uint32_t present = cache.Peek(space.row, hash).groups;
  tiers_.push_back(present != 0 ? wire::Tier::kPool : wire::Tier::kAbsent);
  for (std::uint32_t group = 0; group < space.contract.group_count(); ++group) {
    if (((present >> group) & 1U) != 0 || !space.contract.HasComponent(group, depth)) continue;
    if (!loads.Locatable(space, hash, depth, group)) continue;
    present |= 1U << group;
    tiers_.back() = wire::Tier::kBehind;
    if (space.contract.IsDense(group)) {
      dense_bytes_ += std::uint64_t{space.contract.rule(group).block_bytes} * space.shard_count;
    }
  }
  return present;
}

void SourceScan::Offer(const Scan& scan) {
  const Namespace& space = scan.space();
  const Demand demand(space.contract, scan.prefix_blocks(), at_);
  if (demand.bytes() * space.shard_count > most_bytes_) return;
  boundaries_.push_back(at_);
  found_ = at_;
  missing_bytes_ = dense_bytes_;
  for (std::uint32_t group = 0; group < space.contract.group_count(); ++group) {
    if (space.contract.IsDense(group)) continue;
    const std::uint32_t prefix = scan.prefix_blocks();
    missing_bytes_ += std::uint64_t{space.contract.DemandOf(group, prefix, prefix + at_).block_count} *
                      space.contract.rule(group).block_bytes * space.shard_count;
  }
}

}  // namespace orbitkv::service
