#include "orbitkv/os/direct_file.h"

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/io_ring.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::os {
namespace {

constexpr std::uint64_t kBytes = 1 << 20;
constexpr std::uint64_t kPatienceNs = 60'000'000'000;

class DirectFileTest : public ::testing::Test {
 protected:
  std::span<std::byte> Page(std::size_t i) { return memory_.bytes().subspan(i * 4096, 4096); }
  IoPiece Piece(std::size_t i) { return {Page(i).data(), Page(i).size()}; }

  const testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "file";
  const Mapping memory_ = Mapping::Anonymous(4 * 4096).value();
};

TEST_F(DirectFileTest, ReservesAndMovesSeveralPieces) {
  EXPECT_EQ(DirectFile::Open(path_, DirectFile::Use::kReadWrite).error().code, Code::kNotFound);
  auto file = DirectFile::Open(path_, DirectFile::Use::kCreateIfAbsent).value();
  EXPECT_EQ(file.bytes(), 0U);
  ASSERT_TRUE(file.Reserve(kBytes));
  EXPECT_EQ(file.bytes(), kBytes);
  std::memset(Page(0).data(), 1, 4096);
  std::memset(Page(1).data(), 2, 4096);
  const std::array<IoPiece, 2> out = {Piece(0), Piece(1)};
  EXPECT_EQ(WritePieces(file.fd(), 4096, out).value(), 8192U);
  ASSERT_TRUE(SyncData(file.fd()));
  const std::array<IoPiece, 1> in = {Piece(2)};
  EXPECT_EQ(ReadPieces(file.fd(), 8192, in).value(), 4096U);
  EXPECT_EQ(std::memcmp(Page(2).data(), Page(1).data(), 4096), 0);
  EXPECT_EQ(ReadPieces(file.fd(), kBytes, in).value(), 0U);
}

TEST_F(DirectFileTest, KnowsWhetherAnythingIsInIt) {
  auto file = DirectFile::Open(path_, DirectFile::Use::kCreateIfAbsent).value();
  EXPECT_TRUE(file.IsBlank().value());
  ASSERT_TRUE(file.Reserve(kBytes + 4096));
  EXPECT_TRUE(file.IsBlank().value());
  std::memset(Page(0).data(), 0, 4096);
  const std::array<IoPiece, 1> piece = {Piece(0)};
  ASSERT_EQ(WritePieces(file.fd(), kBytes, piece).value(), 4096U);
  EXPECT_TRUE(file.IsBlank().value()) << "zeros are nothing, whoever wrote them";
  Page(0)[4095] = std::byte{1};
  ASSERT_EQ(WritePieces(file.fd(), kBytes, piece).value(), 4096U);
  EXPECT_FALSE(file.IsBlank().value());
}

TEST_F(DirectFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(DirectFile::Open(directory_.path(), DirectFile::Use::kReadOnly).error().code, Code::kInvalid);
  EXPECT_EQ(DirectFile::Open("/dev/null", DirectFile::Use::kReadWrite).error().code, Code::kInvalid);
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(DirectFile::Open(directory_ / "pipe", DirectFile::Use::kReadWrite).error().code, Code::kInvalid);
}

TEST_F(DirectFileTest, ASecondProcessIsRefusedWithThePidOfTheFirst) {
  auto file = DirectFile::Open(path_, DirectFile::Use::kCreateIfAbsent).value();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto second = DirectFile::Open(path_, DirectFile::Use::kReadWrite);
    const bool refused = !second && second.error().code == Code::kRefused &&
                         second.error().a == static_cast<std::uint64_t>(parent) &&
                         DirectFile::Open(path_, DirectFile::Use::kReadOnly).has_value();
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(DirectFileTest, TheRingCarriesOutWhatWasPushed) {
  auto file = DirectFile::Open(path_, DirectFile::Use::kCreateIfAbsent).value();
  ASSERT_TRUE(file.Reserve(kBytes));
  const EventFd event = EventFd::Create().value();
  auto ring = IoRing::Create(2, event.fd());
  if (!ring) GTEST_SKIP() << ToString(ring.error());
  static_cast<void>(ring->RegisterBuffer(Page(0)));
  std::memset(Page(0).data(), 7, 4096);
  std::memset(Page(1).data(), 8, 4096);
  const std::array<IoPiece, 1> fixed = {Piece(0)};
  const std::array<IoPiece, 1> plain = {Piece(1)};
  ASSERT_TRUE(ring->Push({IoRing::Op::kWrite, file.fd(), 0, fixed, 1}));
  ASSERT_TRUE(ring->Push({IoRing::Op::kWrite, file.fd(), 4096, plain, 2}));
  EXPECT_FALSE(ring->Push({IoRing::Op::kSync, file.fd(), 0, {}, 3}));
  ASSERT_TRUE(ring->Submit());
  Epoll epoll = Epoll::Create().value();
  ASSERT_TRUE(epoll.Add(event.fd(), EPOLLIN, 0));
  const auto wait = [&](std::size_t wanted) {
    std::vector<IoRing::Completion> all;
    const std::uint64_t deadline = DeadlineAfter(kPatienceNs);
    while (all.size() < wanted && MonotonicNs() < deadline) {
      std::array<Epoll::Event, 1> events;
      static_cast<void>(epoll.Wait(events, deadline));
      event.Drain();
      std::array<IoRing::Completion, 1> done;
      while (ring->Reap(done) == 1) all.push_back(done[0]);
    }
    return all;
  };
  for (const IoRing::Completion& done : wait(2)) EXPECT_EQ(done.result, 4096) << done.token;
  const std::array<IoPiece, 2> both = {Piece(2), Piece(3)};
  ASSERT_TRUE(ring->Push({IoRing::Op::kRead, file.fd(), 0, both, 4}));
  ASSERT_TRUE(ring->Push({IoRing::Op::kRead, -1, 0, both, 5}));
  ASSERT_TRUE(ring->Submit());
  const auto done = wait(2);
  ASSERT_EQ(done.size(), 2U);
  for (const IoRing::Completion& one : done) EXPECT_EQ(one.result, one.token == 4 ? 8192 : -EBADF);
  EXPECT_EQ(Page(2)[4095], std::byte{7});
  EXPECT_EQ(Page(3)[0], std::byte{8});
}

}  // namespace
}  // namespace orbitkv::os
