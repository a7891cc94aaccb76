#include "orbitkv/client/pool_map.h"

#include <algorithm>
#include <utility>

#include "orbitkv/os/file.h"
#include "orbitkv/os/memfd.h"

namespace orbitkv::client {
namespace {

constexpr std::uint64_t kSlotAlignment = 64;
constexpr std::uint64_t kPageBytes = 4096;
// Also of a map that is written: the kernel maps sixteen pages of shared memory by one read fault and lets them be
// written from then on, while write faults come one by one and cost more than twice as much.
constexpr os::Access kPopulateAccess = os::Access::kRead;

}  // namespace

Result<std::unique_ptr<PoolMap>> PoolMap::Open(int fd, const PoolDescription& description) {
  ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t bytes, os::FileBytes(fd));
  if (bytes != description.bytes || bytes == 0) {
    return Fail(Code::kRefused, "the pool's size differs from what the Manager says", bytes, description.bytes);
  }
  if (!description.named) {
    ORBITKV_ASSIGN_OR_RETURN(const bool sealed, os::HasSizeSeals(fd));
    if (!sealed) return Fail(Code::kRefused, "the pool is not sealed against resizing");
  }
  ORBITKV_ASSIGN_OR_RETURN(os::UniqueFd own, description.read_only ? os::ReopenReadOnly(fd) : os::Duplicate(fd));
  const os::Access access = description.read_only ? os::Access::kRead : os::Access::kReadWrite;
  ORBITKV_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(own.get(), bytes, access));
  return std::unique_ptr<PoolMap>(new PoolMap(std::move(own), description, std::move(mapping)));
}

bool PoolMap::IsOf(int fd, const PoolDescription& description) const {
  if (description.bytes != description_.bytes || description.read_only != description_.read_only) return false;
  const auto mine = os::IdentityOf(fd_.get());
  const auto other = os::IdentityOf(fd);
  return mine && other && mine->device == other->device && mine->inode == other->inode && other->bytes == mine->bytes;
}

Status CheckApart(std::vector<SlotRange> slots) {
  if (!std::ranges::is_sorted(slots, {}, &SlotRange::offset)) std::ranges::sort(slots, {}, &SlotRange::offset);
  for (std::size_t i = 1; i < slots.size(); ++i) {
    if (slots[i].offset - slots[i - 1].offset < slots[i - 1].bytes) {
      return Fail(Code::kInvalid, "the Manager named slots that overlap", slots[i - 1].offset, slots[i].offset);
    }
  }
  return {};
}

Result<std::byte*> PoolMap::Slot(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes == 0 || bytes > mapping_.size() || offset > mapping_.size() - bytes || offset % kSlotAlignment != 0) {
    return Fail(Code::kInvalid, "the Manager named a range outside the pool", offset, bytes);
  }
  return mapping_.data() + offset;
}

std::uint64_t PoolMap::PopulateNext() {
  const auto allocated = os::AllocatedBytes(fd_.get());
  if (!allocated) return 0;
  const std::uint64_t begin = populated_.load(std::memory_order_relaxed);
  const std::uint64_t end = std::min({*allocated / kPageBytes * kPageBytes, begin + kPieceBytes, mapping_.size()});
  if (end <= begin) return 0;
  if (!mapping_.Populate(begin, end - begin, kPopulateAccess)) {
    // An old kernel: pages are faulted in by the copies. Nothing is left to do here.
    populated_.store(mapping_.size(), std::memory_order_relaxed);
    return 0;
  }
  populated_.store(end, std::memory_order_relaxed);
  return end - begin;
}

void PoolMap::EnsurePopulated(const std::byte* slot, std::uint64_t bytes) {
  const auto offset = static_cast<std::uint64_t>(slot - mapping_.data());
  if (offset + bytes <= populated_.load(std::memory_order_relaxed)) return;
  const std::uint64_t begin = offset / kPageBytes * kPageBytes;
  const std::uint64_t end = std::min((offset + bytes + kPageBytes - 1) / kPageBytes * kPageBytes, mapping_.size());
  // Only a hint: without it the copy itself faults the pages in.
  (void)mapping_.Populate(begin, end - begin, kPopulateAccess);
}

}  // namespace orbitkv::client
