// Clients that misuse the bootstrap socket, and clients that take every place.
#include <fstream>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "hostile_world.h"
#include "noise.h"
#include "raw_session.h"

#include "orbitkv/base/prng.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::hostile {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kEngines = 12;
constexpr double kLongestAttackSeconds = 10;

std::uint64_t Soon() { return os::DeadlineAfter(kRawNs); }

class HostileSockets : public HostileWorld {
 protected:
  std::vector<std::string> ManagerOptions() const override { return {"--max-sessions", std::to_string(kEngines)}; }
  static double SecondsSince(std::uint64_t began_ns) { return static_cast<double>(os::MonotonicNs() - began_ns) / 1e9; }
  bool Closed(int socket) { return ReceiveMessage(socket).error().code == Code::kUnavailable; }
};

TEST_F(HostileSockets, RandomBytesAndHalfFrames) {
  Attack([this](const auto& ready) {
    Prng prng(5);
    const auto hello = wire::EncodeFrame(wire::Hello{.name = "half"}).value();
    std::vector<os::UniqueFd> open;
    for (int i = 0;; ++i) {
      if (i == 50) ready();
      auto socket = os::ConnectUnix(socket_, Soon());
      if (!socket) return;
      std::vector<std::byte> bytes(hello.begin(),
                                   hello.begin() + static_cast<std::ptrdiff_t>(prng.Below(hello.size())));
      if (i % 2 == 0) {
        bytes.resize(1 + prng.Below(200));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.Next());
      }
      static_cast<void>(os::SendAll(socket->get(), bytes, {}, Soon()));
      open.push_back(std::move(*socket));
      if (open.size() > 200) open.erase(open.begin(), open.begin() + 100);
    }
  });
  // Newcomers are served while others hang half-way.
  for (int i = 0; i < 20; ++i) {
    auto newcomer = Open(Options("newcomer"));
    ASSERT_TRUE(newcomer && newcomer->Ping());
  }
  ExerciseNeighbour(50);
  ExpectUnharmed();
}

