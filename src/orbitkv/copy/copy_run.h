// One job of the host engine while it runs: which pages are left, which are verified, which layers are complete.
//
// The pages of a job are numbered in the order they are copied: a publish block by block, a restore layer by layer. Any
// number of threads claim ranges of that order and copy them.
//
// Owns: the job's description; not the bytes.
// Threads: Begin by one thread, before the first Work; Work and Cancel by any number; Finish by one, after the last
// Work
//          has returned. Callbacks run inside Begin, Work and Finish.
// Blocks: no, but for the copying itself and the callbacks.
// Invariants: a page whose list did not match is never written. on_layer(l) is called after every block's pages 0..l
//             are stored, fenced and verified.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/copy/engine.h"

namespace orbitkv::copy {

class CopyRun {
 public:
  // layers_done is told the number of leading complete layers before the job's on_layer is called. threads: how many
  // are expected to share the work.
  CopyRun(JobId id, CopyJob&& job, std::uint32_t threads, std::function<void(std::uint32_t)> layers_done);

  void Begin();
  // Copies until no page is left to claim.
  void Work();
  bool has_pages() const { return next_page_.load(std::memory_order_relaxed) < page_count_; }
  void Cancel();
  // Reports to on_done and returns the result.
  JobResult Finish();

 private:
  struct PageRange {
    std::uint64_t first;
    std::uint64_t end;
  };
  void Publish(PageRange range);
  void Restore(PageRange range);
  // True for the first thread that comes to the block, after before_block.
  bool Enter(std::uint64_t index);
  // The block's list, checked; own: where it is kept when another thread is just reading it.
  std::span<const std::uint64_t> CheckedList(std::uint64_t index, std::vector<std::uint64_t>& own);
  void ReportLayers() ORBITKV_EXCLUDES(report_mutex_);
  std::span<std::uint64_t> list(std::uint64_t index) {
    return std::span(hashes_).subspan(index * layer_count_, layer_count_);
  }

  const JobId id_;
  CopyJob job_;
  const std::function<void(std::uint32_t)> layers_done_callback_;
  const std::uint32_t layer_count_;
  const std::uint64_t block_count_;
  const std::uint64_t page_count_;
  const std::uint64_t pages_per_claim_;
  std::optional<Error> begin_error_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::uint64_t> next_page_ = 0;
  std::vector<std::uint64_t> hashes_;          // publish: computed; restore: the lists that are ready
  std::vector<std::uint64_t> slot_checksums_;  // publish
  // For each block: whether a thread has come to it, whether its list is in hashes_, pages not yet copied, and whether
  // a checksum was wrong. For each layer: verified pages.
  std::vector<std::atomic<bool>> entered_;
  std::vector<std::atomic<bool>> list_ready_;
  std::vector<std::atomic<std::uint32_t>> pages_left_;
  std::vector<std::atomic<bool>> mismatched_;
  std::vector<std::atomic<std::uint64_t>> verified_;

  Mutex report_mutex_;
  bool reporting_ ORBITKV_GUARDED_BY(report_mutex_) = false;
  std::uint32_t layers_done_ ORBITKV_GUARDED_BY(report_mutex_) = 0;
};

}  // namespace orbitkv::copy
