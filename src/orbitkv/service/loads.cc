#include "orbitkv/service/loads.h"

#include "orbitkv/base/check.h"

namespace orbitkv::service {

std::optional<SourceRecord> Loads::Locate(const Namespace& space, const state::BlockHash& hash, std::uint32_t depth,
                                          std::uint32_t shard) const {
  if (source_ == nullptr) return std::nullopt;
  std::optional<SourceRecord> record = source_->Locate({.namespace_digest = space.digest,
                                                        .hash = hash,
                                                        .group = 0,
                                                        .shard = shard,
                                                        .slot_bytes = space.contract.rule(0).block_bytes});
  // A record that contradicts the look-up's place in the prompt could not be put into the tree.
  if (record && (record->depth != depth || record->parent.has_value() != (depth > 0))) return std::nullopt;
  return record;
}

bool Loads::Locatable(const Namespace& space, const state::BlockHash& hash, std::uint32_t depth) const {
  if (!space.single()) return false;
  for (std::uint32_t shard = 0; shard < space.shard_count; ++shard) {
    if (!Locate(space, hash, depth, shard)) return false;
  }
  return true;
}

// One block is always permitted, however large it is.
bool Loads::Permitted(std::uint64_t bytes, bool warm) const {
  if (warm && warm_bytes_ > 0 && warm_bytes_ + bytes > limits_.warm_up_bytes()) return false;
  return bytes_ == 0 || bytes_ + bytes <= limits_.load_bytes();
}

Loads::Start Loads::Begin(const Namespace& space, const state::BlockHash& hash, std::uint32_t depth, bool warm,
                          std::uint64_t waiter, std::uint64_t now_ns) {
  const BlockKey key{space.row, hash};
  if (const auto shared = blocks_.find(key); shared != blocks_.end()) {
    if (!warm) shared->second.waiters.push_back(waiter);
    return Start::kStarted;
  }
  if (cache_.Find(space.row, hash)) return Start::kHere;
  if (!space.single()) return Start::kAbsent;
  std::vector<SourceRecord> records;
  for (std::uint32_t shard = 0; shard < space.shard_count; ++shard) {
    const auto record = Locate(space, hash, depth, shard);
    if (!record) return Start::kAbsent;
    records.push_back(*record);
  }
  const std::uint32_t payload_bytes = space.contract.rule(0).block_bytes;
  if (!Permitted(pool::Pool::SlotBytes(payload_bytes) * space.shard_count, warm)) return Start::kNoPermit;

  std::vector<Read> reads;
  std::vector<LoadRequest> requests;
  for (std::uint32_t shard = 0; shard < space.shard_count; ++shard) {
    const cache::ReserveOutcome outcome = cache_.Reserve(space.row, hash, shard, now_ns);
    if (outcome.status == cache::ReserveStatus::kHaveIt) continue;
    if (outcome.status == cache::ReserveStatus::kNotNow) {
      for (const Read& read : reads) ORBITKV_CHECK(cache_.AbortReserved(read.slot, read.generation).has_value());
      return Start::kNoRoom;
    }
    reads.push_back({.block = key,
                     .parent = records[shard].parent,
                     .depth = depth,
                     .component = shard,
                     .slot = outcome.slot.index,
                     .generation = outcome.slot.generation,
                     .checksum = records[shard].checksum,
                     .slot_bytes = outcome.slot.slot_bytes});
    requests.push_back({.id = next_id_ + requests.size(),
                        .key = {space.digest, hash, 0, shard, payload_bytes},
                        .shape = space.ShapeOf(0),
                        .offset = outcome.slot.offset,
                        .generation = outcome.slot.generation});
  }
  if (reads.empty()) return Start::kHere;
  Block& block = blocks_[key];
  block.open = static_cast<std::uint32_t>(reads.size());
  block.warm = warm;
  if (!warm) block.waiters.push_back(waiter);
  for (Read& read : reads) {
    bytes_ += read.slot_bytes;
    if (warm) warm_bytes_ += read.slot_bytes;
    reads_.emplace(next_id_++, std::move(read));
  }
  untaken_.insert(untaken_.end(), requests.begin(), requests.end());
  ++counters_.load_blocks;
  if (warm) ++counters_.warm_up_blocks;
  return Start::kStarted;
}

std::optional<Loads::Ended> Loads::Done(std::uint64_t id, LoadResult result, std::uint64_t checksum,
                                        std::uint64_t now_ns) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return std::nullopt;
  const Read read = std::move(found->second);
  reads_.erase(found);
  if (result == LoadResult::kOk && checksum == read.checksum) {
    ++counters_.loads_ok;
    counters_.loaded_bytes += read.slot_bytes;
    cache::CommitRequest commit;
    commit.row = read.block.first;
    commit.hash = read.block.second;
    commit.parent = read.parent;
    commit.depth = read.depth;
    commit.component = read.component;
    commit.slot = read.slot;
    commit.generation = read.generation;
    commit.checksum = read.checksum;
    commit.saved = true;
    static_cast<void>(cache_.Commit(commit, now_ns));
  } else {
    ++(result == LoadResult::kOk      ? counters_.loads_mismatch
       : result == LoadResult::kShort ? counters_.loads_short
                                      : counters_.loads_failed);
    ORBITKV_CHECK(cache_.AbortReserved(read.slot, read.generation).has_value());
    // What other shards have of this block may now stay without this one's part.
    cache_.WriterLost(read.block.first, read.block.second);
  }
  const auto block = blocks_.find(read.block);
  bytes_ -= read.slot_bytes;
  if (block->second.warm) warm_bytes_ -= read.slot_bytes;
  if (--block->second.open > 0) return std::nullopt;
  Ended ended{read.block.first, read.block.second, std::move(block->second.waiters)};
  blocks_.erase(block);
  return ended;
}

bool Loads::Uses(NamespaceRow row) const {
  const auto first = blocks_.lower_bound({row, state::BlockHash{}});
  return first != blocks_.end() && first->first.first == row;
}

void Loads::Export(Gauges& gauges) const {
  gauges.loads = reads_.size();
  gauges.load_bytes = bytes_;
}

}  // namespace orbitkv::service
