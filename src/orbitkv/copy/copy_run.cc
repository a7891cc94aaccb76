#include "orbitkv/copy/copy_run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "orbitkv/copy/copy_hash.h"

namespace orbitkv::copy {
namespace {

// A claim costs an atomic addition and, at its end, a fence: nothing beside 256 KiB. A short job is cut finer, so that
// its last claims do not leave the other threads idle.
constexpr std::uint64_t kClaimBytes = 256 * 1024;
constexpr std::uint64_t kClaimsPerThread = 4;

std::uint64_t PagesPerClaim(std::uint64_t page_count, std::uint64_t page_bytes, std::uint32_t threads) {
  const std::uint64_t by_size = kClaimBytes / page_bytes;
  const std::uint64_t by_share = page_count / (kClaimsPerThread * threads);
  return std::max<std::uint64_t>(1, std::min(by_size, by_share));
}

}  // namespace

CopyRun::CopyRun(JobId id, CopyJob&& job, std::uint32_t threads, std::function<void(std::uint32_t)> layers_done)
    : id_(id),
      job_(std::move(job)),
      layers_done_callback_(std::move(layers_done)),
      layer_count_(job_.layout->layer_count()),
      block_count_(job_.blocks.size()),
      page_count_(block_count_ * layer_count_),
      pages_per_claim_(PagesPerClaim(page_count_, job_.layout->page_bytes, threads)),
      hashes_(page_count_),
      slot_checksums_(job_.direction == Direction::kPublish ? block_count_ : 0),
      entered_(block_count_),
      list_ready_(block_count_),
      pages_left_(block_count_),
      mismatched_(block_count_),
      verified_(layer_count_) {
  for (auto& left : pages_left_) left.store(layer_count_, std::memory_order_relaxed);
}

void CopyRun::Begin() {
  if (!job_.prepare || cancelled_.load(std::memory_order_relaxed)) return;
  if (const Status status = job_.prepare(); !status) {
    begin_error_ = status.error();
    next_page_.store(page_count_, std::memory_order_relaxed);
  }
}

bool CopyRun::Enter(std::uint64_t index) {
  if (entered_[index].load(std::memory_order_relaxed)) return false;
  if (entered_[index].exchange(true, std::memory_order_relaxed)) return false;
  if (job_.before_block) job_.before_block(job_.blocks[index]);
  return true;
}

// A thread that comes while another one reads the list reads it too: that costs less than waiting for a thread that may
// not be running. Each copy is checked by the thread that uses it, so it does not matter if they differ.
std::span<const std::uint64_t> CopyRun::CheckedList(std::uint64_t index, std::vector<std::uint64_t>& own) {
  if (list_ready_[index].load(std::memory_order_acquire)) return list(index);
  const bool first = Enter(index);
  if (!first) own.resize(layer_count_);
  const std::span<std::uint64_t> read = first ? list(index) : std::span(own);
  const BlockCopy& block = job_.blocks[index];
  const std::uint64_t page_bytes = job_.layout->page_bytes;
  ReadList(block.slot, page_bytes, read);
  if (SlotChecksum(block.identity, PayloadBytes(layer_count_, page_bytes), read) != block.slot_checksum) {
    mismatched_[index].store(true, std::memory_order_relaxed);
  }
  if (first) list_ready_[index].store(true, std::memory_order_release);
  return read;
}

void CopyRun::Work() {
  for (;;) {
    const std::uint64_t first = next_page_.fetch_add(pages_per_claim_, std::memory_order_relaxed);
    if (first >= page_count_) return;
    const PageRange range{first, std::min(first + pages_per_claim_, page_count_)};
    if (job_.direction == Direction::kPublish) {
      Publish(range);
    } else {
      Restore(range);
    }
  }
}

void CopyRun::Publish(PageRange range) {
  const std::uint64_t page_bytes = job_.layout->page_bytes;
  for (std::uint64_t page = range.first; page < range.end; ++page) {
    const std::uint64_t index = page / layer_count_;
    const auto layer = static_cast<std::uint32_t>(page % layer_count_);
    const BlockCopy& block = job_.blocks[index];
    Enter(index);
    hashes_[page] =
        CopyAndHash(block.slot + layer * page_bytes, job_.layout->page(layer, block.block), page_bytes, job_.stores);
    // Whoever copies the block's last page sees the hashes of all of them and closes the slot.
    if (pages_left_[index].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      WriteList(block.slot, page_bytes, list(index));
      slot_checksums_[index] = SlotChecksum(block.identity, PayloadBytes(layer_count_, page_bytes), list(index));
    }
  }
  StoreFence();
}

void CopyRun::Restore(PageRange range) {
  const std::uint64_t page_bytes = job_.layout->page_bytes;
  std::uint64_t page = range.first;
  bool layer_complete = false;
  std::vector<std::uint64_t> own;
  while (page < range.end) {
    // The part of the claim that lies in one layer.
    const auto layer = static_cast<std::uint32_t>(page / block_count_);
    const std::uint64_t end = std::min(range.end, (layer + std::uint64_t{1}) * block_count_);
    std::uint64_t verified = 0;
    for (; page < end; ++page) {
      const std::uint64_t index = page % block_count_;
      pages_left_[index].fetch_sub(1, std::memory_order_relaxed);
      const std::span<const std::uint64_t> hashes = CheckedList(index, own);
      if (mismatched_[index].load(std::memory_order_relaxed)) continue;
      const BlockCopy& block = job_.blocks[index];
      const std::uint64_t hash =
          CopyAndHash(job_.layout->page(layer, block.block), block.slot + layer * page_bytes, page_bytes, job_.stores);
      if (hash == hashes[layer]) {
        ++verified;
      } else {
        mismatched_[index].store(true, std::memory_order_relaxed);
      }
    }
    StoreFence();
    const std::uint64_t before = verified_[layer].fetch_add(verified, std::memory_order_acq_rel);
    layer_complete = layer_complete || before + verified == block_count_;
  }
  if (layer_complete) ReportLayers();
}

// One thread at a time reports. A thread that finds another one at it leaves its layer to that one, which looks again
// under the lock before it stops.
void CopyRun::ReportLayers() {
  report_mutex_.Lock();
  if (!reporting_) {
    reporting_ = true;
    while (layers_done_ < layer_count_ && verified_[layers_done_].load(std::memory_order_acquire) == block_count_) {
      const std::uint32_t layer = layers_done_++;
      report_mutex_.Unlock();
      layers_done_callback_(layer + 1);
      if (job_.on_layer) job_.on_layer(id_, layer);
      report_mutex_.Lock();
    }
    reporting_ = false;
  }
  report_mutex_.Unlock();
}

void CopyRun::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  next_page_.store(page_count_, std::memory_order_relaxed);
}

JobResult CopyRun::Finish() {
  JobResult result;
  for (std::uint32_t i = 0; i < block_count_; ++i) {
    if (mismatched_[i].load(std::memory_order_relaxed)) {
      result.mismatched.push_back(i);
    } else if (pages_left_[i].load(std::memory_order_acquire) != 0) {
      result.unfinished.push_back(i);
    }
  }
  result.slot_checksums = std::move(slot_checksums_);
  if (!result.mismatched.empty()) {
    result.error = Error{Code::kCorrupt, 0, "blocks do not match their checksums", result.mismatched.size()};
  }
  if (begin_error_) {
    result.error = begin_error_;
  } else if (!result.unfinished.empty() && !result.error) {
    result.error = Error{Code::kCancelled, 0, "the copy was cancelled", result.unfinished.size()};
  }
  result.state = result.error ? JobState::kDrainedFailed : JobState::kDrainedOk;
  if (job_.on_done) job_.on_done(id_, result);
  return result;
}

}  // namespace orbitkv::copy
