#include <atomic>
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/futex.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/random.h"

namespace orbitkv::os {
namespace {

constexpr std::uint64_t kBytes = 1U << 20U;

TEST(Mapping, TwoMappingsOfOneFileShareBytes) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  const Mapping a = Mapping::Map(fd.get(), kBytes, Access::kReadWrite).value();
  const Mapping b = Mapping::Map(fd.get(), 4096, Access::kRead, kBytes - 4096).value();
  a.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(b.data()[4095], std::byte{7});
}

TEST(Mapping, PopulateMakesPagesResident) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  Mapping mapping = Mapping::Map(fd.get(), kBytes, Access::kReadWrite).value();
  ASSERT_TRUE(mapping.Populate(4096, 8192, Access::kReadWrite));
  unsigned char resident[4] = {};
  ASSERT_EQ(::mincore(mapping.data(), 4 * 4096, resident), 0);
  EXPECT_EQ(resident[0] & 1, 0);
  EXPECT_EQ(resident[1] & 1, 1);
  EXPECT_EQ(resident[2] & 1, 1);
  EXPECT_EQ(resident[3] & 1, 0);
  EXPECT_EQ(mapping.Populate(kBytes, 1, Access::kRead).error().code, Code::kInvalid);
}

TEST(Mapping, IsAbsentInAForkedChild) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  const Mapping mapping = Mapping::Map(fd.get(), kBytes, Access::kReadWrite).value();
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char resident = 0;
    ::_exit(::mincore(mapping.data(), 4096, &resident) != 0 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Memfd, SealedSizeCannotChange) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  EXPECT_FALSE(HasSizeSeals(fd.get()).value());
  ASSERT_TRUE(SealSize(fd.get()));
  EXPECT_TRUE(HasSizeSeals(fd.get()).value());
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd.get(), 2 * kBytes), 0);
  EXPECT_EQ(FileBytes(fd.get()).value(), kBytes);
}

TEST(Memfd, ReserveAllocatesAndDiscardGivesBack) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  ASSERT_TRUE(SealSize(fd.get()));
  EXPECT_EQ(AllocatedBytes(fd.get()).value(), 0U);
  ASSERT_TRUE(Reserve(fd.get(), 0, kBytes / 2));
  EXPECT_EQ(AllocatedBytes(fd.get()).value(), kBytes / 2);
  const Mapping mapping = Mapping::Map(fd.get(), kBytes, Access::kReadWrite).value();
  mapping.data()[5] = std::byte{9};
  ASSERT_TRUE(Discard(fd.get(), 0, kBytes / 2));
  EXPECT_EQ(mapping.data()[5], std::byte{0});
}

TEST(Memfd, ReadOnlyCopyCannotBeMappedForWriting) {
  const UniqueFd fd = CreateMemfd("test", kBytes).value();
  const UniqueFd copy = ReopenReadOnly(fd.get()).value();
  EXPECT_TRUE(Mapping::Map(copy.get(), kBytes, Access::kRead));
  EXPECT_EQ(Mapping::Map(copy.get(), kBytes, Access::kReadWrite).error().sys_errno, EACCES);
}

TEST(Futex, ReturnsAtTheDeadlineOnAChangeAndOnAWake) {
  std::atomic<std::uint32_t> word{1};
  EXPECT_FALSE(FutexWait(&word, 1, MonotonicNs() + 1'000'000));
  EXPECT_TRUE(FutexWait(&word, 2, kNoDeadline));
  std::thread sleeper([&word] {
    while (word.load() == 1) FutexWait(&word, 1, kNoDeadline);
  });
  word.store(2);
  FutexWake(&word, 1);
  sleeper.join();
}

TEST(EventFd, EpollSeesASignalUntilItIsDrained) {
  const EventFd event = EventFd::Create().value();
  Epoll epoll = Epoll::Create().value();
  ASSERT_TRUE(epoll.Add(event.fd(), EPOLLIN, 42));
  Epoll::Event ready[2];
  EXPECT_EQ(epoll.Wait(ready, 0).value(), 0U);
  event.Signal();
  EXPECT_EQ(epoll.Wait(ready, kNoDeadline).value(), 1U);
  EXPECT_EQ(ready[0].tag, 42U);
  EXPECT_TRUE(event.Drain());
  EXPECT_FALSE(event.Drain());
  EXPECT_EQ(epoll.Wait(ready, MonotonicNs() + 1000).value(), 0U);
}

TEST(Random, BytesDiffer) {
  std::byte a[16] = {};
  std::byte b[16] = {};
  ASSERT_TRUE(RandomBytes(a));
  ASSERT_TRUE(RandomBytes(b));
  EXPECT_NE(std::memcmp(a, b, sizeof a), 0);
}

}  // namespace
}  // namespace orbitkv::os
