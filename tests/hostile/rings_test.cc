// Clients that write whatever they like into what they share with the Manager.
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "hostile_world.h"
#include "noise.h"
#include "raw_session.h"

#include "orbitkv/base/prng.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;
using testing::RawClient;
using wire::AnswerStatus;
using wire::Command;

constexpr double kBurst = channel::ServerSession::kMostIdleRings;
constexpr double kAfterMute = channel::ServerSession::kIdleRingsAfterMute;
constexpr double kMuteNs = 20'000'000;

class HostileRings : public HostileWorld {
 protected:
  struct RingFigures {
    double idle = 0;
    double mutes = 0;
    double requests = 0;
  };
  // All of one moment.
  RingFigures ReadRings() {
    const auto figures = neighbour_->Figures().value();
    return {figures.at("orbitkv_idle_rings_total"), figures.at("orbitkv_doorbells_muted_total"),
            figures.at("orbitkv_requests_total")};
  }
};

TEST_F(HostileRings, CommandsMadeByChance) {
  Attack([this](const auto& ready) { SpeakNoise(socket_, 1, ready); });
  const double before = Figure("orbitkv_requests_malformed_total");
  ExerciseNeighbour(100);
  EXPECT_TRUE(integration::Eventually([&] { return Growth("orbitkv_requests_malformed_total", before) > 1000; }));
  ExpectUnharmed();
}

TEST_F(HostileRings, RandomBytesInRingsCursorsAndArenaAtFullSpeed) {
  Attack([this](const auto& ready) {
    Prng prng(2);
    bool told = false;
    for (;;) {
      auto session = RawSession::Connect(socket_);
      if (!session) return;
      if (!std::exchange(told, true)) ready();
      for (int i = 0; i < 50'000; ++i) {
        // The ring and its arguments most of the time; now and then the header with its cursors.
        Scribble(prng.Below(100) == 0 ? session->memory().first(sizeof(wire::SessionHeader)) : session->memory(), prng);
        session->header().request_head.fetch_add(static_cast<std::uint32_t>(prng.Below(3)));
        if (i % 64 == 0) session->RingDoorbell();
      }
    }
  });
  ExerciseNeighbour(100);
  EXPECT_TRUE(manager_->WaitError("makes no sense"));
  ExpectUnharmed();
}

TEST_F(HostileRings, OldDescriptorsAreNotExecutedAgain) {
  auto session = RawSession::Connect(socket_).value();
  ASSERT_TRUE(session.Register("replay"));
  wire::ReserveHeader header{};
  header.slot_bytes = 4104;
  const auto arguments = wire::EncodeReserve(header, Chain(900, 2));
  const wire::Descriptor reserve = session.WithArguments(Command::kPublishReserve, arguments);
  const auto first = session.Call(reserve);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->op, static_cast<std::uint16_t>(AnswerStatus::kOk));
  EXPECT_EQ(Figure("orbitkv_reservations"), 1);
  const wire::Descriptor abort = [&] {
    wire::Descriptor request = session.Good(Command::kPublishAbort);
    request.scalar0 = first->scalar0 + 1;
    return request;
  }();
  std::memcpy(session.Slot(0), arguments.data(), arguments.size());
  for (int i = 0; i < 200; ++i) {
    const auto answer = session.Call(reserve);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->op, static_cast<std::uint16_t>(AnswerStatus::kStale));
  }
  // The next one in order is served, and after it none before it.
  ASSERT_TRUE(session.Call(abort));
  EXPECT_EQ(session.Call(abort)->op, static_cast<std::uint16_t>(AnswerStatus::kStale));
  EXPECT_EQ(Figure("orbitkv_reservations"), 1);
  EXPECT_EQ(Figure("orbitkv_reserved_slots"), 2);
  wire::Descriptor end = session.Good(Command::kPublishAbort);
  end.scalar0 = first->scalar0;
  ASSERT_TRUE(session.Call(end));
  EXPECT_EQ(Figure("orbitkv_reservations"), 0);
}

TEST_F(HostileRings, ArgumentsThatChangeWhileTheyAreRead) {
  Attack([this](const auto& ready) {
    auto session = RawSession::Connect(socket_);
    if (!session || !session->Register("changing")) return;
    const auto query = RawClient::QueryArguments(1, Chain(1, 100));
    std::thread changer([&session, &query] {
      Prng prng(3);
      std::byte* slot = session->Slot(0);
      for (;;) {
        std::memcpy(slot, query.data(), query.size());
        for (int i = 0; i < 4; ++i) Scribble({slot, 96}, prng);  // the header with its counts, the first hashes
      }
    });
    ready();
    Prng prng(4);
    for (;;) {
      while (session->Take()) {
      }
      if (!session->has_room()) continue;
      wire::Descriptor request = session->Good(prng.Below(2) == 0 ? Command::kQuerySubmit : Command::kPublishReserve);
      request.arena_offset = 0;
      request.arena_length = static_cast<std::uint32_t>(query.size());
      session->Push(request);
    }
  });
  const double before = Figure("orbitkv_queries_total");
  ExerciseNeighbour(100);
  EXPECT_TRUE(integration::Eventually([&] { return Growth("orbitkv_queries_total", before) > 200; }));
  ExpectUnharmed();
}

