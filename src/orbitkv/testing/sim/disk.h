// The SSD of a simulated host and the store on it, as one life of its Manager drives it.
//
// The disk is slow and ends operations in no particular order. It fails them, runs full, tears them or lies, as the
// host was made. What was written and not synced may be lost with the power, sector by sector.
//
// Owns: DiskSource its store; the disk outlives it. Threads: one. Blocks: no. Units: bytes; virtual nanoseconds.
// Errors: faults come out as the store makes of them.
// Invariant: a DiskSource that goes leaves on the disk what was written by then: what was under way did not happen.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/orbite/port.h"
#include "orbitkv/service/source.h"
#include "orbitkv/store/store.h"
#include "orbitkv/testing/ram_source.h"
#include "orbitkv/testing/sim/history.h"
#include "orbitkv/testing/virtual_disk.h"

namespace orbitkv::sim {

enum class DiskFaults : std::uint8_t {
  kNone,
  kFailing,  // operations fail and say so
  kLying,    // halves are written, bits flip, and nothing says so
};

struct DiskShape {
  std::uint64_t segment_bytes = 0;
  std::uint32_t segments = 0;
  DiskFaults faults = DiskFaults::kNone;
  bool exact = false;  // what is said to be saved was whole, and is whole on the disk
  std::uint64_t bytes() const;
  store::StoreConfig config() const;
};

// Carries operations out, a few at a time.
class DiskPort final : public orbite::Port {
 public:
  DiskPort(testing::VirtualDisk& disk, History& history) : disk_(disk), history_(history) {}

  // From now on operations end late, in no order, and go wrong.
  void Misbehave(DiskFaults faults, Prng& prng) {
    faults_ = faults;
    prng_ = &prng;
  }

  bool Start(const orbite::Operation& operation) override;
  void Flush() override {}
  void Reap(std::vector<orbite::Outcome>& out) override;
  // How many of the operations may end until it is called again.
  void Allow(std::uint64_t operations) { allowed_ = operations; }
  // From now on nothing reaches the disk.
  void Die() { dead_ = true; }

 private:
  orbite::Outcome Do(const orbite::Operation& operation);
  void Move(const orbite::Operation& operation, std::uint64_t most);
  void FlipABit(const orbite::Operation& operation);

  testing::VirtualDisk& disk_;
  DiskFaults faults_ = DiskFaults::kNone;
  Prng* prng_ = nullptr;  // null: everything ends at once, in order
  History& history_;
  std::deque<orbite::Operation> queue_;
  std::uint64_t allowed_ = ~std::uint64_t{0};
  bool dead_ = false;
};

class DiskSource final : public service::Source {
 public:
  using Loaded = testing::RamSource::Done;
  using Saved = testing::RamSource::Saved;

  DiskSource(testing::VirtualDisk& disk, const DiskShape& shape, std::span<std::byte> pool, Prng& prng,
             History& history, std::uint64_t now_ns);
  ~DiskSource() override;
  DiskSource(const DiskSource&) = delete;
  DiskSource& operator=(const DiskSource&) = delete;

  std::optional<service::SourceRecord> Locate(const service::ComponentKey& key) const override;
  bool Keeps(const service::ComponentKey& key, std::uint64_t checksum) const override;
  std::uint64_t losses() const override { return store_->losses(); }
  void Submit(const service::LoadRequest& request);
  void Save(const service::SaveRequest& request);
  void Step(std::uint64_t now_ns, std::vector<Loaded>& loaded, std::vector<Saved>& saved);
  // What waits in buffers goes out.
  void Flush(std::uint64_t now_ns) { store_->log().Flush(now_ns); }
  bool idle() const { return store_->log().idle(); }

  // A store that was opened on what is on the disk now would know what this one knows.
  void CheckRecovery(std::span<const service::ComponentKey> keys);

 private:
  testing::VirtualDisk& disk_;
  const DiskShape shape_;
  History& history_;
  Prng& prng_;
  std::uint64_t now_ns_;
  DiskPort port_;
  std::unique_ptr<store::Store> store_;
};

}  // namespace orbitkv::sim
