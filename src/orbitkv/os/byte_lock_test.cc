#include "orbitkv/os/byte_lock.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/fork_guard.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/named_memory.h"

namespace orbitkv::os {
namespace {

TEST(ByteLock, IsHeldUntilTheLastDescriptorOfItsOpenFileIsClosed) {
  const UniqueFd file = CreateMemfd("locks", 4096).value();
  UniqueFd holder = OpenAgain(file.get()).value();
  const UniqueFd other = OpenAgain(file.get()).value();
  EXPECT_FALSE(ByteIsLocked(other.get(), 7).value());
  EXPECT_TRUE(TryLockByte(holder.get(), 7).value());
  EXPECT_TRUE(ByteIsLocked(other.get(), 7).value());
  EXPECT_FALSE(ByteIsLocked(other.get(), 8).value());
  EXPECT_FALSE(TryLockByte(other.get(), 7).value());
  UniqueFd twin = Duplicate(holder.get()).value();
  holder.reset();
  EXPECT_TRUE(ByteIsLocked(other.get(), 7).value());
  twin.reset();
  EXPECT_FALSE(ByteIsLocked(other.get(), 7).value());
  EXPECT_TRUE(TryLockByte(other.get(), 7).value());
}

TEST(ByteLock, AForkedChildKeepsItOnlyWhereNobodyClosedIt) {
  for (const bool closed : {true, false}) {
    const UniqueFd file = CreateMemfd("locks", 4096).value();
    UniqueFd holder = OpenAgain(file.get()).value();
    ASSERT_TRUE(TryLockByte(holder.get(), 1).value());
    if (closed) CloseInChild(holder.get());
    int go[2];
    int there[2];
    ASSERT_EQ(::pipe(go), 0);
    ASSERT_EQ(::pipe(there), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(go[1]);
      char byte = 0;
      if (::write(there[1], &byte, 1) != 1) ::_exit(2);
      ::_exit(::read(go[0], &byte, 1) == 0 ? 0 : 1);
    }
    ::close(go[0]);
    char byte = 0;
    ASSERT_EQ(::read(there[0], &byte, 1), 1) << "fork has returned in the child";
    ::close(there[0]);
    ::close(there[1]);
    KeepInChild(holder.get());
    holder.reset();
    EXPECT_EQ(ByteIsLocked(OpenAgain(file.get()).value().get(), 1).value(), !closed);
    ::close(go[1]);
    ::waitpid(child, nullptr, 0);
    EXPECT_FALSE(ByteIsLocked(OpenAgain(file.get()).value().get(), 1).value());
  }
}

TEST(NamedMemory, FilesAreThisUsersAloneAndSaysWhereTheyLie) {
  const auto directory = std::filesystem::path("/dev/shm") / ("orbitkv_named_" + std::to_string(::getpid()));
  if (!std::filesystem::create_directory(directory)) GTEST_SKIP() << "no /dev/shm";
  const std::string path = directory / "pool";
  EXPECT_EQ(MemoryFileSystemOf(directory).value().kind, MemoryFileSystem::Kind::kTmpfs);
  EXPECT_GE(MemoryFileSystemOf(directory).value().page_bytes, 4096U);
  EXPECT_EQ(MemoryFileSystemOf("/proc").value().kind, MemoryFileSystem::Kind::kOther);
  EXPECT_EQ(MemoryFileSystemOf(directory / "absent").error().code, Code::kNotFound);
  EXPECT_FALSE(OpenNamedMemory(path).value().has_value());
  {
    const UniqueFd made = CreateNamedMemory(path, 3 << 20U).value();
    EXPECT_EQ(FileBytes(made.get()).value(), 3U << 20U);
    EXPECT_FALSE(CreateNamedMemory(path, 4096)) << "it is there already";
    EXPECT_EQ(AllocatedBytes(made.get()).value(), 0U);
    ASSERT_TRUE(Reserve(made.get(), 0, 1 << 20U));
    EXPECT_EQ(AllocatedBytes(made.get()).value(), 1U << 20U);
  }
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto again = OpenNamedMemory(path).value();
  ASSERT_TRUE(again);
  EXPECT_EQ(FileBytes(again->get()).value(), 3U << 20U);
  std::filesystem::create_symlink(path, directory / "link");
  EXPECT_FALSE(OpenNamedMemory(directory / "link"));
  std::filesystem::create_directory(directory / "folder");
  EXPECT_FALSE(OpenNamedMemory(directory / "folder"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace orbitkv::os
