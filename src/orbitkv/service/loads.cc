#include "orbitkv/service/loads.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::service {
namespace {

constexpr std::uint64_t kMeasuredBytes = 16U << 20U;
constexpr std::uint64_t kBetweenNs = 1'000'000;
// Afterwards the source may be another one: whoever wants to know has to try.
constexpr std::uint64_t kMeasuredForNs = 10'000'000'000;

}  // namespace

std::optional<SourceRecord> Loads::Locate(const Namespace& space, const Piece& piece, std::uint32_t shard) const {
  if (source_ == nullptr) return std::nullopt;
  std::optional<SourceRecord> record = source_->Locate(
      {space.KeyOf(piece.hash, space.ComponentOf(piece.group, shard)), space.contract.rule(piece.group).block_bytes});
  // A record that contradicts the look-up's place in the prompt could not be put into the tree.
  const bool first = piece.depth < space.contract.ratio(piece.group);
  if (record && (record->depth != piece.depth || record->parent.has_value() == first)) return std::nullopt;
  return record;
}

bool Loads::Locatable(const Namespace& space, const state::BlockHash& hash, std::uint32_t depth,
                      std::uint32_t group) const {
  for (std::uint32_t shard = 0; shard < space.shard_count; ++shard) {
    if (Locate(space, {hash, depth, group}, shard)) continue;
    if (source_ == nullptr || !cache_.Has(space.row, hash, space.ComponentOf(group, shard))) return false;
  }
  return true;
}

// One load is always permitted, however large it is.
bool Loads::Permitted(std::uint64_t bytes, bool warm) const {
  if (warm && warm_bytes_ > 0 && warm_bytes_ + bytes > limits_.warm_up_bytes()) return false;
  return bytes_ == 0 || bytes_ + bytes <= limits_.load_bytes();
}

Loads::Start Loads::Begin(const Namespace& space, const Piece& piece, bool warm, std::uint64_t waiter,
                          std::uint64_t now_ns) {
  const PieceKey key{space.row, piece.hash, piece.group};
  if (const auto shared = loads_.find(key); shared != loads_.end()) {
    if (!warm) shared->second.waiters.push_back(waiter);
    return Start::kStarted;
  }
  if (((cache_.Peek(space.row, piece.hash).groups >> piece.group) & 1U) != 0) return Start::kHere;
  Start outcome = Start::kStarted;
  std::vector<Read> reads = Reserve(space, piece, warm, now_ns, outcome);
  if (reads.empty()) return outcome;
  Load& load = loads_[key];
  load.open = static_cast<std::uint32_t>(reads.size());
  load.warm = warm;
  if (!warm) load.waiters.push_back(waiter);
  if (bytes_ == 0) {
    measuring_since_ns_ = now_ns;
    measuring_bytes_ = 0;
    measuring_goes_on_ = false;
  }
  for (const Read& read : reads) {
    bytes_ += read.slot_bytes;
    if (warm) warm_bytes_ += read.slot_bytes;
    untaken_.push_back({.id = next_id_,
                        .key = {space.KeyOf(piece.hash, read.component), space.contract.rule(piece.group).block_bytes},
                        .shape = space.ShapeOf(piece.group),
                        .offset = read.offset,
                        .generation = read.generation});
    reads_.emplace(next_id_++, read);
  }
  ++counters_.load_blocks;
  if (warm) ++counters_.warm_up_blocks;
  return Start::kStarted;
}

