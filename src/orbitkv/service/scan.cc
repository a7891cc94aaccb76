#include "orbitkv/service/scan.h"

#include <algorithm>
#include <utility>

#include "orbitkv/base/check.h"

namespace orbitkv::service {

bool FoundPins::Take(Session& session, cache::BlockRef ref) {
  Instance& instance = *session.instance;
  // One block is always allowed: a budget below the size of a block would switch the cache off silently.
  const std::uint64_t block_bytes = instance.space->block_bytes();
  const auto fits = [&](const BlockAccount& account, std::uint64_t bytes) {
    return account.distinct() < std::max<std::uint64_t>(1, bytes / block_bytes) || account.Holds(ref);
  };
  if (!fits(instance.leased, limits_.lease_bytes_per_instance())) return false;
  if (sessions_counted() && !fits(session.found, limits_.lease_bytes_per_session())) return false;
  if (!cache_.PinFound(ref)) return false;
  instance.leased.Add(ref);
  if (sessions_counted()) session.found.Add(ref);
  return true;
}

void FoundPins::Give(Session& session, std::vector<cache::BlockRef>& refs) {
  for (const cache::BlockRef ref : refs) {
    cache_.UnpinFound(ref);
    session.instance->leased.Remove(ref);
    if (sessions_counted()) session.found.Remove(ref);
  }
  refs.clear();
}

void FoundPins::Move(Session& from, Session& to, std::span<const cache::BlockRef> refs) {
  if (!sessions_counted() || &from == &to) return;
  for (const cache::BlockRef ref : refs) {
    from.found.Remove(ref);
    to.found.Add(ref);
  }
}

Status Scan::Check(const Namespace&, const wire::QueryView& query) {
  const auto unknown = [](std::uint32_t group) { return group != 0 && group != wire::kAllGroups; };
  if (unknown(query.header.group)) {
    return Fail(Code::kInvalid, "the instance has no such cache group", query.header.group);
  }
  for (const wire::HashView& view : query.views) {
    if (unknown(view.group)) return Fail(Code::kInvalid, "the instance has no such cache group", view.group);
  }
  return {};
}

std::uint64_t Scan::CountHashes(const wire::QueryView& query) {
  if (query.views.empty()) return query.hashes.size();
  std::uint64_t count = 0;
  for (const wire::HashView& view : query.views) count += view.count;
  return count;
}

Scan::Scan(const Namespace& space, const wire::QueryView& query)
    : space_(&space),
      mode_(query.header.mode),
      pins_(mode_ != wire::QueryMode::kDiscovery && mode_ != wire::QueryMode::kWarmUp),
      prefix_blocks_(query.header.prefix_blocks) {
  if (query.views.empty()) {
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
  const std::size_t count = std::min<std::size_t>(max_hashes, hashes_.size() - looked_at_);
  const std::size_t before = refs_.size();
  const std::uint32_t matched =
      cache.MatchPrefix(space_->row, std::span<const state::BlockHash>(hashes_).subspan(looked_at_, count), refs_);
  looked_at_ += static_cast<std::uint32_t>(count);
  std::uint32_t taken = matched;
  if (pins_) {
    taken = 0;
    while (taken < matched && pins.Take(session, refs_[before + taken])) ++taken;
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
  Resume();
}

std::vector<std::uint32_t> Scan::Boundaries() const {
  // A selected read is one demand: there is no smaller one inside it.
  if (mode_ == wire::QueryMode::kSelected && found_ > 0) return {found_};
  return {};
}

std::vector<state::BlockHash> Scan::TakeFoundHashes() {
  hashes_.resize(found_);
  return std::move(hashes_);
}

}  // namespace orbitkv::service
