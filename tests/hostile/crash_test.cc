// Clients that are killed at every point of a session's life, again and again. ORBITKV_CRASH_CYCLES says how often.
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#include "hostile_world.h"
#include "raw_session.h"

#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;
using testing::RawClient;
using wire::Command;

enum Point : int {
  kConnected,
  kHalfGreeting,
  kGreeted,
  kWelcomed,
  kRegistered,
  kHalfFrame,
  kRequestsInTheRing,
  kHalfAssembly,
  kFound,
  kBegun,
  kArmed,
  kReserved,
  kHalfCommitted,
  kPoints,
};

constexpr int kWentAsFarAsItShould = 128 + SIGKILL;

bool GoBeforeTheWelcome(Point point, const std::string& path) {
  const auto socket = os::ConnectUnix(path, os::DeadlineAfter(kRawNs));
  if (!socket) return false;
  const auto hello = wire::EncodeFrame(wire::Hello{.name = "crash"}).value();
  const auto self = os::OwnPidfd().value();
  const int fds[] = {self.get()};
  const auto bytes = std::span(hello).first(point == kConnected ? 0 : point == kGreeted ? hello.size() : 6);
  if (!os::SendAll(socket->get(), bytes, fds, os::DeadlineAfter(kRawNs))) return false;
  ::raise(SIGKILL);
  return false;
}

bool GoOnTheRings(Point point, const std::string& path) {
  auto session = RawSession::Connect(path);
  if (!session) return false;
  if (point >= kRegistered && !session->Register("crash")) return false;
  if (point == kHalfFrame) {
    const auto frame = wire::EncodeFrame(
        wire::Lifecycle{.session = session->welcome().session, .id = 9, .kind = wire::FRAME_HEALTH, .payload = {}});
    if (!os::SendAll(session->socket(), std::span(*frame).first(6), {}, os::DeadlineAfter(kRawNs))) return false;
  }
  if (point == kRequestsInTheRing) {
    while (session->has_room()) session->Push(session->Good());
  }
  if (point == kHalfAssembly) {
    wire::Descriptor chunk = session->WithArguments(Command::kQuerySubmit, std::vector<std::byte>(4096));
    chunk.flags = 0;
    if (!session->Call(chunk)) return false;
  }
  ::raise(SIGKILL);
  return false;
}

bool GoOnWithBlocks(Point point, const testing::RawClientOptions& options, std::uint32_t cycle) {
  constexpr std::uint32_t kRankZero[] = {0};
  auto client = RawClient::Open(options);
  if (!client) return false;
  RawClient& victim = **client;
  if (point <= kArmed) {
    const auto query = victim.Query(1, Chain(1, 4));
    if (!query || query->found != 4) return false;
    if (point >= kBegun && !victim.Begin(query->lease, GrantId(1), 4, kRankZero)) return false;
    if (point >= kArmed && victim.Plan(GrantId(1)).value().second.size() != 4) return false;
  } else {
    const auto hashes = Chain(10'000 + cycle, 4);
    const auto reserved = victim.Reserve(hashes);
    if (!reserved || reserved->entries.size() != 4) return false;
    const wire::CommitEntry half[] = {
        {victim.Fill(reserved->entries[0], hashes[0]), reserved->entries[0].generation, 0, 0}};
    if (point == kHalfCommitted && !victim.Commit(reserved->id, half)) return false;
  }
  ::raise(SIGKILL);
  return false;
}

class HostileCrash : public HostileWorld {
 protected:
  int CrashAt(Point point, std::uint32_t cycle) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (point <= kGreeted) {
        GoBeforeTheWelcome(point, socket_);
      } else if (point <= kHalfAssembly) {
        GoOnTheRings(point, socket_);
      } else {
        GoOnWithBlocks(point, Options("crash"), cycle);
      }
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
};

TEST_F(HostileCrash, ClientsKilledAtEveryPoint) {
  const char* wanted = std::getenv("ORBITKV_CRASH_CYCLES");
  const std::uint32_t cycles = wanted != nullptr ? static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10)) : 300;
  const double opened = Figure("orbitkv_sessions_opened_total");
  for (std::uint32_t cycle = 0; cycle < cycles && !HasFailure(); ++cycle) {
    const auto point = static_cast<Point>(cycle % kPoints);
    ASSERT_EQ(CrashAt(point, cycle), kWentAsFarAsItShould) << "point " << point << " cycle " << cycle;
    if (cycle % 50 == 0) ExerciseNeighbour(2);
  }
  EXPECT_GE(Growth("orbitkv_sessions_opened_total", opened), cycles / 2);
  ExpectUnharmed();
}

}  // namespace
}  // namespace orbitkv::hostile
