#include "orbitkv/store/store.h"

#include <algorithm>
#include <bit>

#include "orbitkv/store/layout.h"

namespace orbitkv::store {
namespace {

constexpr std::uint64_t kMinSegmentBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t kSegmentsWanted = 64;
constexpr std::uint64_t kBytesPerRecord = std::uint64_t{32} << 10U;
constexpr std::uint32_t kMaxRecords = 1U << 28U;
constexpr orbite::OwnerId kOwner{3};

}  // namespace

std::uint64_t Store::SegmentBytesFor(std::uint64_t file_bytes) {
  return std::clamp(std::bit_floor(std::max<std::uint64_t>(file_bytes / kSegmentsWanted, 1)), kMinSegmentBytes,
                    kMaxSegmentBytes);
}

Result<std::unique_ptr<Store>> Store::Open(orbite::Port& port, const StoreConfig& config,
                                           const BlockingFile::Wait& wait, std::uint64_t unix_s) {
  auto store = std::unique_ptr<Store>(new Store(port));
  const orbite::RegionId file = store->engine_.AddFile(0, config.file_bytes, kOwner);
  {
    ORBITKV_ASSIGN_OR_RETURN(BlockingFile head,
                             BlockingFile::Create(store->engine_, file, wire::kStoreBlockBytes, wait));
    FormatRequest request;
    request.file_bytes = config.file_bytes;
    request.segment_bytes = config.segment_bytes != 0 ? config.segment_bytes : SegmentBytesFor(config.file_bytes);
    request.align = config.align;
    request.uuid = config.uuid;
    request.unix_s = unix_s;
    ORBITKV_ASSIGN_OR_RETURN(store->superblock_, ReadOrFormat(head, request, store->report_));
  }
  const wire::Superblock& superblock = store->superblock_;
  if (superblock.align < config.align) {
    return Fail(Code::kUnsupported, "the store was made on a device with smaller sectors", superblock.align,
                config.align);
  }
  const std::uint64_t fitting = std::min<std::uint64_t>(config.file_bytes / kBytesPerRecord + 1024, kMaxRecords);
  const std::uint32_t records = config.max_records != 0 ? config.max_records : static_cast<std::uint32_t>(fitting);
  ORBITKV_ASSIGN_OR_RETURN(store->index_, Index::Create(records, config.seed));
  store->segments_ = std::make_unique<Segments>(superblock.segment_count, config.skip);
  {
    ORBITKV_ASSIGN_OR_RETURN(BlockingFile whole,
                             BlockingFile::Create(store->engine_, file, RecoveryMemoryBytes(superblock), wait));
    ORBITKV_TRY(Recover(whole, superblock, *store->index_, *store->segments_, unix_s, store->report_));
  }
  ORBITKV_ASSIGN_OR_RETURN(store->log_, Log::Create(config.log, {&store->engine_, file, &store->superblock_,
                                                                 store->index_.get(), store->segments_.get()}));
  port.Pin(store->log_->write_buffers());
  store->Publish(0);
  return store;
}

std::optional<Facts> Store::Locate(const state::StateKey& key) const {
  return readable_.load(std::memory_order_relaxed) ? Kept(key) : std::nullopt;
}

std::optional<Facts> Store::Kept(const state::StateKey& key) const {
  const auto found = index_->Find(key);
  return found ? std::optional(found->facts) : std::nullopt;
}

void Store::Step(std::uint64_t now_ns, std::uint64_t unix_s) {
  log_->Step(now_ns, unix_s);
  Publish(now_ns);
}

void Store::Publish(std::uint64_t now_ns) {
  readable_.store(log_->readable(now_ns), std::memory_order_relaxed);
  losses_.store(log_->counters().evicted_records + log_->counters().forgotten_records, std::memory_order_relaxed);
  StoreGauges gauges;
  gauges.file_bytes = superblock_.file_bytes;
  gauges.segments = segments_->count();
  gauges.free_segments = segments_->free_count();
  gauges.records = index_->size();
  gauges.index_bytes = index_->bytes();
  gauges.readable = log_->readable(now_ns);
  gauges.writable = log_->writable(now_ns);
  const MutexLock lock(mutex_);
  counters_ = log_->counters();
  gauges_ = gauges;
}

LogCounters Store::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

StoreGauges Store::gauges() const {
  const MutexLock lock(mutex_);
  return gauges_;
}

}  // namespace orbitkv::store
