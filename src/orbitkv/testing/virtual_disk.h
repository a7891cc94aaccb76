// A disk in memory for tests: what was written and not synced may be lost, sector by sector, when the power goes.
//
// Owns: its bytes. Threads: one. Blocks: no. Units: bytes, in sectors of kSectorBytes.
// Errors: operations outside it end with EINVAL, as those that are not aligned to sectors do.
// Invariants: a sector is written as a whole or not at all; what was written before a sync that has ended is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/orbite/port.h"

namespace orbitkv::testing {

class VirtualDisk {
 public:
  static constexpr std::uint64_t kSectorBytes = 512;
  struct Write {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;  // one sector
  };

  explicit VirtualDisk(std::uint64_t bytes) : now_(bytes), kept_(bytes) {}

  std::uint64_t size() const { return now_.size(); }
  std::span<std::byte> bytes() { return now_; }
  // Sectors that were written and not synced, in order. A write of what is there already is none.
  const std::vector<Write>& unsynced() const { return unsynced_; }
  // The power goes: of the unsynced writes those are kept that this names by their number.
  void PowerLoss(const std::function<bool(std::size_t)>& kept);
  // What is there now is what was always there.
  void Settle();

  void WriteAt(std::uint64_t offset, std::span<const std::byte> from);
  void ReadAt(std::uint64_t offset, std::span<std::byte> into) const;
  void Sync() { Settle(); }

 private:
  std::vector<std::byte> now_;
  std::vector<std::byte> kept_;
  std::vector<Write> unsynced_;
};

// Carries operations out when they are reaped, in order, as many as the test allows.
class VirtualPort final : public orbite::Port {
 public:
  explicit VirtualPort(VirtualDisk& disk, std::size_t capacity = 64) : disk_(disk), capacity_(capacity) {}
  // Operations that may still end; all by default.
  void Allow(std::uint64_t operations) { allowed_ = operations; }
  std::uint64_t ended() const { return ended_; }

  bool Start(const orbite::Operation& operation) override;
  void Flush() override {}
  void Reap(std::vector<orbite::Outcome>& out) override;

 private:
  orbite::Outcome Do(const orbite::Operation& operation);

  VirtualDisk& disk_;
  const std::size_t capacity_;
  std::deque<orbite::Operation> queue_;
  std::uint64_t allowed_ = ~0ULL;
  std::uint64_t ended_ = 0;
};

}  // namespace orbitkv::testing