TEST_F(HostileSockets, AMalformedFrameClosesAndAnApplicationErrorKeeps) {
  auto session = RawSession::Connect(socket_).value();
  const std::byte noise[] = {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  for (const std::uint32_t kind :
       {wire::FRAME_REGISTER, wire::FRAME_UNREGISTER, wire::FRAME_HEALTH, wire::FRAME_SESSION_DRAINED}) {
    const auto reply = session.Frame(kind, noise);
    ASSERT_TRUE(reply) << kind;
    EXPECT_TRUE(reply->refused) << kind;
  }
  EXPECT_TRUE(session.Frame(999, {}).value().refused);
  EXPECT_FALSE(session.Frame(wire::FRAME_HEALTH, {}).value().refused);
  ASSERT_TRUE(session.Register("kept"));

  // Malformed below the frame: what follows could not be understood.
  const std::byte broken[] = {std::byte{3}, std::byte{0}, std::byte{0}, std::byte{0}, noise[0], noise[1], noise[2]};
  ASSERT_TRUE(os::SendAll(session.socket(), broken, {}, Soon()));
  EXPECT_TRUE(Closed(session.socket()));
  // The process lives, but it holds nothing, so its place is free.
  EXPECT_TRUE(Becomes(*neighbour_, "orbitkv_sessions", 1));
  ExpectUnharmed();
}

TEST_F(HostileSockets, LargeFramesOfManySessionsDoNotStay) {
  Attack([this](const auto& ready) {
    std::vector<RawSession> sessions;
    const std::vector<std::byte> large(8U << 20U);
    for (std::uint32_t i = 0; i + 1 < kEngines; ++i) {
      auto session = RawSession::Connect(socket_);
      if (!session) return;
      const auto reply = session->Frame(wire::FRAME_REGISTER, large);
      if (!reply || !reply->refused) return;
      sessions.push_back(std::move(*session));
    }
    ready();
    for (;;) {
      for (RawSession& session : sessions) static_cast<void>(session.Frame(wire::FRAME_REGISTER, large));
    }
  });
  ExerciseNeighbour(20);
  // The allocator may keep a few of the eighty-eight MiB that were in flight.
  ExpectUnharmed(40);
}

TEST_F(HostileSockets, EverySessionTakenIsAClearRefusalUntilOneEnds) {
  Attack([this](const auto& ready) {
    std::vector<RawSession> sessions;
    for (;;) {
      auto session = RawSession::Connect(socket_);
      if (!session) break;
      sessions.push_back(std::move(*session));
    }
    if (sessions.size() == kEngines - 1) ready();
    for (;;) static_cast<void>(RawSession::Connect(socket_));
  });
  std::string text;
  const auto refused = RawSession::Connect(socket_, &text);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_THAT(text, HasSubstr("all " + std::to_string(kEngines) + " sessions are taken"));
  EXPECT_THAT(text, HasSubstr("--max-sessions"));
  auto tool = Tool({"status", "--socket", socket_});
  EXPECT_EQ(tool->WaitExit(), 0) << tool->error();
  ExerciseNeighbour(30);
  ExpectUnharmed();
  EXPECT_TRUE(Open(Options("newcomer")));
}

// Everything that ends a session's connection while it holds something, until no place is left.
TEST_F(HostileSockets, SessionsThatWaitToBeDrainedFillTheManagerAndTheReportOfThatNeedsNoPlace) {
  constexpr std::uint32_t kRankZero[] = {0};
  const auto hashes = testing::Chain(1, 2);
  std::vector<std::uint64_t> tokens;
  for (std::uint64_t i = 1; i <= 2 * kEngines - 1; ++i) {
    auto client = Open(Options("engine"));
    ASSERT_TRUE(client) << i;
    const auto query = client->Query(i, hashes).value();
    ASSERT_TRUE(client->Begin(query.lease, GrantId(i), 2, kRankZero));
    ASSERT_EQ(client->Plan(GrantId(i)).value().second.size(), 2U);
    tokens.push_back(client->session().token());
    client.reset();
    ASSERT_TRUE(Becomes(*neighbour_, "orbitkv_sessions_detached", static_cast<double>(i)));
  }
  std::string text;
  EXPECT_EQ(RawSession::Connect(socket_, &text).error().code, Code::kBusy);
  EXPECT_THAT(text, HasSubstr("wait for their process to end or to report drained"));
  auto reporter = RawSession::Connect(socket_, nullptr, wire::Purpose::kAdmin).value();
  for (const std::uint64_t token : tokens) {
    wire::SessionDrained drained;
    drained.set_client_token(token);
    const Incarnation& incarnation = reporter.welcome().incarnation;
    drained.mutable_incarnation()->append(reinterpret_cast<const char*>(&incarnation.hi), sizeof incarnation.hi);
    drained.mutable_incarnation()->append(reinterpret_cast<const char*>(&incarnation.lo), sizeof incarnation.lo);
    const std::string bytes = drained.SerializeAsString();
    EXPECT_FALSE(reporter.Frame(wire::FRAME_SESSION_DRAINED, std::as_bytes(std::span(bytes))).value().refused);
    EXPECT_TRUE(RawSession::Connect(socket_)) << "the place is free as soon as the report is answered";
  }
  EXPECT_EQ(Figure("orbitkv_sessions_detached"), 0);
  EXPECT_EQ(Figure("orbitkv_armed_ranks"), 0);
  EXPECT_TRUE(reporter.Frame(wire::FRAME_REGISTER, {}).value().refused) << "it is a status tool all the same";
}

TEST_F(HostileSockets, AProcessThatReconnectsAllTheTimeIsSlowedDownAndOthersAreNot) {
  const double opened = Figure("orbitkv_sessions_opened_total");
  const std::uint64_t began = os::MonotonicNs();
  Attack([this](const auto& ready) { Reconnect(socket_, ready); });
  for (int i = 0; i < 20; ++i) {
    auto newcomer = Open(Options("newcomer"));
    ASSERT_TRUE(newcomer && newcomer->Ping());
  }
  ExerciseNeighbour(50);
  // A burst of ends, then twenty in each second; those whose end has not been seen yet; and the newcomers.
  const double grown = Growth("orbitkv_sessions_opened_total", opened);
  EXPECT_LE(grown, 256 + kEngines + 20 + 1 + SecondsSince(began) * 20);
  ExpectUnharmed();
}

// Each connection is another process's, so that no pace of one process sees them.
TEST_F(HostileSockets, ProcessesThatForkForEachConnectionHaveOnePaceTogether) {
  const double accepted = Figure("orbitkv_accepts_total");
  const double opened = Figure("orbitkv_sessions_opened_total");
  const std::uint64_t began = os::MonotonicNs();
  for (int i = 0; i < 4; ++i) {
    Attack([this](const auto& ready) { ForkForEachConnection(socket_, ready); });
  }
  const auto is_paced = [&] { return Figure("orbitkv_accepts_delayed_total") > 100; };
  while (!is_paced() && SecondsSince(began) < kLongestAttackSeconds) {
  }
  int pings = 0;
  const std::uint64_t until = os::DeadlineAfter(500'000'000);
  while (os::MonotonicNs() < until) {
    ASSERT_TRUE(neighbour_->Ping()) << pings;
    ++pings;
  }
  EXPECT_GT(pings, 100);
  // A newcomer waits in the backlog, in turn.
  auto newcomer = Open(Options("newcomer"));
  ASSERT_TRUE(newcomer && newcomer->Ping());
  newcomer.reset();
  const double taken = Growth("orbitkv_accepts_total", accepted);
  const double made = Growth("orbitkv_sessions_opened_total", opened);
  const double most = 512 + 1 + SecondsSince(began) * 200;
  EXPECT_LE(taken, most);
  EXPECT_LE(made, most);
  printf("forks: %.0f connections taken in %.2f s, %d pings of the neighbour answered\n", taken, SecondsSince(began),
         pings);
  // Where a fork takes long, all of them together are no faster than the pace.
  if (!is_paced()) GTEST_SKIP() << "the attack is too slow on this machine";
  EXPECT_GT(taken, 512) << "and within its pace the Manager did serve them";
  ExerciseNeighbour(50);
  ExpectUnharmed();
}

TEST_F(HostileSockets, HealthFramesAtFullSpeedHaveOnePaceTogether) {
  const double frames = Figure("orbitkv_frames_total");
  const std::uint64_t began = os::MonotonicNs();
  for (int i = 0; i < 4; ++i) {
    Attack([this](const auto& ready) {
      auto session = RawSession::Connect(socket_);
      if (!session) return;
      for (int asked = 0;; ++asked) {
        if (!session->Frame(wire::FRAME_HEALTH, {})) return;
        if (asked == 200) ready();
      }
    });
  }
  ASSERT_TRUE(integration::Eventually([&] { return Figure("orbitkv_frames_delayed_total") > 500; }));
  int pings = 0;
  const std::uint64_t until = os::DeadlineAfter(500'000'000);
  while (os::MonotonicNs() < until) {
    ASSERT_TRUE(neighbour_->Ping()) << pings;
    ++pings;
  }
  EXPECT_GT(pings, 100);
  const double taken = Growth("orbitkv_frames_total", frames);
  EXPECT_LE(taken, 512 + 1 + SecondsSince(began) * 500);
  EXPECT_GT(taken, 512);
  printf("health: %.0f frames taken in %.2f s, %d pings of the neighbour answered\n", taken, SecondsSince(began),
         pings);
  auto newcomer = Open(Options("newcomer"));
  ASSERT_TRUE(newcomer && newcomer->Ping()) << "its registration has a turn as any frame has";
  newcomer.reset();
  ExerciseNeighbour(50);
  ExpectUnharmed();
}

TEST_F(HostileSockets, NoCommonVersionIsRefusedNamingBothRanges) {
  const os::UniqueFd socket = os::ConnectUnix(socket_, Soon()).value();
  const auto hello = wire::EncodeFrame(wire::Hello{.abi_min = 900, .abi_max = 901, .name = "future"}).value();
  ASSERT_TRUE(os::SendAll(socket.get(), hello, {}, Soon()));
  const auto message = ReceiveMessage(socket.get());
  ASSERT_TRUE(message && std::holds_alternative<wire::Refusal>(*message));
  const auto& refusal = std::get<wire::Refusal>(*message);
  EXPECT_EQ(refusal.code, Code::kUnsupported);
  EXPECT_THAT(refusal.text, HasSubstr("900 to 901"));
  EXPECT_THAT(refusal.text, HasSubstr(std::to_string(wire::kAbiMin) + " to " + std::to_string(wire::kAbiMax)));
}

TEST_F(HostileSockets, TheLateEndOfAReplacedSessionLeavesTheNewOne) {
  constexpr std::uint32_t kRankZero[] = {0};
  const auto hashes = testing::Chain(1, 4);
  auto old = Open(Options("engine"));
  ASSERT_EQ(old->Restore(1, hashes, GrantId(1)).value(), 4U);
  const auto query = old->Query(2, hashes).value();
  ASSERT_TRUE(old->Begin(query.lease, GrantId(2), 4, kRankZero));
  ASSERT_EQ(old->Plan(GrantId(2)).value().second.size(), 4U);
  const std::uint64_t token = old->session().token();
  const Incarnation incarnation = old->session().incarnation();

  // The replacement registers the same instance and rank while the old session still counts as connected.
  auto fresh = Open(Options("engine"));
  ASSERT_TRUE(fresh);
  old.reset();
  EXPECT_TRUE(Becomes(*neighbour_, "orbitkv_sessions_detached", 1));
  EXPECT_EQ(Figure("orbitkv_armed_ranks"), 1) << "its process may still be copying";
  EXPECT_EQ(fresh->Restore(3, hashes, GrantId(3)).value(), 4U);
  EXPECT_TRUE(fresh->ReportDrained(token + 1, incarnation)) << "a token of nobody";
  EXPECT_TRUE(fresh->ReportDrained(token, Incarnation{1, 2})) << "of another Manager's life";
  EXPECT_EQ(Figure("orbitkv_armed_ranks"), 1);
  EXPECT_TRUE(fresh->ReportDrained(token, incarnation));
  EXPECT_EQ(Figure("orbitkv_armed_ranks"), 0);
  EXPECT_TRUE(Becomes(*neighbour_, "orbitkv_sessions", 2));
  EXPECT_EQ(fresh->Restore(4, hashes, GrantId(4)).value(), 4U);
  EXPECT_EQ(fresh->Publish(testing::Chain(901, 4)).value(), 4U);
}

// Few descriptors: 12 engines, the half-open connections and the Manager's own do not fit.
class HostileDescriptors : public HostileSockets {
 protected:
  std::vector<std::string> ManagerOptions() const override { return {"--max-sessions", "128"}; }
  std::uint64_t ThreadCpuNs(const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(manager_->pid()) + "/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      std::uint64_t cpu_ns = 0;
      if (found == name && std::ifstream(task.path() / "schedstat") >> cpu_ns) return cpu_ns;
    }
    ADD_FAILURE() << "no thread " << name;
    return 0;
  }
  void SetUp() override {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit few{60, limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    HostileSockets::SetUp();
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
};

TEST_F(HostileDescriptors, OutOfDescriptorsItRefusesRestsAndRecovers) {
  Attack([this](const auto& ready) {
    std::vector<RawSession> sessions;
    std::vector<os::UniqueFd> silent;
    for (int i = 0; i < 30; ++i) {
      std::string text;
      auto session = RawSession::Connect(socket_, &text);
      if (!session) {
        if (text.find("open files") == std::string::npos) return;
        break;
      }
      sessions.push_back(std::move(*session));
    }
    for (int i = 0; i < 40; ++i) {
      if (auto socket = os::ConnectUnix(socket_, Soon())) silent.push_back(std::move(*socket));
    }
    ready();
    for (;;) ::pause();
  });
  EXPECT_TRUE(manager_->WaitError("cannot accept a client"));
  // Those who wait in the backlog do not keep the listener busy.
  const std::uint64_t began = os::MonotonicNs();
  const std::uint64_t before = ThreadCpuNs("okv-bootstrap");
  ExerciseNeighbour(300);
  EXPECT_LT(ThreadCpuNs("okv-bootstrap") - before, (os::MonotonicNs() - began) / 4);
  ExpectUnharmed();
  EXPECT_TRUE(Open(Options("newcomer")));
}

}  // namespace
}  // namespace orbitkv::hostile
