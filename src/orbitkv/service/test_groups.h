// For the tests of this folder: engines whose cache groups have rules of their own, one worker for each shard.
// Owns: what a World owns. Threads: one. Blocks: no. Units: blocks of a group are counted from the prompt's start.
// Errors: a step that must work fails the test.
// Invariant: a component's checksum says which hash, group and shard it is.
#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/service/registry.h"
#include "orbitkv/service/test_engine.h"

namespace orbitkv::service {

// Full attention, and a window of 100 tokens whose blocks are twice as long: it reaches over two of them.
inline std::vector<state::GroupShape> FullAndWindow() {
  return {{.block_tokens = 32, .page_count = 2, .page_bytes = 1000},
          {.block_tokens = 64,
           .page_count = 1,
           .page_bytes = 500,
           .kind = state::GroupKind::kSlidingWindow,
           .span_tokens = 100}};
}

class GroupWorld : public World {
 public:
  explicit GroupWorld(std::vector<state::GroupShape> groups, std::uint32_t shards = 1, WorldOptions options = {})
      : World(options), groups_(std::move(groups)), hash_tokens_(state::HashBlockTokens(groups_)) {
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      Registration worker = Worker("engine", shard, shards, shard, shards);
      worker.groups = groups_;
      workers_.push_back(Join(worker));
    }
  }

  SessionId worker(std::uint32_t shard = 0) const { return workers_[shard]; }
  std::uint32_t ratio(std::uint32_t group) const { return groups_[group].block_tokens / hash_tokens_; }

  Result<ReserveOutcome> ReserveGroup(std::span<const state::BlockHash> chain, std::uint32_t group, std::uint32_t first,
                                      std::uint32_t count, std::uint32_t shard = 0) {
    keys_.clear();
    for (std::uint32_t block = first; block < first + count; ++block) {
      keys_.push_back(chain[(block + 1) * ratio(group) - 1]);
    }
    wire::ReserveView view{};
    view.header.group = group;
    view.header.shard = shard;
    view.header.first_depth = first;
    if (first > 0) view.header.parent = chain[first * ratio(group) - 1];
    view.header.slot_bytes = SlotBytes(groups_[group]);
    view.header.block_count = count;
    view.hashes = keys_;
    return service().StartReserve(workers_[shard], view, now(), reserved_);
  }
  const std::vector<wire::ReserveEntry>& reserved() const { return reserved_; }

  // Publishes blocks [first, first + count) of the group; returns how many were stored.
  std::uint32_t PublishGroup(std::span<const state::BlockHash> chain, std::uint32_t group, std::uint32_t first,
                             std::uint32_t count, std::uint32_t shard = 0) {
    const Result<ReserveOutcome> outcome = ReserveGroup(chain, group, first, count, shard);
    EXPECT_TRUE(outcome) << ToString(outcome.error());
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < reserved_.size(); ++i) {
      if (reserved_[i].status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) continue;
      commits.push_back({.slot_checksum = Checksum(keys_[i], group, shard),
                         .generation = reserved_[i].generation,
                         .index = i,
                         .reserved = 0});
    }
    std::vector<std::uint32_t> outcomes;
    return Take(service().PublishCommit(workers_[shard], outcome->reservation, {.entries = commits}, now(), outcomes));
  }
  static std::uint64_t Checksum(const state::BlockHash& hash, std::uint32_t group, std::uint32_t shard) {
    return ChecksumOf(hash, shard) * 7 + group;
  }

  Result<QueryOutcome> TryAsk(std::span<const state::BlockHash> chain, std::uint32_t prefix = 0,
                              wire::QueryMode mode = wire::QueryMode::kLeasedRead,
                              std::span<const wire::HashView> views = {}) {
    wire::QueryView view;
    view.header.request_key_lo = 1;
    view.header.mode = mode;
    view.header.group = wire::kAllGroups;
    view.header.prefix_blocks = prefix;
    view.header.hash_count = static_cast<std::uint32_t>(chain.size() - prefix);
    view.hashes = chain.subspan(prefix);
    view.views = views;
    Result<QueryOutcome> outcome = service().StartQuery(workers_[0], view, now());
    while (outcome && outcome->more) outcome = service().ContinueQuery(workers_[0], now());
    return outcome;
  }
  QueryOutcome Ask(std::span<const state::BlockHash> chain, std::uint32_t prefix = 0,
                   wire::QueryMode mode = wire::QueryMode::kLeasedRead) {
    return Take(TryAsk(chain, prefix, mode));
  }

  // (group, index of the hash) of the plan that was fetched last.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> Places() const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> places;
    for (const wire::PlanEntry& entry : plan()) places.emplace_back(entry.group, entry.block);
    return places;
  }
  std::uint64_t found_pins() { return cache().gauges().found_pins; }

 private:
  std::vector<state::GroupShape> groups_;
  std::uint32_t hash_tokens_;
  std::vector<SessionId> workers_;
  std::vector<state::BlockHash> keys_;
  std::vector<wire::ReserveEntry> reserved_;
};

}  // namespace orbitkv::service
