#include "orbitkv/service/admissions.h"

#include <utility>

namespace orbitkv::service {

std::optional<bool> Admissions::Ask(const state::BlockHash& hash, std::uint32_t component) {
  const auto found = decisions_.find(hash);
  if (found == decisions_.end()) return std::nullopt;
  Decision& decision = found->second;
  std::uint64_t& word = decision.asked[component / 64];
  const std::uint64_t bit = std::uint64_t{1} << (component % 64);
  if ((word & bit) != 0) {
    decisions_.erase(found);
    return std::nullopt;
  }
  word |= bit;
  const bool admitted = decision.admitted;
  if (++decision.asked_count == component_count_) decisions_.erase(found);
  return admitted;
}

void Admissions::Decide(const state::BlockHash& hash, std::uint32_t component, bool admitted) {
  if (component_count_ == 1) return;
  Decision decision;
  decision.asked.resize((component_count_ + 63) / 64);
  decision.asked[component / 64] |= std::uint64_t{1} << (component % 64);
  decision.asked_count = 1;
  decision.number = next_number_++;
  decision.admitted = admitted;
  const std::uint64_t number = decision.number;
  decisions_.insert_or_assign(hash, std::move(decision));
  order_.push_back({hash, number});
  if (order_.size() <= capacity_) return;
  const auto oldest = decisions_.find(order_.front().hash);
  if (oldest != decisions_.end() && oldest->second.number == order_.front().number) decisions_.erase(oldest);
  order_.pop_front();
}

}  // namespace orbitkv::service