TEST_F(HostileRings, AnswersThatNobodyTakesCostNoTurns) {
  auto session = RawSession::Connect(socket_).value();
  std::uint32_t pushed = 0;
  while (pushed < 2 * session.welcome().geometry.ring_entries && session.Push(session.Good())) ++pushed;
  // It takes what it can answer, and then only looks when somebody else calls it.
  EXPECT_TRUE(integration::Eventually(
      [&] { return session.header().request_tail.load() == session.welcome().geometry.ring_entries; }));
  while (session.Push(session.Good())) ++pushed;
  const double rounds = Figure("orbitkv_dispatcher_rounds_total");
  const double sleeps = Figure("orbitkv_dispatcher_sleeps_total");
  ExerciseNeighbour(50);
  EXPECT_LT(Growth("orbitkv_dispatcher_rounds_total", rounds), 50'000);
  EXPECT_TRUE(integration::Eventually([&] { return Growth("orbitkv_dispatcher_sleeps_total", sleeps) > 5; }));
  EXPECT_EQ(session.header().request_tail.load(), session.welcome().geometry.ring_entries);
}

TEST_F(HostileRings, AFloodedDoorbellWakesNobodyMoreOftenThanItsPace) {
  const RingFigures before = ReadRings();
  const std::uint64_t began = os::MonotonicNs();
  Attack([this](const auto& ready) { RingForNothing(socket_, ready); });
  ExerciseNeighbour(100);
  EXPECT_TRUE(integration::Eventually([&] { return ReadRings().mutes - before.mutes >= 3; }));
  const RingFigures after = ReadRings();
  const double mutes = after.mutes - before.mutes;
  // A client in good order may ring once for each request when the request is taken already.
  const double rings = after.idle - before.idle;
  EXPECT_LE(rings, kBurst + kAfterMute * mutes + (after.requests - before.requests));
  EXPECT_LE(mutes, 1 + static_cast<double>(os::MonotonicNs() - began) / kMuteNs);
  printf("rings: %.0f woke it for nothing, muted %.0f times\n", rings, mutes);
  ExpectUnharmed();
}

// Nobody sends a request meanwhile, so every ring that is counted is this session's.
TEST_F(HostileRings, ADoorbellIsMutedAfterABurstThenAfterFewAndLookedAtNowAndThen) {
  auto session = RawSession::Connect(socket_).value();
  const RingFigures before = ReadRings();
  RingFigures now = before;
  const std::uint64_t deadline = os::DeadlineAfter(kRawNs);
  while (now.mutes - before.mutes < 3 && os::MonotonicNs() < deadline) {
    for (int i = 0; i < 100; ++i) session.RingDoorbell();
    now = ReadRings();
    const double mutes = now.mutes - before.mutes;
    const double rings = now.idle - before.idle;
    ASSERT_LT(rings, kBurst + kAfterMute * mutes);
    ASSERT_GE(rings, mutes > 0 ? kBurst + kAfterMute * (mutes - 1) : 0);
  }
  EXPECT_EQ(now.requests, before.requests);
  EXPECT_GE(now.mutes - before.mutes, 3);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(session.Call(session.Good()));
}

TEST_F(HostileRings, AHalfSentRequestOfASilentSessionGoesAtItsDeadline) {
  auto session = RawSession::Connect(socket_).value();
  const std::vector<std::byte> piece(session.welcome().geometry.slot_bytes, std::byte{1});
  const std::uint64_t deadline = os::DeadlineAfter(1'000'000'000);
  const std::uint64_t id = 77;
  for (std::uint32_t i = 0; i < wire::kMaxArgumentBytes / piece.size(); ++i) {
    wire::Descriptor chunk = session.WithArguments(Command::kQuerySubmit, piece);
    chunk.request_id = id;
    chunk.flags = i << 16U;
    chunk.deadline_ns = deadline;
    ASSERT_TRUE(session.Call(chunk));
  }
  const std::size_t held = ReadBooks().rss_anon_bytes;
  if (os::MonotonicNs() < deadline) {
    EXPECT_GT(held, before_.rss_anon_bytes + wire::kMaxArgumentBytes / 2);
  }
  if (kKeepsFreedMemory) GTEST_SKIP() << "memory that is given back does not show in this build";
  EXPECT_TRUE(integration::Eventually(
      [&] { return ReadBooks().rss_anon_bytes < before_.rss_anon_bytes + wire::kMaxArgumentBytes / 2; }));
}

TEST_F(HostileRings, DescriptorsMadeBlockingThenFilledOrDrained) {
  for (const bool fill : {true, false}) {
    Attack([this, fill](const auto& ready) {
      auto session = RawSession::Connect(socket_);
      if (!session) return;
      for (const int fd :
           {session->socket(), session->page_fd(), session->session_fd(), session->doorbell_fd(), session->pool_fd()}) {
        ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
      }
      const std::uint64_t most = 0xfffffffffffffffeULL;
      std::uint64_t value = 0;
      if (fill) {
        if (::write(session->doorbell_fd(), &most, sizeof most) < 0) return;
        ready();
        for (;;) session->RingDoorbell();  // waits in there, by its own doing
      }
      ready();
      for (;;) {
        session->RingDoorbell();
        if (::read(session->doorbell_fd(), &value, sizeof value) < 0) return;
        if (session->has_room()) session->Push(session->Good());
        while (session->Take()) {
        }
      }
    });
    ExerciseNeighbour(60);
    ExpectUnharmed();
  }
}

TEST_F(HostileRings, SharedMemoryKeepsItsSizeItsSealsAndTheManagersPage) {
  auto session = RawSession::Connect(socket_).value();
  for (const int fd : {session.page_fd(), session.session_fd(), session.pool_fd()}) {
    EXPECT_NE(::ftruncate(fd, 0), 0);
    EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0) << "later clients could not map it any more";
  }
  void* page = ::mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, session.page_fd(), 0);
  EXPECT_EQ(page, MAP_FAILED);
  // A hole in one's own session is zeros: a ring that makes no sense, and nobody else's affair.
  EXPECT_EQ(::fallocate(session.session_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        static_cast<off_t>(session.welcome().geometry.total_bytes())),
            0);
  session.RingDoorbell();
  ExerciseNeighbour();
}

}  // namespace
}  // namespace orbitkv::hostile
