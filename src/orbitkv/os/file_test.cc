#include "orbitkv/os/file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "orbitkv/os/memory_limits.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::os {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& content) {
    const std::filesystem::path path = std::filesystem::path(directory_ / name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  MemoryPaths Paths() const { return {directory_ / "meminfo", directory_ / "own", directory_ / "cgroup"}; }

  const testing::TemporaryDirectory directory_;
};

TEST_F(FileTest, LockIsExclusiveAndTheFileStays) {
  const std::string path = directory_ / "lock";
  {
    const auto lock = FileLock::TryAcquire(path).value();
    ASSERT_TRUE(lock.has_value());
    EXPECT_FALSE(FileLock::TryAcquire(path).value().has_value());
  }
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_TRUE(FileLock::TryAcquire(path).value().has_value());
}

TEST_F(FileTest, ReplaceThenReadAndIdentityChanges) {
  const std::string path = directory_ / "f";
  EXPECT_EQ(ReadFile(path, 10).error().code, Code::kNotFound);
  ASSERT_TRUE(ReplaceFile(path, "one"));
  const auto before = IdentityOf(path).value();
  EXPECT_EQ(ReadFile(path, 3).value(), "one");
  EXPECT_EQ(ReadFile(path, 2).error().code, Code::kInvalid);
  ASSERT_TRUE(ReplaceFile(path, "other"));
  EXPECT_NE(IdentityOf(path).value(), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_.path()), {}), 1);
  ASSERT_TRUE(RemoveFile(path));
  EXPECT_EQ(IdentityOf(path).error().code, Code::kNotFound);
}

TEST_F(FileTest, EnsureDirectoryKeepsWhatIsThere) {
  const std::string path = directory_ / "d";
  ASSERT_TRUE(EnsureDirectory(path, 0700));
  EXPECT_EQ(DirectoryFactsOf(path).value().mode, 0700U);
  EXPECT_TRUE(EnsureDirectory(path, 0755));
  EXPECT_EQ(DirectoryFactsOf(path).value().mode, 0700U);
  Put("plain", "");
  EXPECT_EQ(EnsureDirectory(directory_ / "plain", 0700).error().code, Code::kInvalid);
}

TEST_F(FileTest, Version2TakesTheSmallestRoomUpTheTree) {
  Put("meminfo", "MemTotal: 100 kB\nMemAvailable:     9000 kB\n");
  Put("own", "0::/a/b\n");
  Put("cgroup/a/memory.max", "5000\n");
  Put("cgroup/a/memory.current", "3000\n");
  Put("cgroup/a/memory.stat", "anon 1\ninactive_file 500\n");
  Put("cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(Paths()).value(), 9000U * 1024U);
  EXPECT_EQ(CgroupRoom(Paths()), 2500U);
  EXPECT_EQ(MemoryRoom(Paths()).value(), 2500U);
  EXPECT_EQ(CgroupLimit(Paths()), 5000U);
  EXPECT_EQ(TotalMemory(Paths()).value(), 100U * 1024U);
  Put("cgroup/a/b/memory.max", "1000\n");
  Put("cgroup/a/b/memory.current", "1200\n");
  EXPECT_EQ(CgroupRoom(Paths()), 0U);
}

TEST_F(FileTest, Version1AndNoLimit) {
  Put("meminfo", "MemAvailable: 1 kB\n");
  Put("own", "9:name=systemd:/\n4:cpu,memory:/x/y\n0::/\n");
  Put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(CgroupRoom(Paths()), std::nullopt);
  EXPECT_EQ(CgroupLimit(Paths()), std::nullopt);
  EXPECT_EQ(MemoryRoom(Paths()).value(), 1024U);
  Put("cgroup/memory/x/memory.limit_in_bytes", "700\n");
  Put("cgroup/memory/x/memory.usage_in_bytes", "100\n");
  EXPECT_EQ(CgroupRoom(Paths()), 600U);
  EXPECT_EQ(CgroupLimit(Paths()), 700U);
}

TEST_F(FileTest, ThisMachineAnswers) { EXPECT_GT(MemoryRoom().value(), 0U); }

}  // namespace
}  // namespace orbitkv::os
