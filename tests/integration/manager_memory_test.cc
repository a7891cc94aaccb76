// A Manager inside a memory control group that its killed predecessor's pool still fills.
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <unistd.h>

#include "manager_world.h"

#include "orbitkv/os/file.h"

namespace orbitkv::integration {
namespace {

using testing::Chain;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A control group of version 1 with a limit, removed at the end.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t limit_bytes)
      : path_("/sys/fs/cgroup/memory/orbitkv_test_" + std::to_string(::getpid())) {
    std::error_code error;
    if (!std::filesystem::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes", error)) return;
    if (!std::filesystem::create_directory(path_, error)) return;
    std::ofstream file(path_ + "/memory.limit_in_bytes");
    file << limit_bytes << std::flush;
    usable_ = file.good();
  }
  ~MemoryGroup() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  bool usable() const { return usable_; }
  // For a child between fork and exec.
  void Join() const {
    const int file = ::open((path_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || ::write(file, "0", 1) != 1) ::_exit(125);
    ::close(file);
  }
  std::uint64_t Number(const std::string& name) const {
    const auto text = os::ReadFile(path_ + "/" + name, 4096);
    return text ? std::stoull(*text) : 0;
  }

 private:
  std::string path_;
  bool usable_ = false;
};

class ManagerMemory : public ManagerWorld {};

TEST_F(ManagerMemory, ANewManagerTakesNoMoreThanTheOldPoolLeavesAndGrowsWhenItIsGone) {
  const MemoryGroup group(336 * kMiB);
  if (!group.usable()) GTEST_SKIP() << "no writable memory control group of version 1";
  const auto join = [&] { group.Join(); };
  pool_ = "192MiB";
  auto first = StartManager({}, join);
  ASSERT_TRUE(first);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  ASSERT_TRUE(Becomes(*client, "orbitkv_pool_reserved_bytes", static_cast<double>(192 * kMiB)));
  ASSERT_EQ(client->Publish(Chain(1, 4)).value(), 4U);
  first->Signal(SIGKILL);
  ASSERT_TRUE(first->WaitExit());
  EXPECT_GE(group.Number("memory.usage_in_bytes"), 192 * kMiB) << "the client's mapping holds the old pool";

  auto second = StartManager({}, join);
  ASSERT_TRUE(second);
  auto watcher = Open(Options("watcher"));
  ASSERT_TRUE(watcher);
  EXPECT_TRUE(second->WaitError("waiting for memory"));
  EXPECT_EQ(Figure(*watcher, "orbitkv_pool_reserved_bytes"), static_cast<double>(64 * kMiB));
  EXPECT_EQ(watcher->Publish(Chain(2, 4)).value(), 4U);
  // As a client does before it connects again.
  client.reset();
  EXPECT_TRUE(Becomes(*watcher, "orbitkv_pool_reserved_bytes", static_cast<double>(192 * kMiB)));
  EXPECT_TRUE(second->running());
  watcher.reset();
  second->Signal(SIGTERM);
  EXPECT_EQ(second->WaitExit(), 0);
}

TEST_F(ManagerMemory, APoolAboveTheGroupsLimitIsRefusedNamingBothNumbers) {
  const MemoryGroup group(64 * kMiB);
  if (!group.usable()) GTEST_SKIP() << "no writable memory control group of version 1";
  pool_ = "128MiB";
  auto manager = Launch({}, [&] { group.Join(); });
  EXPECT_EQ(manager->WaitExit(), 2);
  EXPECT_NE(manager->error().find(std::to_string(128 * kMiB)), std::string::npos) << manager->error();
  EXPECT_NE(manager->error().find(std::to_string(64 * kMiB)), std::string::npos);
}

}  // namespace
}  // namespace orbitkv::integration
