// How many different blocks were ever asked for, from a few kilobytes: HyperLogLog with 2^14 registers.
//
// The estimate is kept while counting (the historic inverse probability estimator): each hash that changes a register
// adds the inverse of the probability that a new one would. Its standard error is 0.65 %. Counters of this kind cannot
// be merged, and need not be.
// Owns: 16 KiB. Threads: one. Blocks: no. Units: hashes. Errors: none.
// Invariant: a hash that was counted before changes nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/state/state_key.h"

namespace orbitkv::service {

class DistinctBlocks {
 public:
  static constexpr unsigned kPrecision = 14;

  void Add(const state::BlockHash& hash) {
    const std::uint64_t bits = Mix(hash.Prefix64());
    std::uint8_t& rank = ranks_[bits >> (64 - kPrecision)];
    // Of the remaining bits, which end in a one so that the rank has a bound.
    const std::uint64_t rest = bits << kPrecision | std::uint64_t{1} << (kPrecision - 1);
    const auto seen = static_cast<std::uint8_t>(std::countl_zero(rest) + 1);
    if (seen <= rank) return;
    estimate_ += static_cast<double>(kRegisters) / open_;
    open_ += InversePower(seen) - InversePower(rank);
    rank = seen;
  }
  double estimate() const { return estimate_; }

 private:
  static constexpr std::size_t kRegisters = std::size_t{1} << kPrecision;

  static double InversePower(unsigned rank) { return 1.0 / static_cast<double>(std::uint64_t{1} << rank); }
  // Engines choose their hashes: only the mixed ones are spread evenly for certain.
  static std::uint64_t Mix(std::uint64_t value) {
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31U);
  }

  std::vector<std::uint8_t> ranks_ = std::vector<std::uint8_t>(kRegisters);
  double open_ = static_cast<double>(kRegisters);  // the sum of 2^-rank: what a new hash may still change
  double estimate_ = 0;
};

}  // namespace orbitkv::service
