// A check between the engine and the client: does a page still hold what a job was given for?
//
// An engine that numbers the uses of its pages says so with Renew when it gives a page a new use, and names the number
// with each job. A job that begins to copy after one of its pages was renewed is dropped instead: it would publish
// other state, or restore over it. A job that has begun is not stopped; its state says so (enqueued), and the engine
// waits for it before it uses the page.
//
// Owns: one number for each page set (block) of each cache group, allocated at the group's first Renew.
// Threads: any. Blocks: no. Cost: none for jobs that name no number.
// Units: block ids of the group's layout; numbers are the engine's, 0 before the first Renew, and only rise.
// Errors: Renew kInvalid for a block outside the layout or a number that does not rise: nothing was changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"

namespace orbitkv::client {

inline constexpr char kStalePages[] = "dropped: a page got another generation before the copy began";

class PageGenerations {
 public:
  struct Group {
    std::uint32_t number = 0;
    std::uint32_t block_count = 0;  // of its layout
  };
  Status Renew(const Group& group, std::span<const std::uint32_t> block_ids, std::uint64_t generation)
      ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (const std::uint32_t id : block_ids) {
      if (id >= group.block_count) {
        return Fail(Code::kInvalid, "a block id is outside the registered layout", id, group.block_count);
      }
      const std::uint64_t now = Of(group.number, id);
      if (generation <= now) return Fail(Code::kInvalid, "the generation of a page must rise", generation, now);
    }
    if (numbers_.size() <= group.number) numbers_.resize(group.number + 1);
    std::vector<std::uint64_t>& numbers = numbers_[group.number];
    if (numbers.empty()) numbers.resize(group.block_count);
    for (const std::uint32_t id : block_ids) numbers[id] = generation;
    return {};
  }

  // generations: empty (no check), one for all blocks, or one for each.
  bool Current(std::uint32_t group, std::span<const std::uint32_t> block_ids,
               std::span<const std::uint64_t> generations) const ORBITKV_EXCLUDES(mutex_) {
    if (generations.empty()) return true;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < block_ids.size(); ++i) {
      if (Of(group, block_ids[i]) != generations[generations.size() == 1 ? 0 : i]) return false;
    }
    return true;
  }

  static Status CheckCount(std::size_t blocks, std::size_t generations) {
    if (generations <= 1 || generations == blocks) return {};
    return Fail(Code::kInvalid, "give one page generation for all blocks, or one for each", generations, blocks);
  }
  // The part of `generations` that belongs to blocks [first, first + count).
  static std::span<const std::uint64_t> Part(std::span<const std::uint64_t> generations, std::size_t first,
                                             std::size_t count) {
    return generations.size() <= 1 ? generations : generations.subspan(first, count);
  }

 private:
  std::uint64_t Of(std::uint32_t group, std::uint32_t id) const ORBITKV_REQUIRES(mutex_) {
    return group < numbers_.size() && id < numbers_[group].size() ? numbers_[group][id] : 0;
  }

  mutable Mutex mutex_;
  std::vector<std::vector<std::uint64_t>> numbers_ ORBITKV_GUARDED_BY(mutex_);  // by group, then by block
};

}  // namespace orbitkv::client
