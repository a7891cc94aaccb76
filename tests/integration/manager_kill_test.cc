// Clients and Managers that are killed or stopped at named points.
#include <csignal>
#include <gmock/gmock.h>

#include "manager_world.h"

#include "orbitkv/os/clock.h"

namespace orbitkv::integration {
namespace {

using testing::Chain;
using testing::RawClient;

constexpr std::uint32_t kRankZero[] = {0};

class ManagerKill : public ManagerWorld {
 protected:
  void SetUp() override {
    ManagerWorld::SetUp();
    manager_ = StartManager();
    ASSERT_TRUE(manager_);
    watcher_ = Open(Options("watcher"));
    ASSERT_TRUE(watcher_);
  }
  void TearDown() override {
    watcher_.reset();
    manager_.reset();
    ManagerWorld::TearDown();
  }
  // Everything that sessions can hold is given back; the watcher's own session stays.
  void ExpectNothingHeld() {
    for (const char* gauge : {"orbitkv_grants", "orbitkv_armed_ranks", "orbitkv_reserved_slots", "orbitkv_reservations",
                              "orbitkv_leases", "orbitkv_granted_pins", "orbitkv_found_pins"}) {
      EXPECT_TRUE(Becomes(*watcher_, gauge, 0)) << gauge;
    }
  }

