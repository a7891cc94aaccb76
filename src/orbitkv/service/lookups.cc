#include "orbitkv/service/lookups.h"

#include <algorithm>

namespace orbitkv::service {

void Lookups::Count(const RequestKey& request, std::uint32_t attempt, std::vector<state::BlockHash> asked,
                    std::uint64_t hits) {
  auto& instance = instances_[request.instance];
  if (instance == nullptr) instance = std::make_unique<Instance>();
  Figures& figures = instance->figures;
  figures.hits += hits;
  const auto [counted, fresh] = instance->counted.try_emplace(request, attempt);
  if (!fresh && counted->second == attempt) return;
  counted->second = attempt;
  if (fresh) {
    instance->order.push_back(request);
    if (instance->order.size() > kRemembered) {
      instance->counted.erase(instance->order.front());
      instance->order.pop_front();
    }
  }
  ++figures.lookups;
  if (asked.empty() || asked.size() > kMostWaiting - waiting_hashes_) return;
  figures.blocks += asked.size();
  waiting_hashes_ += asked.size();
  waiting_.push_back({.instance = request.instance, .hashes = std::move(asked)});
}

void Lookups::AddHits(InstanceId instance, std::uint64_t hits) {
  if (const auto found = instances_.find(instance); found != instances_.end()) found->second->figures.hits += hits;
}

void Lookups::Work(std::uint32_t max_hashes) {
  while (max_hashes > 0 && !waiting_.empty()) {
    Waiting& first = waiting_.front();
    const std::size_t share = std::min<std::size_t>(max_hashes, first.hashes.size() - first.counted);
    if (const auto instance = instances_.find(first.instance); instance != instances_.end()) {
      for (std::size_t i = 0; i < share; ++i) instance->second->distinct.Add(first.hashes[first.counted + i]);
    }
    first.counted += share;
    max_hashes -= static_cast<std::uint32_t>(share);
    waiting_hashes_ -= share;
    if (first.counted == first.hashes.size()) waiting_.pop_front();
  }
}

void Lookups::Forget(InstanceId instance) { instances_.erase(instance); }

Lookups::Figures Lookups::Of(InstanceId instance) const {
  const auto found = instances_.find(instance);
  if (found == instances_.end()) return {};
  Figures figures = found->second->figures;
  figures.distinct = found->second->distinct.estimate();
  return figures;
}

}  // namespace orbitkv::service
