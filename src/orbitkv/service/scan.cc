#include "orbitkv/service/scan.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

std::uint64_t HeldBytes(const Namespace& space, const cache::BlockCache& cache, cache::BlockRef ref) {
  return space.single() ? space.block_bytes() : cache.BytesOf(ref);
}

bool FoundPins::Take(Session& session, const cache::BlockUse& use) {
  Instance& instance = *session.instance;
  const std::uint64_t bytes = HeldBytes(*instance.space, cache_, use.ref);
  if (!instance.leased.Fits(use.ref, bytes, limits_.lease_bytes_per_instance())) return false;
  if (sessions_counted() && !session.found.Fits(use.ref, bytes, limits_.lease_bytes_per_session())) return false;
  if (!cache_.PinFound(use)) return false;
  instance.leased.Add(use.ref, bytes);
  if (sessions_counted()) session.found.Add(use.ref, bytes);
  return true;
}

void FoundPins::Give(Session& session, std::vector<cache::BlockRef>& refs) {
  for (const cache::BlockRef ref : refs) {
    if (ref.is_none()) continue;
    cache_.UnpinFound(ref);
    session.instance->leased.Remove(ref);
    if (sessions_counted()) session.found.Remove(ref);
  }
  refs.clear();
}

void FoundPins::Move(Session& from, Session& to, std::span<const cache::BlockRef> refs) {
  if (!sessions_counted() || &from == &to) return;
  for (const cache::BlockRef ref : refs) {
    if (ref.is_none()) continue;
    from.found.Remove(ref);
    to.found.Add(ref, HeldBytes(*to.instance->space, cache_, ref));
  }
}

namespace {

// A selected read of several groups names all that its boundary demands, and nothing else.
Status CheckViews(const state::RecoveryContract& contract, const wire::QueryView& query) {
  std::vector<state::GroupDemand> demand;
  const std::uint32_t prefix = query.header.prefix_blocks;
  for (const wire::HashView& view : query.views) {
    if (view.group >= contract.group_count()) {
      return Fail(Code::kInvalid, "the instance has no such cache group", view.group);
    }
    if (view.count == 0) continue;
    if (!contract.HasComponent(view.group, prefix + view.first)) {
      return Fail(Code::kRefused, "the demand begins where the group has no block", view.group, view.first);
    }
    demand.push_back({view.group, (prefix + view.first + 1) / contract.ratio(view.group) - 1, view.count});
  }
  return contract.CheckDemand(prefix, prefix + static_cast<std::uint32_t>(query.hashes.size()), demand);
}

}  // namespace

Status Scan::Check(const Namespace& space, const wire::QueryView& query) {
  const auto unknown = [](std::uint32_t group) { return group != 0 && group != wire::kAllGroups; };
  if (unknown(query.header.group)) {
    return Fail(Code::kInvalid, "the instance has no such cache group", query.header.group);
  }
  if (query.header.group != wire::kAllGroups && space.contract.group_count() > 1) {
    return Fail(Code::kInvalid, "a look-up asks for all of the instance's cache groups", query.header.group);
  }
  if (query.header.prefix_blocks > state::kMaxPosition - query.hashes.size()) {
    return Fail(Code::kInvalid, "the prefix is out of range", query.header.prefix_blocks);
  }
  if (!space.single() && query.header.mode == wire::QueryMode::kSelected) return CheckViews(space.contract, query);
  for (const wire::HashView& view : query.views) {
    if (unknown(view.group)) return Fail(Code::kInvalid, "the instance has no such cache group", view.group);
  }
  return {};
}

std::uint64_t Scan::CountHashes(const wire::QueryView& query) {
  if (query.views.empty()) return query.hashes.size();
  std::uint64_t count = 0;
  for (const wire::HashView& view : query.views) count += view.count;
  return std::max<std::uint64_t>(count, query.hashes.size());
}

Scan::Scan(const Namespace& space, const wire::QueryView& query)
    : space_(&space),
      mode_(query.header.mode),
      pins_(mode_ != wire::QueryMode::kDiscovery && mode_ != wire::QueryMode::kWarmUp),
      prefix_blocks_(query.header.prefix_blocks) {
  if (!space.single()) groups_.emplace(space, prefix_blocks_, all_or_nothing(), pins_);
  if (query.views.empty() || groups_) {
    hashes_.assign(query.hashes.begin(), query.hashes.end());
    return;
  }
  for (const wire::HashView& view : query.views) {
    const auto part = query.hashes.subspan(view.first, view.count);
    hashes_.insert(hashes_.end(), part.begin(), part.end());
    for (std::uint32_t i = 0; i < view.count; ++i) positions_.push_back(view.first + i);
  }
}

bool Scan::Step(cache::BlockCache& cache, FoundPins& pins, Session& session, std::uint32_t max_hashes) {
  if (groups_) {
    const bool over = groups_->Step(cache, pins, session, hashes_, max_hashes, refs_);
    found_ = over ? groups_->found() : 0;
    over_budget_ = groups_->over_budget();
    return over;
  }
  const std::size_t count = std::min<std::size_t>(max_hashes, hashes_.size() - looked_at_);
  const std::size_t before = refs_.size();
  const std::uint32_t matched =
      cache.MatchPrefix(space_->row, std::span<const state::BlockHash>(hashes_).subspan(looked_at_, count), refs_);
  looked_at_ += static_cast<std::uint32_t>(count);
  step_hashes_ = matched + (matched < count ? 1 : 0);
  std::uint32_t taken = matched;
  if (pins_) {
    taken = 0;
    while (taken < matched && pins.Take(session, cache::BlockUse{refs_[before + taken], 1})) ++taken;
    refs_.resize(before + taken);
    over_budget_ = matched - taken;
  } else {
    refs_.clear();
  }
  found_ += taken;
  return taken < count || looked_at_ == hashes_.size();
}

void Scan::Resume() {
  looked_at_ = found_;
  over_budget_ = 0;
}

void Scan::Restart() {
  ORBITKV_CHECK(refs_.empty());
  found_ = 0;
  if (groups_) groups_.emplace(*space_, prefix_blocks_, all_or_nothing(), pins_);
  Resume();
}

std::vector<std::uint32_t> Scan::Boundaries() const {
  if (groups_) return groups_->boundaries();
  // A selected read is one demand: there is no smaller one inside it.
  if (mode_ == wire::QueryMode::kSelected && found_ > 0) return {found_};
  return {};
}

}  // namespace orbitkv::service
