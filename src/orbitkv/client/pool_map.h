// The Manager's pool as this process sees it: checked, mapped, faulted in piece by piece, and every range that the
// Manager names is checked against it before a byte moves.
// Owns: the mapping, unmapped by the destructor, after the last copy; a descriptor of the pool. Neither depends on the
//       session that brought them: a map outlives its Manager when the next one serves the same pool.
// Threads: Slot and EnsurePopulated any; PopulateNext one. Blocks: PopulateNext and EnsurePopulated, for the kernel.
// Units: bytes. The Manager reserves the pool's memory from offset 0 upwards; only memory that is already there is
//        faulted in, because a hole would be charged to this process and could run into its limit.
// Errors: kRefused for a file that is not the pool the Manager described (size, seals); kInvalid for a range outside.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::client {

struct PoolDescription {
  std::uint64_t bytes = 0;
  bool named = false;      // a named file cannot be sealed
  bool read_only = false;  // how to map it
};

struct SlotRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// kInvalid when two of them overlap. Each lies in the pool.
Status CheckApart(std::vector<SlotRange> slots);

class PoolMap {
 public:
  static constexpr std::uint64_t kPieceBytes = 16ULL << 20U;

  // The descriptor stays the caller's.
  static Result<std::unique_ptr<PoolMap>> Open(int fd, const PoolDescription& description);
  // Whether that is the pool that is mapped here, by device and inode, and to be mapped in the same way.
  bool IsOf(int fd, const PoolDescription& description) const;

  std::uint64_t size() const { return mapping_.size(); }
  bool read_only() const { return description_.read_only; }
  // Where a slot lies; slots start at multiples of 64 bytes.
  Result<std::byte*> Slot(std::uint64_t offset, std::uint64_t bytes) const;
  // Faults the next piece in; the bytes done, 0 when everything that the Manager has reserved so far is in.
  std::uint64_t PopulateNext();
  // Faults a slot in that is about to be written, if the background has not come to it yet. A slot that is only read
  // needs no such call: read faults are cheap, and threads take them side by side.
  void EnsurePopulated(const std::byte* slot, std::uint64_t bytes);

 private:
  PoolMap(os::UniqueFd fd, const PoolDescription& description, os::Mapping mapping)
      : fd_(std::move(fd)), description_(description), mapping_(std::move(mapping)) {}

  const os::UniqueFd fd_;  // reopened for reading only where the map is
  const PoolDescription description_;
  os::Mapping mapping_;
  std::atomic<std::uint64_t> populated_{0};
};

}  // namespace orbitkv::client