std::vector<Loads::Read> Loads::Reserve(const Namespace& space, const Piece& piece, bool warm, std::uint64_t now_ns,
                                        Start& outcome) {
  std::vector<Read> reads;
  for (std::uint32_t shard = 0; shard < space.shard_count; ++shard) {
    const std::uint32_t component = space.ComponentOf(piece.group, shard);
    if (cache_.Has(space.row, piece.hash, component)) continue;
    const auto record = Locate(space, piece, shard);
    if (!record) {
      outcome = Start::kAbsent;
      return {};
    }
    reads.push_back({.piece = {space.row, piece.hash, piece.group},
                     .parent = record->parent,
                     .depth = piece.depth,
                     .component = component,
                     .slot = {},
                     .checksum = record->checksum});
  }
  outcome = Start::kHere;
  if (!Permitted(pool::Pool::SlotBytes(space.contract.rule(piece.group).block_bytes) * reads.size(), warm)) {
    outcome = Start::kNoPermit;
    return {};
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const cache::ReserveOutcome reserved = cache_.Reserve({.row = space.row,
                                                           .hash = piece.hash,
                                                           .component = reads[i].component,
                                                           .parent = reads[i].parent,
                                                           .depth = piece.depth},
                                                          now_ns);
    if (reserved.status != cache::ReserveStatus::kSlot) {
      // Making room for one shard may have taken another's.
      for (std::size_t j = 0; j < i; ++j) {
        ORBITKV_CHECK(cache_.AbortReserved(reads[j].slot, reads[j].generation).has_value());
      }
      outcome = Start::kNoRoom;
      return {};
    }
    reads[i].slot = reserved.slot.index;
    reads[i].generation = reserved.slot.generation;
    reads[i].offset = reserved.slot.offset;
    reads[i].slot_bytes = reserved.slot.slot_bytes;
  }
  if (!reads.empty()) outcome = Start::kStarted;
  return reads;
}

std::optional<Loads::Ended> Loads::Done(std::uint64_t id, LoadResult result, std::uint64_t checksum,
                                        std::uint64_t now_ns) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return std::nullopt;
  const Read read = found->second;
  reads_.erase(found);
  if (result == LoadResult::kOk && checksum == read.checksum) {
    ++counters_.loads_ok;
    counters_.loaded_bytes += read.slot_bytes;
    cache::CommitRequest commit;
    commit.row = read.piece.row;
    commit.hash = read.piece.hash;
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
    cache_.WriterLost(read.piece.row, read.piece.hash);
  }
  const auto load = loads_.find(read.piece);
  bytes_ -= read.slot_bytes;
  if (load->second.warm) warm_bytes_ -= read.slot_bytes;
  Measure(result == LoadResult::kOk ? read.slot_bytes : 0, now_ns);
  if (--load->second.open > 0) return std::nullopt;
  Ended ended{read.piece.row, read.piece.hash, read.piece.group, std::move(load->second.waiters)};
  loads_.erase(load);
  return ended;
}

// Counted while reads are under way, and weighed by what came meanwhile: a single small read says little about speed.
// What ends at one time is counted together, since it took the time up to there together.
void Loads::Measure(std::uint64_t loaded_bytes, std::uint64_t now_ns) {
  if (measuring_bytes_ >= kMeasuredBytes && now_ns > measuring_until_ns_) EndMeasure();
  measuring_bytes_ += loaded_bytes;
  measuring_until_ns_ = now_ns;
  if (bytes_ == 0) EndMeasure();
}

void Loads::EndMeasure() {
  const std::uint64_t elapsed_ns = measuring_until_ns_ - std::min(measuring_until_ns_, measuring_since_ns_);
  // What ends right behind others ran beside them: the time in between says nothing.
  if (measuring_bytes_ > 0 && elapsed_ns >= (measuring_goes_on_ ? kBetweenNs : 1)) {
    const double speed = static_cast<double>(measuring_bytes_) * 1e9 / static_cast<double>(elapsed_ns);
    const double weight = std::min(1.0, static_cast<double>(measuring_bytes_) / static_cast<double>(kMeasuredBytes));
    bytes_per_second_ = measured_ns_ == 0 ? speed : bytes_per_second_ + (speed - bytes_per_second_) * weight;
    measured_ns_ = measuring_until_ns_;
  }
  measuring_since_ns_ = measuring_until_ns_;
  measuring_bytes_ = 0;
  measuring_goes_on_ = true;
}

std::optional<double> Loads::BytesPerSecond(std::uint64_t now_ns) const {
  if (measured_ns_ == 0 || now_ns - measured_ns_ > kMeasuredForNs) return std::nullopt;
  return bytes_per_second_;
}

bool Loads::Uses(NamespaceRow row) const {
  const auto first = loads_.lower_bound({row, state::BlockHash{}, 0});
  return first != loads_.end() && first->first.row == row;
}

void Loads::Export(Gauges& gauges) const {
  gauges.loads = reads_.size();
  gauges.load_bytes = bytes_;
  gauges.load_bytes_per_second = static_cast<std::uint64_t>(bytes_per_second_);
}

}  // namespace orbitkv::service
