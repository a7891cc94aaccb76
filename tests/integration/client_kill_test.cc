// The real client and its Manager at each point of a save and of a load: one of them is killed there, or the Manager
// stands still for longer than the client waits. Whatever happens, nothing stays held and every byte is right.
#include <array>
#include <csignal>
#include <gmock/gmock.h>

#include "driven_client.h"
#include "manager_world.h"

#include "orbitkv/base/prng.h"
#include "orbitkv/testing/effort.h"

namespace orbitkv::integration {
namespace {

using ::testing::AnyOf;

constexpr std::uint32_t kStored = 1;     // the chain that is there from the start, and is loaded
constexpr std::uint32_t kNew = 2;        // the chain that is saved
constexpr std::uint32_t kWarm = 3;       // saved before, so that the publish session is open
constexpr std::uint32_t kPages = 4 * 3;  // of four blocks

enum class Point : std::uint8_t {
  kOpening,        // the session for saves is being opened
  kReservePosted,  // in the ring, not looked at
  kReserved,       // no byte has moved
  kMidSave,
  kCopied,        // all bytes are in the pool, nothing is committed
  kCommitPosted,  // in the ring, not looked at
  kCommitted,     // the client has not seen the answer
  kAskPosted,
  kFound,
  kBeginPosted,
  kBegun,
  kPlanPosted,
  kArmed,  // the plan is there, no byte has moved
  kMidLoad,
  kLoaded,  // all bytes are there, the end is not posted
  kEndPosted,
  kEnded,  // the client has not reported it
};
constexpr std::array kPoints = {Point::kOpening, Point::kReservePosted, Point::kReserved,  Point::kMidSave,
                                Point::kCopied,  Point::kCommitPosted,  Point::kCommitted, Point::kAskPosted,
                                Point::kFound,   Point::kBeginPosted,   Point::kBegun,     Point::kPlanPosted,
                                Point::kArmed,   Point::kMidLoad,       Point::kLoaded,    Point::kEndPosted,
                                Point::kEnded};

std::string NameOf(Point point) {
  constexpr std::array<const char*, kPoints.size()> kNames = {
      "Opening",   "ReservePosted", "Reserved", "MidSave",     "Copied", "CommitPosted",
      "Committed", "AskPosted",     "Found",    "BeginPosted", "Begun",  "PlanPosted",
      "Armed",     "MidLoad",       "Loaded",   "EndPosted",   "Ended"};
  return kNames.at(static_cast<std::size_t>(point));
}

class ClientKill : public ManagerWorld {
 protected:
  void SetUp() override {
    ManagerWorld::SetUp();
    manager_ = StartManager();
    ASSERT_TRUE(manager_);
    watcher_ = Open(Options("watcher"));
    ASSERT_TRUE(watcher_);
    survivor_ = Client("survivor");
    ASSERT_EQ(survivor_->Save(kStored), "save ok");
  }
  void TearDown() override {
    survivor_.reset();
    watcher_.reset();
    manager_.reset();
    ManagerWorld::TearDown();
  }

  std::unique_ptr<DrivenClient> Client(const std::string& instance, std::uint64_t deadline_ms = 20'000) {
    return std::make_unique<DrivenClient>(directory_, socket_, instance, deadline_ms);
  }
  void ExpectNothingHeld() {
    for (const char* gauge : {"orbitkv_grants", "orbitkv_armed_ranks", "orbitkv_reserved_slots", "orbitkv_reservations",
                              "orbitkv_leases", "orbitkv_granted_pins", "orbitkv_found_pins"}) {
      EXPECT_TRUE(Becomes(*watcher_, gauge, 0)) << gauge;
    }
  }
  // The keys that were in use can be written and read.
  static void ExpectWorking(DrivenClient& client) {
    for (const std::uint32_t chain : {kStored, kNew}) {
      EXPECT_EQ(client.Save(chain), "save ok") << client.program().error();
      EXPECT_EQ(client.Load(chain), "load ok") << client.program().error();
    }
  }

  void StopManager() {
    manager_->Stop();
    stopped_ = true;
  }
  void Continue() {
    manager_->Signal(SIGCONT);
    stopped_ = false;
  }
  // Does this while the Manager stands still, until the client has posted a request.
  void Post(DrivenClient& client, const std::string& line) {
    StopManager();
    const std::uint64_t before = client.Posted();
    client.Expect(line, "ok");
    EXPECT_TRUE(Eventually([&] { return client.Posted() > before; })) << line;
  }

