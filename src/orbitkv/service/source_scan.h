// The second walk of a look-up: how much more could be had when what lies behind the pool were read.
//
// It looks at the hashes as the first walk did and takes a component as there when it is in the pool or the source has
// it. What it finds is a hint, nothing is pinned: reading decides.
//
// Owns: plain values. Threads: one. Blocks: no. Units: hash blocks behind the prefix; of a selected read of one group
// the selected blocks; bytes of payload.
// Limits: no boundary is found that takes more bytes than an instance may lease.
// Errors: none.
// Invariant: found() is 0 or the last of boundaries(), or, with one group, any number of blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/loads.h"
#include "orbitkv/service/scan.h"
#include "orbitkv/state/contract.h"

namespace orbitkv::service {

class SourceScan {
 public:
  // scan: the first walk, which is over. most_bytes: of one boundary's demand.
  SourceScan(const Scan& scan, std::uint64_t most_bytes);

  // Looks at about max_components components; true when the walk is over. scan is the same each time.
  bool Step(const cache::BlockCache& cache, const Loads& loads, const Scan& scan, std::uint32_t max_components);

  std::uint32_t found() const { return found_; }
  // Of several groups: all that could be taken, ascending.
  const std::vector<std::uint32_t>& boundaries() const { return boundaries_; }
  // Of each hash that it looked at.
  const std::vector<wire::Tier>& tiers() const { return tiers_; }
  // About what would have to be read for found().
  std::uint64_t missing_bytes() const { return missing_bytes_; }

 private:
  bool StepSingle(const cache::BlockCache& cache, const Loads& loads, const Scan& scan, std::uint32_t max_hashes);
  bool StepGroups(const cache::BlockCache& cache, const Loads& loads, const Scan& scan, std::uint32_t max_hashes);
  std::uint32_t Present(const cache::BlockCache& cache, const Loads& loads, const Scan& scan);
  void Offer(const Scan& scan);

  std::optional<state::BoundaryScan> walk_;  // of several groups
  std::uint64_t most_bytes_;
  std::uint32_t at_ = 0;  // the next hash
  std::uint32_t found_ = 0;
  std::vector<std::uint32_t> boundaries_;
  std::vector<wire::Tier> tiers_;
  std::uint64_t dense_bytes_ = 0;  // to be read of the groups that need their whole prefix, up to here
  std::uint64_t missing_bytes_ = 0;
};

}  // namespace orbitkv::service
