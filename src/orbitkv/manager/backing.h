// What lies behind the pool, an SSD store or other hosts: reads blocks into the pool that are not there, and keeps
// blocks that may leave it. It answers what it has at once, and moves bytes on threads of its own, reads before writes.
//
// Owns: its threads.
// Threads: Open, Start and Stop by the owner; the reports any; the rest, with what a Source is asked, the dispatcher.
// Blocks: Open; Stop, until nothing of it touches the pool any more; the others never. Units: bytes.
// Errors: Open with one line for people, nothing stays open then; a read or save that cannot be carried out is reported
//         like any other.
// Invariant: each submitted read or save is reported once, or Stop comes first; between both the slot of a read is
//            written by nobody else, and that of a save by nobody.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/service/source.h"

namespace orbitkv::manager {

class Metrics;

class Backing : public service::Source {
 public:
  struct Reports {
    // checksum: of the slot, as its bytes were read.
    std::function<void(std::uint64_t id, service::LoadResult result, std::uint64_t checksum)> loaded;
    std::function<void(std::uint64_t id, service::SaveResult result)> saved;
  };

  // Finds what is there. deadline_ns: for a process that is ending to let go of it.
  virtual std::expected<void, std::string> Open(std::uint64_t /*deadline_ns*/) { return {}; }
  // Between Open and Start; metrics is not collected after Stop.
  virtual void AddFigures(Metrics& /*metrics*/) const {}
  // Maps the pool for itself: the Manager's own view of it is read-only.
  virtual Status Start(int pool_fd, std::uint64_t pool_bytes, Reports reports) = 0;
  virtual void Stop() = 0;
  virtual void Submit(const service::LoadRequest& request) = 0;
  virtual void Save(const service::SaveRequest& request) = 0;
};

}  // namespace orbitkv::manager
