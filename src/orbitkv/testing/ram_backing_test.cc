#include "orbitkv/testing/ram_backing.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "orbitkv/os/memfd.h"

namespace orbitkv::testing {
namespace {

constexpr std::uint64_t kPoolBytes = 64U << 10U;
constexpr std::uint32_t kSlotBytes = 4096;

struct Reported {
  Mutex mutex;
  CondVar changed;
  std::vector<std::pair<std::uint64_t, service::SaveResult>> saved ORBITKV_GUARDED_BY(mutex);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> loaded ORBITKV_GUARDED_BY(mutex);  // with their checksums

  void WaitFor(std::size_t saves, std::size_t loads) ORBITKV_EXCLUDES(mutex) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const MutexLock lock(mutex);
    while ((saved.size() < saves || loaded.size() < loads) && std::chrono::steady_clock::now() < deadline) {
      changed.WaitUntil(mutex, deadline);
    }
    ASSERT_EQ(saved.size(), saves);
    ASSERT_EQ(loaded.size(), loads);
  }
};

TEST(RamBacking, WhatWasSavedIsLocatedAndReadIntoAnotherSlot) {
  auto memory = os::CreateMemfd("backing", kPoolBytes);
  ASSERT_TRUE(memory);
  auto pool = os::Mapping::Map(memory->get(), kPoolBytes, os::Access::kReadWrite);
  ASSERT_TRUE(pool);
  std::ranges::fill(pool->bytes().first(kSlotBytes), std::byte{0x5a});
  Reported reported;
  RamBacking backing;
  ASSERT_TRUE(backing.Start(memory->get(), kPoolBytes,
                            {.loaded =
                                 [&](std::uint64_t id, service::LoadResult result, std::uint64_t checksum) {
                                   EXPECT_EQ(result, service::LoadResult::kOk);
                                   const MutexLock lock(reported.mutex);
                                   reported.loaded.emplace_back(id, checksum);
                                   reported.changed.NotifyAll();
                                 },
                             .saved =
                                 [&](std::uint64_t id, service::SaveResult result) {
                                   const MutexLock lock(reported.mutex);
                                   reported.saved.emplace_back(id, result);
                                   reported.changed.NotifyAll();
                                 }}));
  const service::ComponentKey key{{}, kSlotBytes};
  service::ComponentKey refused = key;
  refused.shard = 1;
  backing.Fill([&](RamSource& source) {
    source.set_save_fault([](const service::ComponentKey& one) {
      return one.shard == 0 ? service::SaveResult::kSaved : service::SaveResult::kNoRoom;
    });
  });
  EXPECT_FALSE(backing.Locate(key));
  backing.Save({.id = 1, .key = key, .record = {.checksum = 77}});
  reported.WaitFor(1, 0);
  backing.Save({.id = 2, .key = refused, .record = {.checksum = 78}});
  reported.WaitFor(2, 0);
  ASSERT_TRUE(backing.Locate(key));
  EXPECT_EQ(backing.Locate(key)->checksum, 77U);
  EXPECT_FALSE(backing.Locate(refused));
  backing.Submit({.id = 3, .key = key, .offset = 2 * kSlotBytes});
  reported.WaitFor(2, 1);
  EXPECT_TRUE(std::ranges::equal(pool->bytes().subspan(2 * kSlotBytes, kSlotBytes), pool->bytes().first(kSlotBytes)));
  const MutexLock lock(reported.mutex);
  EXPECT_EQ(reported.saved[0], std::pair(std::uint64_t{1}, service::SaveResult::kSaved));
  EXPECT_EQ(reported.saved[1], std::pair(std::uint64_t{2}, service::SaveResult::kNoRoom));
  EXPECT_EQ(reported.loaded[0], std::pair(std::uint64_t{3}, std::uint64_t{77}));
}

}  // namespace
}  // namespace orbitkv::testing
