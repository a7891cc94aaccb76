// Moves bytes between regions: memory of this process on one side, a file (or what else a backend reaches) on the
// other.
//
// A Region is named by a RegionId, whose generation tells it from earlier ones at the same place. A Batch is a list of
// ranges from region to region that ends as a whole. Its end is told by Completions: *failed* means that its bytes will
// not all be there, *drained* that nothing of it moves any more. Only a drained batch's memory may be used otherwise.
//
// Owns: the book of regions and batches, not memory or files. Threads: one. Blocks: never; time comes in.
// Units: bytes; nanoseconds of the caller's clock. Limits: kMaxBatches batches of kMaxOperations operations under way.
// Errors: Submit kStale for a region that is gone or going, kInvalid for ranges outside it, kUnsupported for memory to
//         memory, kBusy when too many batches are under way; nothing has moved then. A batch's own error comes with its
//         completion: kTimedOut, kCancelled, kExhausted (no space), kUnavailable (device gone), kIo.
// Invariants: each batch that was taken has exactly one completion with drained set, and before it at most one without,
//             which has failed. A region that is removed takes no new batches and ends when its last one has drained.
//             What a backend reports of an earlier batch at the same place is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/orbite/port.h"

namespace orbitkv::orbite {

using OwnerId = StrongId<struct OwnerIdTag, std::uint32_t>;

struct RegionId {
  std::uint32_t index = 0;
  std::uint64_t generation = 0;  // 0 names no region
  auto operator<=>(const RegionId&) const = default;
};

struct Place {
  RegionId region;
  std::uint64_t offset = 0;
};

struct Range {
  Place from;
  Place to;
  std::uint64_t bytes = 0;
};

struct Batch {
  std::uint64_t id = 0;  // names it to its completions
  std::vector<Range> ranges;
  RegionId sync{};  // a file whose writes outlive a loss of power when the batch has ended well; none by default
  std::uint64_t deadline_ns = ~0ULL;
};

struct Completion {
  std::uint64_t id = 0;
  Status status;
  bool drained = false;
};

class Engine {
 public:
  static constexpr std::size_t kMaxBatches = 4096;
  static constexpr std::size_t kMaxOperations = 4096;
  static constexpr std::size_t kMaxPieces = 64;  // of one operation

  explicit Engine(Port& port) : port_(port) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  RegionId AddMemory(std::span<std::byte> memory, OwnerId owner);
  // far: the backend's number of the file.
  RegionId AddFile(std::uint32_t far, std::uint64_t bytes, OwnerId owner);
  // Whether it takes batches.
  bool Usable(RegionId id) const;
  // Whether nothing of it moves any more.
  bool Gone(RegionId id) const;
  void Remove(RegionId id);
  // Removes the owner's regions. What has not begun of the batches that touch them never does; the rest drains.
  void Cancel(OwnerId owner);

  Status Submit(const Batch& batch, std::uint64_t now_ns);
  void Poll(std::uint64_t now_ns, std::vector<Completion>& out);

  std::size_t open_batches() const { return open_batches_; }
  std::uint64_t next_deadline_ns() const;
  std::uint64_t late_outcomes() const { return late_outcomes_; }

 private:
  struct Region {
    bool used = false;
    bool closing = false;
    bool file = false;
    std::uint64_t generation = 0;
    std::uint32_t far = 0;
    std::byte* memory = nullptr;
    std::uint64_t bytes = 0;
    OwnerId owner{};
    std::uint32_t batches = 0;
  };
  struct Move {
    OperationKind kind = OperationKind::kRead;
    std::uint32_t far = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::vector<os::IoPiece> pieces;
    bool queued = true;
    bool running = false;
  };
  struct Open {
    bool used = false;
    std::uint32_t generation = 0;
    std::uint64_t id = 0;
    std::uint64_t deadline_ns = 0;
    std::vector<Move> moves;
    std::vector<RegionId> regions;
    std::size_t left = 0;  // moves that have not ended
    bool syncs = false;
    bool told = false;  // that it failed
    Status status;
  };

  const Region* Find(RegionId id) const;
  Status Check(const Range& range) const;
  RegionId Add(const Region& region);
  void Append(Open& open, const Range& range) const;
  void Hold(Open& open, RegionId id);
  void Release(RegionId id);
  std::uint32_t FreePlace();
  void FailBatch(Open& open, const Error& error);
  void Ended(const Outcome& outcome);
  void Pump();
  void Finish(std::vector<Completion>& out);

  Port& port_;
  std::vector<Region> regions_;
  std::vector<std::unique_ptr<Open>> open_;
  std::deque<std::uint64_t> queue_;  // tokens of moves that have not begun
  std::vector<std::uint32_t> ended_;
  std::vector<Outcome> outcomes_;
  std::size_t open_batches_ = 0;
  std::uint64_t late_outcomes_ = 0;
};

}  // namespace orbitkv::orbite
