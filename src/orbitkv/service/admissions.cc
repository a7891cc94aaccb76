#include "orbitkv/service/admissions.h"

namespace orbitkv::service {

std::optional<bool> Admissions::Ask(const state::BlockHash& hash, std::uint32_t shard) {
  const auto found = decisions_.find(hash);
  if (found == decisions_.end()) return std::nullopt;
  Decision& decision = found->second;
  const std::uint64_t bit = std::uint64_t{1} << shard;
  if ((decision.asked & bit) != 0) {
    decisions_.erase(found);
    return std::nullopt;
  }
  decision.asked |= bit;
  const bool admitted = decision.admitted;
  const std::uint64_t all = shard_count_ == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << shard_count_) - 1;
  if (decision.asked == all) decisions_.erase(found);
  return admitted;
}

void Admissions::Decide(const state::BlockHash& hash, std::uint32_t shard, bool admitted) {
  if (shard_count_ == 1) return;
  const Decision decision{.asked = std::uint64_t{1} << shard, .number = next_number_++, .admitted = admitted};
  decisions_.insert_or_assign(hash, decision);
  order_.push_back({hash, decision.number});
  if (order_.size() <= capacity_) return;
  const auto oldest = decisions_.find(order_.front().hash);
  if (oldest != decisions_.end() && oldest->second.number == order_.front().number) decisions_.erase(oldest);
  order_.pop_front();
}

}  // namespace orbitkv::service
