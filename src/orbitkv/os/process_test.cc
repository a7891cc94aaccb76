#include <atomic>
#include <csignal>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/fork_guard.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/signal_fd.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::os {
namespace {

TEST(Pidfd, BecomesReadableWhenTheProcessEnds) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const UniqueFd pidfd = OpenPidfd(child).value();
  EXPECT_EQ(PidOf(pidfd.get()).value(), child);
  EXPECT_FALSE(ProcessEnded(pidfd.get()));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(WaitReadable(pidfd.get(), kNoDeadline));
  EXPECT_TRUE(ProcessEnded(pidfd.get()));
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(PidOf(pidfd.get()).value(), -1);
  EXPECT_EQ(PidOf(STDIN_FILENO).error().code, Code::kInvalid);
}

TEST(UnixSocket, CarriesBytesDescriptorsAndCredentials) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "s";
  EXPECT_EQ(ConnectUnix(path, 0).error().code, Code::kUnavailable);
  const UniqueFd listener = ListenUnix(path).value();
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);

  EXPECT_FALSE(AcceptUnix(listener.get()).value().has_value());
  const UniqueFd client = ConnectUnix(path, kNoDeadline).value();
  const UniqueFd server = std::move(*AcceptUnix(listener.get()).value());
  EXPECT_EQ(PeerOf(server.get()).value().pid, OwnPid());
  EXPECT_EQ(PeerOf(client.get()).value().uid, OwnUid());

  const UniqueFd passed = OwnPidfd().value();
  const std::byte message[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  const int fds[1] = {passed.get()};
  ASSERT_TRUE(SendAll(client.get(), message, fds, kNoDeadline));
  std::byte received[3] = {};
  std::vector<UniqueFd> got;
  ASSERT_TRUE(ReceiveAll(server.get(), received, &got, kNoDeadline));
  EXPECT_EQ(received[2], std::byte{3});
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(PidOf(got[0].get()).value(), OwnPid());
}

TEST(UnixSocket, DeadlinesAndClosedPeers) {
  auto [a, b] = SocketPair().value();
  std::byte buffer[8] = {};
  EXPECT_EQ(ReceiveAll(a.get(), buffer, nullptr, MonotonicNs() + 1'000'000).error().code, Code::kTimedOut);
  const std::vector<std::byte> large(16U << 20U);
  EXPECT_EQ(SendAll(a.get(), large, {}, MonotonicNs() + 1'000'000).error().code, Code::kTimedOut);
  EXPECT_FALSE(HungUp(b.get()));
  a.reset();
  EXPECT_TRUE(HungUp(b.get()));
  std::vector<std::byte> rest(32U << 20U);
  EXPECT_EQ(ReceiveAll(b.get(), rest, nullptr, kNoDeadline).error().code, Code::kUnavailable);
  EXPECT_EQ(SendAll(b.get(), large, {}, kNoDeadline).error().code, Code::kUnavailable);
}

TEST(UnixSocket, RefusesALongPathAndAFileInTheWay) {
  EXPECT_EQ(ListenUnix(std::string(200, 'x')).error().code, Code::kInvalid);
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(ListenUnix(directory.path()).error().code, Code::kInvalid);
}

TEST(ForkGuard, RefusesInheritedObjectsOnly) {
  const ForkGuard inherited;
  EXPECT_FALSE(inherited.InChild());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(inherited.InChild() && !ForkGuard().InChild() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(inherited.InChild());
}

TEST(SignalFd, TakesASignal) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto signals = SignalFd::Create({SIGTERM});
    if (!signals || signals->Take()) ::_exit(1);
    ::kill(::getpid(), SIGTERM);
    ::_exit(WaitReadable(signals->fd(), kNoDeadline) && signals->Take() == SIGTERM ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Thread, RunsAndJoins) {
  int value = 0;
  {
    Thread thread;
    ASSERT_TRUE(thread.Start("orbitkv-test-with-a-long-name", [&value] { value = PinThread(0) ? 1 : 2; }));
  }
  EXPECT_EQ(value, 1);
  EXPECT_GE(CpuCount(), 1);
  EXPECT_EQ(PinThread(-1).error().code, Code::kInvalid);
}

TEST(Thread, KnowsHowLongItHadNoCpu) {
  if (!CpuWaitNs()) GTEST_SKIP() << "this kernel does not tell";
  std::atomic<int> done = 0;
  // Two that always have work share one cpu: each waits for the other.
  const auto compete = [&done] {
    ASSERT_TRUE(PinThread(0));
    const std::uint64_t before_ns = CpuWaitNs().value();
    const std::uint64_t deadline_ns = DeadlineAfter(20'000'000'000);
    bool waited = false;
    while (done.load() < 2 && MonotonicNs() < deadline_ns) {
      if (!waited && CpuWaitNs().value() > before_ns + 1'000'000) {
        waited = true;
        ++done;
      }
    }
    EXPECT_TRUE(waited);
  };
  Thread one;
  Thread other;
  ASSERT_TRUE(one.Start("one", compete));
  ASSERT_TRUE(other.Start("other", compete));
}

}  // namespace
}  // namespace orbitkv::os
