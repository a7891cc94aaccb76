// A store on a virtual disk, with a pool of its own and blocks that are known by a number.
//
// Owns: disk, backend, store, pool. Threads: one. Blocks: no; its clock moves when it is told to.
// Units: bytes; nanoseconds. Errors: gtest-free: what happened is returned.
// Invariant: block n has the same key, facts and bytes in every world; with another version, other bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "orbitkv/os/mapping.h"
#include "orbitkv/store/store.h"
#include "orbitkv/testing/faulty_port.h"
#include "orbitkv/testing/virtual_disk.h"

namespace orbitkv::testing {

class StoreWorld {
 public:
  struct Shape {
    std::uint64_t segment_bytes = 64 * 1024;
    std::uint32_t segments = 8;
    std::uint64_t write_bytes = 16 * 1024;
    std::uint32_t align = 512;
    std::uint32_t page_count = 2;
    std::uint64_t page_bytes = 1000;
  };
  enum class Loaded : std::uint8_t { kRight, kMissing, kFailed, kWrongBytes };
  static constexpr std::uint32_t kSlots = 64;

  explicit StoreWorld(const Shape& shape);
  ~StoreWorld() { Close(); }
  StoreWorld(const StoreWorld&) = delete;
  StoreWorld& operator=(const StoreWorld&) = delete;

  // With the disk as it is.
  Status Open();
  // Drains, and forgets what only a running store knows.
  void Close();

  state::StateKey KeyOf(std::uint64_t block) const;
  std::vector<std::byte> BytesOf(std::uint64_t block, std::uint64_t version = 0) const;
  store::Facts FactsOf(std::uint64_t block, std::uint64_t version = 0) const;
  std::uint64_t record_bytes() const;

  // Does not wait; the answer comes out of Run.
  void BeginSave(std::uint64_t block, std::uint32_t slot, std::uint64_t version = 0);
  void BeginLoad(std::uint64_t block, std::uint32_t slot);
  // Steps until nothing is under way but what is held back.
  void Run();
  void Step();
  std::optional<store::LogEnd> TakeEnd(std::uint64_t id);

  store::LogEnd::Result Save(std::uint64_t block);
  Loaded Load(std::uint64_t block);
  bool Has(std::uint64_t block) const { return store_->Locate(KeyOf(block)).has_value(); }
  std::span<std::byte> Slot(std::uint32_t slot);

  VirtualDisk& disk() { return disk_; }
  FaultyPort& faults() { return *faulty_; }
  store::Store& store() { return *store_; }
  store::StoreConfig& config() { return config_; }
  const Shape& shape() const { return shape_; }
  std::uint64_t& now_ns() { return now_ns_; }

 private:
  const Shape shape_;
  const std::uint32_t payload_bytes_;
  const std::uint64_t slot_bytes_;
  store::StoreConfig config_;
  VirtualDisk disk_;
  os::Mapping pool_;
  std::unique_ptr<VirtualPort> port_;
  std::unique_ptr<FaultyPort> faulty_;
  std::unique_ptr<store::Store> store_;
  std::vector<store::LogEnd> ends_;
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t next_id_ = 1;
};

}  // namespace orbitkv::testing
