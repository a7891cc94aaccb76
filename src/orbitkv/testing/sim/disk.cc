#include "orbitkv/testing/sim/disk.h"

#include <algorithm>
#include <cerrno>

#include "orbitkv/base/check.h"
#include "orbitkv/manager/store_terms.h"
#include "orbitkv/store/layout.h"

namespace orbitkv::sim {
namespace {

constexpr std::uint64_t kUnixS = 1'700'000'000;
constexpr std::size_t kMostOperations = 32;
constexpr std::size_t kOutOfOrder = 4;
constexpr int kMostSteps = 10'000;

// Loads and saves have numbers of their own.
std::uint64_t LogId(std::uint64_t id, bool load) { return id * 2 + (load ? 1 : 0); }

}  // namespace

std::uint64_t DiskShape::bytes() const { return wire::kStoreBlockBytes + segments * segment_bytes; }

store::StoreConfig DiskShape::config() const {
  store::StoreConfig config;
  config.file_bytes = bytes();
  config.segment_bytes = segment_bytes;
  config.align = 512;
  config.max_records = 1024;
  config.uuid.fill(std::byte{0x5a});
  config.seed = 17;
  config.log.write_bytes = 8 * 1024;
  config.log.writes = 3;
  config.log.reads = 4;
  config.log.reinsert_bytes = 16 * 1024;
  return config;
}

bool DiskPort::Start(const orbite::Operation& operation) {
  if (queue_.size() >= kMostOperations) return false;
  queue_.push_back(operation);
  return true;
}

// What is under way ends in no particular order, but a sync after what came before it.
void DiskPort::Reap(std::vector<orbite::Outcome>& out) {
  while (!queue_.empty() && (dead_ || allowed_ > 0)) {
    std::size_t at = 0;
    if (prng_ != nullptr && !dead_) {
      --allowed_;
      std::size_t ahead = 0;
      while (ahead < std::min(queue_.size(), kOutOfOrder) && queue_[ahead].kind != orbite::OperationKind::kSync)
        ++ahead;
      if (ahead > 0) at = prng_->Below(ahead);
    }
    const orbite::Operation operation = queue_[at];
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
    out.push_back(dead_ ? orbite::Outcome{operation.token, EIO, 0} : Do(operation));
  }
}

orbite::Outcome DiskPort::Do(const orbite::Operation& operation) {
  if (operation.kind == orbite::OperationKind::kSync) {
    disk_.Sync();
    return {operation.token, 0, 0};
  }
  std::uint64_t bytes = 0;
  for (const os::IoPiece& piece : operation.pieces) bytes += piece.bytes;
  if (operation.offset > disk_.size() || bytes > disk_.size() - operation.offset) {
    history_.Violation("the store reaches beyond its disk", {{"offset", operation.offset}, {"bytes", bytes}});
    return {operation.token, EINVAL, 0};
  }
  const std::uint64_t what = prng_ == nullptr ? ~std::uint64_t{0} : prng_->Below(64);
  const std::uint64_t half = bytes / 2 / testing::VirtualDisk::kSectorBytes * testing::VirtualDisk::kSectorBytes;
  const bool write = operation.kind == orbite::OperationKind::kWrite;
  if (faults_ == DiskFaults::kFailing && what == 0) return {operation.token, EIO, 0};
  if (faults_ == DiskFaults::kFailing && what == 1 && write) return {operation.token, ENOSPC, 0};
  if (faults_ == DiskFaults::kFailing && what == 2) {
    Move(operation, half);
    return {operation.token, 0, half};
  }
  if (faults_ == DiskFaults::kLying && what == 0 && write) {
    Move(operation, half);
    return {operation.token, 0, bytes};
  }
  Move(operation, bytes);
  if (faults_ == DiskFaults::kLying && what == 1) FlipABit(operation);
  return {operation.token, 0, bytes};
}

void DiskPort::Move(const orbite::Operation& operation, std::uint64_t most) {
  std::uint64_t offset = operation.offset;
  for (const os::IoPiece& piece : operation.pieces) {
    const std::uint64_t bytes = std::min<std::uint64_t>(piece.bytes, operation.offset + most - offset);
    const std::span<std::byte> memory(piece.data, bytes);
    if (operation.kind == orbite::OperationKind::kRead) {
      disk_.ReadAt(offset, memory);
    } else {
      disk_.WriteAt(offset, memory);
    }
    offset += bytes;
  }
}

// On the disk, somewhere in what was moved.
void DiskPort::FlipABit(const orbite::Operation& operation) {
  std::uint64_t bytes = 0;
  for (const os::IoPiece& piece : operation.pieces) bytes += piece.bytes;
  if (bytes > 0) disk_.bytes()[operation.offset + prng_->Below(bytes)] ^= std::byte{0x10};
}

DiskSource::DiskSource(testing::VirtualDisk& disk, const DiskShape& shape, std::span<std::byte> pool, Prng& prng,
                       History& history, std::uint64_t now_ns)
    : disk_(disk), shape_(shape), history_(history), prng_(prng), now_ns_(now_ns), port_(disk, history) {
  store::StoreConfig config = shape.config();
  config.skip = static_cast<std::uint32_t>(prng.Next());
  auto opened = store::Store::Open(port_, config, [this] { return now_ns_; }, kUnixS);
  if (!opened) history_.Violation("a store cannot be opened again");
  ORBITKV_CHECK(opened.has_value());
  store_ = std::move(*opened);
  store_->log().AttachPool(pool);
  port_.Misbehave(shape.faults, prng);
}

// The Manager dies: what is under way does not happen, and nothing more reaches the disk.
DiskSource::~DiskSource() {
  port_.Die();
  store_->log().Finish(now_ns_, 0);
  for (int i = 0; i < kMostSteps && !store_->log().idle(); ++i) store_->Step(++now_ns_, kUnixS);
  store_->log().TakeEnds();
}

std::optional<service::SourceRecord> DiskSource::Locate(const service::ComponentKey& key) const {
  const auto facts = store_->Locate(key);
  if (!facts || (key.slot_bytes != 0 && facts->payload_bytes != key.slot_bytes)) return std::nullopt;
  return manager::SourceRecordOf(*facts);
}

bool DiskSource::Keeps(const service::ComponentKey& key, std::uint64_t checksum) const {
  const auto facts = store_->Kept(key);
  return facts && facts->payload_bytes == key.slot_bytes && facts->checksum == checksum;
}

void DiskSource::Submit(const service::LoadRequest& request) {
  store::LoadJob job = manager::LoadJobOf(request);
  job.id = LogId(request.id, true);
  store_->log().Load(job);
}

void DiskSource::Save(const service::SaveRequest& request) {
  store::SaveJob job = manager::SaveJobOf(request);
  job.id = LogId(request.id, false);
  store_->log().Save(job);
}

void DiskSource::Step(std::uint64_t now_ns, std::vector<Loaded>& loaded, std::vector<Saved>& saved) {
  now_ns_ = now_ns;
  port_.Allow(prng_.Below(4));
  if (prng_.Below(512) == 0) disk_.Sync();  // by itself
  store_->Step(now_ns, kUnixS);
  for (const store::LogEnd& end : store_->log().TakeEnds()) {
    if (end.load) {
      loaded.push_back({end.id / 2, manager::LoadResultOf(end.result), end.checksum});
    } else {
      saved.push_back({end.id / 2, manager::SaveResultOf(end.result)});
    }
  }
}

void DiskSource::CheckRecovery(std::span<const service::ComponentKey> keys) {
  if (!idle() || !shape_.exact) return;
  testing::VirtualDisk copy(disk_.size());
  std::ranges::copy(disk_.bytes(), copy.bytes().begin());
  DiskPort port(copy, history_);
  const auto again = store::Store::Open(port, shape_.config(), [this] { return now_ns_; }, kUnixS);
  if (!again) {
    history_.Violation("a store could not be opened again as it is now");
    return;
  }
  // What was given up here, or reported as failed, may be there all the same.
  const std::uint64_t here = store_->gauges().records;
  const std::uint64_t there = (*again)->gauges().records;
  if (here > there) {
    history_.Violation("a store would know fewer records after a restart", {{"here", here}, {"there", there}});
  }
  for (const service::ComponentKey& key : keys) {
    const auto now = store_->index().Find(key);
    const auto then = (*again)->index().Find(key);
    if (!now || (then && now->facts.checksum == then->facts.checksum)) continue;
    // Another record of the key, whose write was reported as failed: it is as good.
    if (then && shape_.faults == DiskFaults::kFailing) continue;
    history_.Violation("a store would not know a record after a restart", {{"depth", now->facts.depth}});
  }
}

}  // namespace orbitkv::sim
