// Replays a request trace against an eviction policy and counts what a cache of so many blocks would have had.
//
// The tree of prefixes is kept as the block cache keeps it: a request uses the longest prefix that is there, then adds
// what is missing, in order; only leaves that the request does not use are candidates.
// Owns: nothing beyond a call. Threads: any; a call is one thread. Blocks: computes for up to seconds.
// Units: blocks; saved_flops_ratio is the part of all prefill work that hits saved (docs/policy.md has the formula).
// Errors: none. Invariant: the same trace, policy and size give the same ratios.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trace.h"

#include "orbitkv/cache/policies.h"

namespace orbitkv::bench {

struct ReplayResult {
  std::uint64_t references = 0;
  std::uint64_t hits = 0;
  std::uint64_t refused = 0;  // blocks that were not admitted
  double hit_ratio = 0;
  double saved_flops_ratio = 0;
  double us_per_block = 0;  // processor time of policy and tree, per block asked for
};

ReplayResult Replay(const Trace& trace, cache::PolicyMaker policy, std::uint32_t blocks);
// The same with the block cache itself: it reserves, commits, pins and evicts.
ReplayResult ReplayThroughCache(const Trace& trace, cache::PolicyMaker policy, std::uint32_t blocks);
// What a cache could have that knows the future: the block whose next use is furthest away goes.
ReplayResult ReplayBelady(const Trace& trace, std::uint32_t blocks);

// Of this thread: what else the machine does hardly counts.
double ProcessorSeconds();

// Fills in what the hits of each request make.
void Sum(const Trace& trace, const std::vector<std::size_t>& hits, double spent_s, ReplayResult& result);

// Prefill work of one block in units of that of a block at depth 0 without attention.
double BlockWork(std::uint32_t depth, std::uint32_t block_tokens);

}  // namespace orbitkv::bench
