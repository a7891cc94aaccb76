// A block cache with a small pool and its table, for this folder's tests: short names for what they do all the time.
// Test code only.
#pragma once

#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {

inline constexpr std::uint64_t kTestUnit = 4096;
inline constexpr NamespaceRow kRow{1};

struct TestCache {
  explicit TestCache(std::uint64_t units, CacheConfig config = {.max_blocks = 1000}, std::uint32_t max_slots = 4000)
      : pool_config{.pool_bytes = units * kTestUnit, .unit_bytes = kTestUnit, .max_slots = max_slots},
        memory(pool_config.table_bytes() / 8),
        table(std::as_writable_bytes(std::span(memory))) {
    pool = std::move(*pool::Pool::Create(pool_config, table));
    EXPECT_TRUE(pool->AddReserved(pool_config.pool_bytes));
    cache = std::move(*BlockCache::Create(config, *pool));
  }

  void Add(NamespaceRow row, std::vector<ComponentSpec> components, std::vector<GroupSpec> groups = {}) {
    EXPECT_TRUE(cache->AddNamespace(row, components, groups));
  }

  static state::BlockHash Hash(std::uint64_t number) {
    state::BlockHash hash;
    std::memcpy(hash.bytes.data(), &number, sizeof(number));
    hash.bytes[31] = std::byte{1};
    return hash;
  }

  // Block number b at depth d continues block b - ratio, except for the first one.
  CommitRequest Request(std::uint64_t number, std::uint32_t depth, const pool::Slot& slot, std::uint32_t component = 0,
                        NamespaceRow row = kRow, std::uint32_t ratio = 1) const {
    CommitRequest request;
    request.row = row;
    request.hash = Hash(number);
    if (depth >= ratio) request.parent = Hash(number - ratio);
    request.depth = depth;
    request.component = component;
    request.slot = slot.index;
    request.generation = slot.generation;
    request.checksum = number * 3 + component;
    return request;
  }

  // The same before it has a slot.
  static ReserveRequest ReserveOf(std::uint64_t number, std::uint32_t depth, std::uint32_t component = 0,
                                  NamespaceRow row = kRow, std::uint32_t ratio = 1) {
    ReserveRequest request{.row = row, .hash = Hash(number), .component = component, .depth = depth};
    if (depth >= ratio) request.parent = Hash(number - ratio);
    return request;
  }

  // Reserves and commits; false when there was no slot.
  bool Publish(std::uint64_t number, std::uint32_t depth, std::uint32_t component = 0, NamespaceRow row = kRow,
               std::uint32_t ratio = 1) {
    const ReserveOutcome reserved = cache->Reserve(ReserveOf(number, depth, component, row, ratio), ++now);
    if (reserved.status != ReserveStatus::kSlot) return false;
    EXPECT_EQ(cache->Commit(Request(number, depth, reserved.slot, component, row, ratio), now), CommitOutcome::kStored);
    return true;
  }

  bool Has(std::uint64_t number, NamespaceRow row = kRow) const { return cache->Find(row, Hash(number)).has_value(); }
  BlockRef Ref(std::uint64_t number, NamespaceRow row = kRow) const { return cache->Find(row, Hash(number)).value(); }

  // The groups that are complete.
  std::uint32_t Groups(std::uint64_t number, NamespaceRow row = kRow) const { return Use(number, row).groups; }
  BlockUse Use(std::uint64_t number, NamespaceRow row = kRow) const {
    std::vector<BlockUse> uses;
    const state::BlockHash hash = Hash(number);
    cache->LookUp(row, std::span(&hash, 1), uses);
    return uses.at(0);
  }

  // Damages the record of a slot.
  void Damage(pool::SlotIndex slot) { memory[(slot.value() - 1) * wire::kSlotRecordBytes / 8 + 3] ^= 1U; }

  pool::PoolConfig pool_config;
  std::vector<std::uint64_t> memory;
  wire::SpanTable table;
  std::unique_ptr<pool::Pool> pool;
  std::unique_ptr<BlockCache> cache;
  std::uint64_t now = 0;
};

// Leases in the order in which they were made.
class TestLeases final : public LeaseRevoker {
 public:
  explicit TestLeases(TestCache& test) : test_(test) { test.cache->SetLeaseRevoker(this); }
  void Lease(BlockRef ref) {
    EXPECT_TRUE(test_.cache->PinFound(ref));
    leases_.push_back(ref);
  }
  bool RevokeOne() override {
    if (leases_.empty()) return false;
    test_.cache->UnpinFound(leases_.front());
    leases_.pop_front();
    return true;
  }
  std::size_t count() const { return leases_.size(); }

 private:
  TestCache& test_;
  std::deque<BlockRef> leases_;
};

}  // namespace orbitkv::cache