  void ReachSave(DrivenClient& client, Point point, std::uint32_t chain) {
    const std::string save = "save " + std::to_string(chain);
    if (point == Point::kOpening) {
      StopManager();
      const std::size_t before = client.Sockets();
      client.Expect(save, "ok");
      EXPECT_TRUE(Eventually([&] { return client.Sockets() > before; }));
      return;
    }
    ASSERT_EQ(client.Save(kWarm), "save ok");
    if (point == Point::kReservePosted) return Post(client, save);
    client.Expect(save, "ok");
    client.Expect("await", "ok");
    if (point == Point::kReserved) return;
    client.Expect("step " + std::to_string(1 + (point == Point::kMidSave ? kPages / 2 : kPages)), "ok");
    if (point == Point::kMidSave || point == Point::kCopied) return;
    const double stored = Figure(*watcher_, "orbitkv_blocks_stored_total");
    Post(client, "step 1");
    if (point == Point::kCommitPosted) return;
    client.program().Stop();
    Continue();
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_blocks_stored_total", stored + 4));
  }
  void ReachLoad(DrivenClient& client, Point point) {
    const std::string ask = "ask " + std::to_string(kStored);
    if (point == Point::kAskPosted) return Post(client, ask);
    client.Expect(ask, "ok");
    client.Expect("answer", "found 4");
    if (point == Point::kFound) return;
    if (point == Point::kBeginPosted) return Post(client, "begin");
    client.Expect("begin", "ok");
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_grants", 1));
    if (point == Point::kBegun) return;
    if (point == Point::kPlanPosted) return Post(client, "load");
    client.Expect("load", "ok");
    client.Expect("await", "ok");
    if (point == Point::kArmed) return;
    client.Expect("step " + std::to_string(1 + (point == Point::kMidLoad ? kPages / 2 : kPages)), "ok");
    if (point == Point::kMidLoad || point == Point::kLoaded) return;
    if (point == Point::kEndPosted) return Post(client, "step 1");
    client.Expect("step 1", "ok");
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_grants", 0));
  }
  void Reach(DrivenClient& client, Point point, std::uint32_t chain = kNew) {
    if (point < Point::kAskPosted) {
      ReachSave(client, point, chain);
    } else {
      ReachLoad(client, point);
    }
  }
  // A client gets to the point and is killed there; the Manager goes on.
  void KillAt(Point point, std::uint32_t chain = kNew) {
    const double sessions = Figure(*watcher_, "orbitkv_sessions");
    const auto victim = Client("victim");
    Reach(*victim, point, chain);
    victim->program().Signal(SIGKILL);
    EXPECT_EQ(victim->program().WaitExit(), 128 + SIGKILL);
    Continue();
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_sessions", sessions));
    ExpectNothingHeld();
  }

  std::unique_ptr<Program> manager_;
  std::unique_ptr<testing::RawClient> watcher_;
  std::unique_ptr<DrivenClient> survivor_;
  bool stopped_ = false;
};

class ClientKillPoint : public ClientKill, public ::testing::WithParamInterface<Point> {};

INSTANTIATE_TEST_SUITE_P(Points, ClientKillPoint, ::testing::ValuesIn(kPoints),
                         [](const auto& param) { return NameOf(param.param); });

TEST_P(ClientKillPoint, AKilledClientLeavesNothingHeldAndAnotherReadsAndWritesTheSameKeys) {
  KillAt(GetParam());
  ExpectWorking(*survivor_);
}

TEST_P(ClientKillPoint, AClientOutlivesItsManagerAndUsesTheNextOne) {
  const auto client = Client("engine");
  Reach(*client, GetParam());
  manager_->Signal(SIGKILL);
  ASSERT_EQ(manager_->WaitExit(), 128 + SIGKILL);
  client->program().Signal(SIGCONT);
  const std::string ends = client->Do("finish");
  if (GetParam() >= Point::kArmed) {
    EXPECT_EQ(ends, "load ok") << "a plan that is there can be copied: nobody recycles the bytes";
  } else {
    EXPECT_THAT(ends, AnyOf("", "save ok", "save failed", "load failed"));
  }
  client->Expect("release", "ok");
  watcher_.reset();
  manager_ = StartManager();
  ASSERT_TRUE(manager_);
  watcher_ = Open(Options("watcher"));
  ASSERT_TRUE(watcher_);
  client->Expect("up", "up");
  ExpectWorking(*client);
  ExpectNothingHeld();
}

TEST_P(ClientKillPoint, AClientOfAManagerThatStandsStillGoesOnAndAllIsGivenBack) {
  const auto client = Client("engine", 1000);
  Reach(*client, GetParam());
  if (!stopped_) StopManager();
  client->program().Signal(SIGCONT);
  // The client's deadlines end all of this; the Manager does not move.
  const std::string ends = client->Do("finish");
  EXPECT_THAT(ends, AnyOf("", "save ok", "save failed", "load ok", "load failed"));
  if (GetParam() == Point::kAskPosted) client->Expect("answer", "found 0");
  client->Expect("release", "ok");
  Continue();
  client->Expect("up", "up");
  ExpectNothingHeld();
  ExpectWorking(*client);
  ExpectNothingHeld();
}

TEST_F(ClientKill, ManyKilledClientsLeaveNothing) {
  Prng prng(testing::Seed());
  for (std::uint64_t round = testing::Effort(3, 500); round > 0 && !HasFailure(); --round) {
    const Point point = kPoints.at(prng.Below(kPoints.size()));
    SCOPED_TRACE(NameOf(point));
    KillAt(point, 100 + static_cast<std::uint32_t>(round));
    EXPECT_EQ(survivor_->Load(kStored), "load ok");
  }
  ExpectWorking(*survivor_);
}

}  // namespace
}  // namespace orbitkv::integration
