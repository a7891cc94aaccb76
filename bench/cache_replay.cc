// The replay through the block cache: bookkeeping only, no byte of the pool is touched.
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "replay.h"

#include "orbitkv/base/check.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kSlotBytes = 4096;
constexpr NamespaceRow kRow{1};

state::BlockHash HashOf(std::uint32_t block) {
  Prng prng(block);
  state::BlockHash hash;
  for (std::size_t word = 0; word < 4; ++word) {
    const std::uint64_t drawn = prng.Next();
    std::memcpy(hash.bytes.data() + word * sizeof(drawn), &drawn, sizeof(drawn));
  }
  return hash;
}

class CacheUnderReplay {
 public:
  CacheUnderReplay(cache::PolicyMaker policy, std::uint32_t blocks)
      : config_{.pool_bytes = blocks * kSlotBytes, .unit_bytes = kSlotBytes, .max_slots = blocks},
        memory_(config_.table_bytes() / sizeof(std::uint64_t)),
        table_(std::as_writable_bytes(std::span(memory_))) {
    auto pool = pool::Pool::Create(config_, table_);
    ORBITKV_CHECK(pool.has_value());
    pool_ = std::move(*pool);
    ORBITKV_CHECK(pool_->AddReserved(config_.pool_bytes).has_value());
    auto made = cache::BlockCache::Create({.max_blocks = blocks + blocks / 4 + 1024, .hash_seed = 1}, *pool_, policy);
    ORBITKV_CHECK(made.has_value());
    cache_ = std::move(*made);
    const cache::ComponentSpec spec{.slot_bytes = static_cast<std::uint32_t>(kSlotBytes)};
    ORBITKV_CHECK(cache_->AddNamespace(kRow, std::span(&spec, 1)).has_value());
  }

  // Looks up, restores, computes the rest, and publishes it: reserves all, then commits. Returns the number of hits.
  std::size_t Ask(const Request& request, std::uint64_t& refused) {
    const auto now_ns = static_cast<std::uint64_t>((request.at_s + 1) * 1e9);
    hashes_.clear();
    for (const std::uint32_t block : request.blocks) hashes_.push_back(HashOf(block));
    refs_.clear();
    const std::size_t matched = cache_->MatchPrefix(kRow, hashes_, refs_);
    for (const cache::BlockRef& ref : refs_) ORBITKV_CHECK(cache_->PinGranted(ref));
    cache_->Touch(refs_, now_ns);
    slots_.clear();
    for (std::size_t at = matched; at < hashes_.size(); ++at) {
      cache::ReserveRequest reserve{.row = kRow, .hash = hashes_[at], .depth = static_cast<std::uint32_t>(at)};
      if (at > 0) reserve.parent = hashes_[at - 1];
      const cache::ReserveOutcome reserved = cache_->Reserve(reserve, now_ns);
      if (reserved.status != cache::ReserveStatus::kSlot) break;
      slots_.push_back(reserved.slot);
    }
    refused += hashes_.size() - matched - slots_.size();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const std::size_t at = matched + i;
      cache::CommitRequest commit;
      commit.row = kRow;
      commit.hash = hashes_[at];
      if (at > 0) commit.parent = hashes_[at - 1];
      commit.depth = static_cast<std::uint32_t>(at);
      commit.slot = slots_[i].index;
      commit.generation = slots_[i].generation;
      commit.prompt_tokens = request.prompt_tokens;
      commit.answer_tokens = request.answer_tokens;
      ORBITKV_CHECK(cache_->Commit(commit, now_ns) == cache::CommitOutcome::kStored);
    }
    for (const cache::BlockRef& ref : refs_) cache_->UnpinGranted(ref);
    return matched;
  }

 private:
  pool::PoolConfig config_;
  std::vector<std::uint64_t> memory_;
  wire::SpanTable table_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<cache::BlockCache> cache_;
  std::vector<state::BlockHash> hashes_;
  std::vector<cache::BlockRef> refs_;
  std::vector<pool::Slot> slots_;
};

}  // namespace

ReplayResult ReplayThroughCache(const Trace& trace, cache::PolicyMaker policy, std::uint32_t blocks) {
  CacheUnderReplay cache(policy, blocks);
  ReplayResult result{.references = trace.references()};
  std::vector<std::size_t> hits;
  hits.reserve(trace.requests.size());
  const double began_s = ProcessorSeconds();
  for (const Request& request : trace.requests) hits.push_back(cache.Ask(request, result.refused));
  Sum(trace, hits, ProcessorSeconds() - began_s, result);
  return result;
}

}  // namespace orbitkv::bench
