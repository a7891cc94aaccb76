// What a boundary demands behind a prefix, as a list of blocks: group by group, each group in prefix order. The order
// in which plans are written and mismatches are named. Owns: plain values; the contract outlives it. Threads: values.
// Blocks: no. Units: hash blocks behind the prefix (indices of a look-up's hashes); list places as named. Errors: none;
// prefix and boundary are a boundary of the contract (RecoveryContract::IsBoundary). Invariant: every listed block's
// key lies behind the prefix and before the boundary.
#pragma once

#include <cstdint>
#include <vector>

#include "orbitkv/state/contract.h"

namespace orbitkv::service {

class Demand {
 public:
  struct Place {
    std::uint32_t group = 0;
    std::uint32_t index = 0;  // of the hash that names the block
  };

  // boundary counts from the prefix.
  Demand(const state::RecoveryContract& contract, std::uint32_t prefix, std::uint32_t boundary)
      : contract_(&contract), prefix_(prefix) {
    for (std::uint32_t group = 0; group < contract.group_count(); ++group) {
      groups_.push_back(contract.DemandOf(group, prefix, prefix + boundary));
      size_ += groups_.back().block_count;
    }
  }

  // Blocks in the list.
  std::uint32_t size() const { return size_; }

  // In one shard.
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const state::GroupDemand& demand : groups_) {
      bytes += std::uint64_t{demand.block_count} * contract_->rule(demand.group).block_bytes;
    }
    return bytes;
  }

  // number < size().
  Place At(std::uint32_t number) const {
    std::size_t at = 0;
    while (number >= groups_[at].block_count) number -= groups_[at++].block_count;
    const state::GroupDemand& demand = groups_[at];
    return Place{demand.group, contract_->KeyPosition(demand.group, demand.first_block + number) - prefix_};
  }

  // The groups that need a component at this index.
  std::uint32_t GroupsAt(std::uint32_t index) const {
    std::uint32_t groups = 0;
    for (const state::GroupDemand& demand : groups_) {
      if (!contract_->HasComponent(demand.group, prefix_ + index)) continue;
      const std::uint32_t block = (prefix_ + index + 1) / contract_->ratio(demand.group) - 1;
      if (block >= demand.first_block && block - demand.first_block < demand.block_count) groups |= 1U << demand.group;
    }
    return groups;
  }

 private:
  const state::RecoveryContract* contract_;
  std::uint32_t prefix_;
  std::vector<state::GroupDemand> groups_;
  std::uint32_t size_ = 0;
};

}  // namespace orbitkv::service