  std::unique_ptr<Program> manager_;
  std::unique_ptr<RawClient> watcher_;
};

TEST_F(ManagerKill, AClientKilledAtEachPointOfPublishAndRestoreLeavesNothing) {
  ASSERT_EQ(watcher_->Publish(Chain(1, 4)).value(), 4U);
  enum Point { kQueried, kBegun, kArmed, kReserved, kCommittedHalf };
  for (const Point point : {kQueried, kBegun, kArmed, kReserved, kCommittedHalf}) {
    const pid_t child = Fork([&] {
      auto client = RawClient::Open(Options("victim"));
      if (!client) return false;
      RawClient& victim = *client.value().release();  // the process ends by SIGKILL
      const auto chain = Chain(1, 4);
      if (point <= kArmed) {
        const auto query = victim.Query(1, chain);
        if (!query || query->found != 4) return false;
        if (point >= kBegun && !victim.Begin(query->lease, GrantId(1), 4, kRankZero)) return false;
        if (point >= kArmed) {
          const auto plan = victim.Plan(GrantId(1));
          if (!plan || plan->second.size() != 4) return false;
        }
        return true;
      }
      const auto hashes = Chain(10 + static_cast<std::uint32_t>(point), 4);
      const auto reserved = victim.Reserve(hashes);
      if (!reserved || reserved->entries.size() != 4) return false;
      if (point == kReserved) return true;
      const wire::CommitEntry half[] = {
          {victim.Fill(reserved->entries[0], hashes[0]), reserved->entries[0].generation, 0, 0}};
      return victim.Commit(reserved->id, half).has_value();
    });
    EXPECT_EQ(Figure(*watcher_, "orbitkv_sessions"), 2) << point;
    Kill(child);
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_sessions", 1)) << point;
    ExpectNothingHeld();
  }
  EXPECT_EQ(watcher_->Restore(1, Chain(10 + kCommittedHalf, 4), GrantId(9)).value(), 1U);
  EXPECT_EQ(watcher_->Restore(2, Chain(1, 4), GrantId(10)).value(), 4U);
}

TEST_F(ManagerKill, AWriterThatDiesHalfWayBlocksNobody) {
  const auto hashes = Chain(1, 4);
  const pid_t child = Fork([&] {
    auto client = RawClient::Open(Options("victim"));
    if (!client) return false;
    const auto reserved = client.value().release()->Reserve(hashes);
    return reserved && reserved->entries.size() == 4;
  });
  EXPECT_EQ(Figure(*watcher_, "orbitkv_reserved_slots"), 4);
  EXPECT_EQ(watcher_->Publish(hashes).value(), 4U);
  EXPECT_EQ(watcher_->Restore(1, hashes, GrantId(1)).value(), 4U);
  Kill(child);
  ExpectNothingHeld();
  EXPECT_EQ(watcher_->Restore(2, hashes, GrantId(2)).value(), 4U);
}

TEST_F(ManagerKill, AClientOfAStoppedManagerGoesOnAndLosesNothing) {
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto hashes = Chain(1, 4);
  ASSERT_EQ(client->Publish(hashes).value(), 4U);
  std::uint64_t grant = 0;
  for (const wire::Command command :
       {wire::Command::kPing, wire::Command::kQuerySubmit, wire::Command::kPublishReserve,
        wire::Command::kPublishCommit, wire::Command::kPublishAbort, wire::Command::kRestoreBegin,
        wire::Command::kRestorePlan, wire::Command::kRestoreEnd, wire::Command::kRelease, wire::Command::kQueryPoll,
        wire::Command::kQueryClaim, wire::Command::kQueryCancel}) {
    SCOPED_TRACE(wire::CommandName(command));
    // What the command is about: a begun and armed grant, a found lease, a reservation.
    const GrantId armed(++grant);
    const auto first = client->Query(grant, hashes).value();
    ASSERT_TRUE(client->Begin(first.lease, armed, 4, kRankZero));
    ASSERT_EQ(client->Plan(armed).value().second.size(), 4U);
    const GrantId unarmed(++grant);
    const auto second = client->Query(grant, hashes).value();
    ASSERT_TRUE(client->Begin(second.lease, unarmed, 4, kRankZero));
    const auto lease = client->Query(++grant, hashes).value();
    const auto reservation = client->Reserve(Chain(100 + static_cast<std::uint32_t>(grant), 2)).value();
    ASSERT_EQ(reservation.entries.size(), 2U);

    manager_->Stop();
    channel::ClientSession& session = client->session();
    const std::uint64_t end_scalar = std::uint64_t{3} << 32U;
    const wire::CommitEntry commit[] = {{1, reservation.entries[0].generation, 0, 0}};
    const wire::PollRequest poll[] = {{.operation = 1}};
    switch (command) {
      case wire::Command::kPing: EXPECT_TRUE(client->PostAndAbandon(command, 1, 0)); break;
      case wire::Command::kQuerySubmit:
        EXPECT_TRUE(client->PostAndAbandon(command, 0, 0, RawClient::QueryArguments(++grant, hashes)));
        break;
      case wire::Command::kPublishReserve:
        EXPECT_TRUE(client->PostAndAbandon(command, 0, 0, client->ReserveArguments(Chain(7000, 2))));
        break;
      case wire::Command::kPublishCommit:
        EXPECT_TRUE(client->PostAndAbandon(command, reservation.id.value(), 0, wire::EncodeCommit(commit)));
        break;
      case wire::Command::kPublishAbort: break;
      case wire::Command::kRestoreBegin:
        EXPECT_TRUE(client->PostAndAbandon(command, lease.lease.value(), ++grant, wire::EncodeBegin(4, kRankZero)));
        break;
      case wire::Command::kRestorePlan: EXPECT_TRUE(client->PostAndAbandon(command, unarmed.value(), 0)); break;
      case wire::Command::kRestoreEnd:
      case wire::Command::kRelease: break;
      case wire::Command::kQueryPoll: EXPECT_TRUE(client->PostAndAbandon(command, 0, 0, wire::EncodePoll(poll))); break;
      case wire::Command::kQueryClaim:
        EXPECT_TRUE(client->PostAndAbandon(command, 0, 0, wire::EncodeClaim({.consumer_key_lo = 1})));
        break;
      case wire::Command::kQueryCancel: EXPECT_TRUE(client->PostAndAbandon(command, 1, 0)); break;
    }
    // What is never lost, posted to a Manager that does not move.
    EXPECT_TRUE(session.PostNeverLost(wire::Command::kRestoreEnd, armed.value(), end_scalar, wire::EncodeEnd({})));
    EXPECT_TRUE(session.PostNeverLost(wire::Command::kRelease, 2, unarmed.value()));
    EXPECT_TRUE(session.PostNeverLost(wire::Command::kRelease, 1, lease.lease.value()));
    EXPECT_TRUE(session.PostNeverLost(wire::Command::kPublishAbort, reservation.id.value(), 0));
    manager_->Signal(SIGCONT);
    EXPECT_TRUE(client->Settle());
    ExpectNothingHeld();
  }
  EXPECT_EQ(client->Restore(grant + 1, hashes, GrantId(grant + 1)).value(), 4U);
}

TEST_F(ManagerKill, ARequestThatExpiredWhileTheManagerWasStoppedIsNotExecuted) {
  auto client = Open(Options());
  ASSERT_TRUE(client);
  manager_->Stop();
  const auto late = client->session().Call(
      {wire::Command::kPublishReserve, 0, 0, client->ReserveArguments(Chain(1, 2)), os::DeadlineAfter(50'000'000)});
  manager_->Signal(SIGCONT);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimedOut);
  EXPECT_TRUE(client->Ping());
  EXPECT_TRUE(Becomes(*watcher_, "orbitkv_requests_expired_total", 1));
  EXPECT_EQ(Figure(*watcher_, "orbitkv_blocks_reserved_total"), 0);
}

TEST_F(ManagerKill, AStoppedClientDelaysNobodyAndKeepsWhatItHolds) {
  ASSERT_EQ(watcher_->Publish(Chain(1, 4)).value(), 4U);
  const pid_t child = Fork([&] {
    auto client = RawClient::Open(Options("sleeper"));
    if (!client) return false;
    RawClient& sleeper = *client.value().release();
    const auto query = sleeper.Query(1, Chain(1, 4));
    return query && sleeper.Begin(query->lease, GrantId(1), 4, kRankZero) &&
           sleeper.Plan(GrantId(1)).value().second.size() == 4;
  });
  StopChild(child);
  for (std::uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(watcher_->Ping());
  EXPECT_EQ(Figure(*watcher_, "orbitkv_armed_ranks"), 1);
  Kill(child);
  ExpectNothingHeld();
}

TEST_F(ManagerKill, APoolStaysReadableAfterItsManagerIsKilled) {
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto hashes = Chain(1, 4);
  ASSERT_EQ(client->Publish(hashes).value(), 4U);
  const auto query = client->Query(1, hashes).value();
  ASSERT_TRUE(client->Begin(query.lease, GrantId(1), 4, kRankZero));
  const auto plan = client->Plan(GrantId(1)).value().second;
  ASSERT_EQ(plan.size(), 4U);
  manager_->Signal(SIGKILL);
  ASSERT_EQ(manager_->WaitExit(), 128 + SIGKILL);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(client->Right(plan[i], hashes[i])) << i;
  auto next = StartManager();
  ASSERT_TRUE(next);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(client->Right(plan[i], hashes[i])) << i;
  EXPECT_TRUE(client->session().hung_up()) << "an old session never reaches a new Manager";
  auto again = Open(Options());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->Query(1, hashes).value().found, 0U);
}

}  // namespace
}  // namespace orbitkv::integration
