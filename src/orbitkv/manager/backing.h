// What reads blocks into the pool that are not there: an SSD store, other hosts. It answers what it has at once, and
// reads on threads of its own.
//
// Owns: its threads. Threads: Start and Stop by the owner; Locate and Submit the dispatcher; the report any.
// Blocks: Stop, until nothing of it writes into the pool any more; Submit and Locate never.
// Units: bytes. Errors: a read that cannot be carried out is reported like any other.
// Invariant: each submitted read is reported once, or Stop comes first; between both its slot is written by nobody
// else.
#pragma once

#include <cstdint>
#include <functional>

#include "orbitkv/base/result.h"
#include "orbitkv/service/source.h"

namespace orbitkv::manager {

class Backing : public service::Source {
 public:
  // checksum: of the slot, as its bytes were read.
  using Report = std::function<void(std::uint64_t id, service::LoadResult result, std::uint64_t checksum)>;

  // Maps the pool for itself: the Manager's own view of it is read-only.
  virtual Status Start(int pool_fd, std::uint64_t pool_bytes, Report report) = 0;
  virtual void Stop() = 0;
  virtual void Submit(const service::LoadRequest& request) = 0;
};

}  // namespace orbitkv::manager
