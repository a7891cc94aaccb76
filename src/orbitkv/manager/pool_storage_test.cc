#include "orbitkv/manager/pool_storage.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/memfd.h"
#include "orbitkv/testing/service_keeper_fixture.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint64_t kPoolBytes = 4U << 20U;
constexpr wire::TablesShape kShape{
    .pool_bytes = kPoolBytes, .unit_bytes = 2U << 20U, .max_slots = 100, .namespace_rows = 3, .session_rows = 5};

class PoolStorageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path("/dev/shm") / ("orbitkv_storage_" + std::to_string(::getpid()));
    if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no tmpfs";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  PoolStorage::Options Options() const {
    PoolStorage::Options options;
    options.pool_bytes = kPoolBytes;
    options.huge_pages = HugePages::kOff;
    options.directory = directory_;
    options.shape = kShape;
    return options;
  }
  static void Mark(PoolStorage& storage) { storage.tables()[wire::kTablesAlign] = std::byte{77}; }
  static bool Marked(const PoolStorage& storage) { return storage.tables()[wire::kTablesAlign] == std::byte{77}; }

  std::filesystem::path directory_;
};

TEST_F(PoolStorageTest, ADirectoryIsFoundAgain) {
  {
    auto first = PoolStorage::Open(Options()).value();
    EXPECT_FALSE(first.taken_over());
    EXPECT_TRUE(first.named());
    EXPECT_TRUE(first.outlives());
    EXPECT_EQ(first.pool().bytes(), kPoolBytes);
    EXPECT_EQ(first.reserved_bytes(), 0U);
    EXPECT_TRUE(wire::CheckTables(wire::LoadTablesHeader(first.tables()).value(), kShape));
    ASSERT_TRUE(os::Reserve(first.pool().fd(), 0, 3U << 20U));
    wire::SpanTable table(first.tables());
    ASSERT_TRUE(wire::StoreReservedBytes(table, kPoolBytes));  // more than there is
    Mark(first);
  }
  for (const char* name : {"pool", "tables", "liveness"}) {
    EXPECT_EQ(std::filesystem::status(directory_ / name).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << name;
  }
  const auto second = PoolStorage::Open(Options()).value();
  EXPECT_TRUE(second.taken_over());
  EXPECT_TRUE(Marked(second));
  EXPECT_EQ(second.reserved_bytes(), 3U << 20U);
}

TEST_F(PoolStorageTest, WhatDoesNotFitIsGivenUpAndTheOldMemoryIsLeftAlone) {
  const auto spoil = [&](auto spoiling, auto change) {
    std::filesystem::remove_all(directory_);
    os::UniqueFd old_pool;
    {
      auto first = PoolStorage::Open(Options()).value();
      Mark(first);
      old_pool = os::Duplicate(first.pool().fd()).value();
    }
    spoiling();
    PoolStorage::Options options = Options();
    change(options);
    const auto second = PoolStorage::Open(std::move(options));
    ASSERT_TRUE(second) << second.error().text;
    EXPECT_FALSE(second->taken_over());
    EXPECT_FALSE(Marked(*second));
    EXPECT_NE(os::IdentityOf(old_pool.get())->inode, os::IdentityOf((directory_ / "pool").string())->inode);
  };
  const auto nothing = [](auto&...) {};
  spoil(nothing, [](PoolStorage::Options& o) { o.shape.max_slots = 200; });
  spoil(nothing, [](PoolStorage::Options& o) {
    o.pool_bytes *= 2;
    o.shape.pool_bytes *= 2;
  });
  spoil([&] { std::filesystem::remove(directory_ / "pool"); }, nothing);
  spoil([&] { std::filesystem::remove(directory_ / "liveness"); }, nothing);
  spoil([&] { std::filesystem::resize_file(directory_ / "pool", kPoolBytes / 2); }, nothing);
  spoil([&] { std::filesystem::resize_file(directory_ / "tables", 4096); }, nothing);
  spoil([&] { std::filesystem::resize_file(directory_ / "tables", 0); }, nothing);
  spoil(
      [&] {
        std::fstream file(directory_ / "tables", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(20);
        file.put('x');
      },
      nothing);
}

TEST_F(PoolStorageTest, ADirectoryHasOneManager) {
  const auto first = PoolStorage::Open(Options()).value();
  PoolStorage::Options options = Options();
  options.lock_wait_ns = 1'000'000;
  const auto second = PoolStorage::Open(std::move(options));
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().text.find("pid " + std::to_string(::getpid())), std::string::npos) << second.error().text;
  EXPECT_NE(second.error().text.find(directory_.string()), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "pool"));
}

TEST_F(PoolStorageTest, UnusableDirectoriesAreRefusedWithTheRemedy) {
  PoolStorage::Options options = Options();
  options.directory = "/proc";
  auto refused = PoolStorage::Open(std::move(options));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().bad_configuration);
  EXPECT_NE(refused.error().text.find("tmpfs"), std::string::npos);
  options = Options();
  options.directory = "/dev/shm/absent/below";
  EXPECT_FALSE(PoolStorage::Open(std::move(options)));
  options = Options();
  options.pool_bytes = std::uint64_t{1} << 46U;
  options.shape.pool_bytes = options.pool_bytes;
  refused = PoolStorage::Open(std::move(options));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text.find("--pool-bytes"), std::string::npos) << refused.error().text;
  EXPECT_FALSE(std::filesystem::exists(directory_ / "pool")) << "nothing is left behind";
}

TEST_F(PoolStorageTest, WithoutAnythingNothingOutlives) {
  PoolStorage::Options options = Options();
  options.directory = "";
  auto storage = PoolStorage::Open(std::move(options)).value();
  EXPECT_FALSE(storage.outlives());
  EXPECT_FALSE(storage.named());
  EXPECT_EQ(storage.liveness_fd(), -1);
  EXPECT_TRUE(os::HasSizeSeals(storage.pool().fd()).value());
}

TEST_F(PoolStorageTest, TheServiceManagerKeepsWhatIsTakenOver) {
  std::filesystem::create_directory(directory_);
  const std::string path = directory_ / "notify";
  ::orbitkv::testing::ServiceKeeper keeper(path);
  const auto options = [&] {
    PoolStorage::Options made = Options();
    made.directory = "";
    made.notify_socket = path;
    made.passed = keeper.Copies();
    return made;
  };
  {
    auto first = PoolStorage::Open(options()).value();
    EXPECT_TRUE(first.outlives());
    EXPECT_FALSE(first.named()) << "memfds are sealed";
    Mark(first);
  }
  keeper.Receive();
  ASSERT_EQ(keeper.kept().size(), 3U);
  {
    auto second = PoolStorage::Open(options()).value();
    EXPECT_TRUE(second.taken_over());
    EXPECT_TRUE(Marked(second));
  }
  // Something is missing, or does not fit: all of it is replaced.
  keeper.kept().erase(PoolStorage::kLivenessName);
  const auto old_inode = os::IdentityOf(keeper.kept().at(PoolStorage::kPoolName).get())->inode;
  const auto third = PoolStorage::Open(options()).value();
  EXPECT_FALSE(third.taken_over());
  keeper.Receive();
  ASSERT_EQ(keeper.kept().size(), 3U);
  EXPECT_NE(os::IdentityOf(keeper.kept().at(PoolStorage::kPoolName).get())->inode, old_inode);
}

}  // namespace
}  // namespace orbitkv::manager
