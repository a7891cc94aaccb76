// A service over tables that outlive it: what the next life knows, serves and holds.
#include <gtest/gtest.h>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/service/earlier_sessions.h"
#include "orbitkv/service/test_life.h"

namespace orbitkv::service {
namespace {

TEST(EarlierLife, BlocksAreServedToAnEngineThatRegistersTheSame) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  const auto hashes = Chain(1, 20);
  const auto others = Chain(2, 5);
  std::uint64_t newest = 0;
  {
    OneLife first(*tables, config);
    const SessionId session = first.Join(0);
    EXPECT_EQ(first.Publish(session, hashes), 20U);
    newest = first.entries.back().generation;
    EXPECT_EQ(first.Publish(first.Join(1, 9, "other"), others), 5U);
  }
  OneLife second(*tables, config);
  EXPECT_EQ(second.state->report().life, 2U);
  EXPECT_EQ(second.state->report().adopted, 25U);
  EXPECT_EQ(second.state->report().namespaces, 2U);
  EXPECT_EQ(second.state->report().sessions_ended, 2U);
  const SessionId session = second.Join(0);
  EXPECT_EQ(second.Found(session, hashes), 20U);
  EXPECT_EQ(second.Found(session, others), 0U) << "of another model";
  EXPECT_EQ(second.Found(second.Join(1, 9, "other"), others), 5U);
  const auto plan = second.Arm(session, hashes, 7);
  for (std::size_t i = 0; i < plan.size(); ++i) EXPECT_EQ(plan[i].slot_checksum, ChecksumOf(hashes[i], 0));
  EXPECT_EQ(second.Publish(session, Chain(3, 1)), 1U);
  EXPECT_GT(second.entries[0].generation, newest);
}

TEST(EarlierLife, NamespacesComeAndGoWithTheirRows) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  {
    OneLife first(*tables, config);
    // Four rows; the fifth model takes the row of one that nobody has blocks of.
    for (std::uint8_t model = 1; model <= 5; ++model) {
      const SessionId session = first.Join(0, model);
      if (model != 2) {
        EXPECT_EQ(first.Publish(session, Chain(model, 2)), 2U);
      }
      first.service().EndSession(session, first.now_ns);
    }
  }
  OneLife second(*tables, config);
  EXPECT_EQ(second.state->report().namespaces, 4U);
  EXPECT_EQ(second.state->report().adopted, 8U);
  for (const std::uint8_t model : {1, 3, 4, 5}) {
    const SessionId session = second.Join(0, model);
    EXPECT_EQ(second.Found(session, Chain(model, 2)), 2U) << int{model};
    second.service().EndSession(session, second.now_ns);
  }
}

TEST(EarlierLife, ADamagedNamespaceLosesItsBlocksOnly) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  {
    OneLife first(*tables, config);
    EXPECT_EQ(first.Publish(first.Join(0, 1, "a"), Chain(1, 3)), 3U);
    EXPECT_EQ(first.Publish(first.Join(1, 2, "b"), Chain(2, 4)), 4U);
  }
  tables->words()[wire::TablesLayout(config.shape()).namespaces.offset / 8] ^= 1;
  OneLife second(*tables, config);
  EXPECT_EQ(second.state->report().damaged_namespaces, 1U);
  EXPECT_EQ(second.state->report().adopted, 4U);
  EXPECT_EQ(second.state->report().discarded, 3U);
  EXPECT_EQ(second.Found(second.Join(0, 1, "a"), Chain(1, 3)), 0U);
  EXPECT_EQ(second.Found(second.Join(1, 2, "b"), Chain(2, 4)), 4U);
}

TEST(EarlierLife, WhatASessionMayTouchIsListedUntilItSaysOtherwise) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  OneLife life(*tables, config);
  const SessionId session = life.Join(3);
  const auto hashes = Chain(1, 6);
  const ReservationId reservation = life.Reserve(session, hashes);
  EXPECT_EQ(life.Listed(3).size(), 6U);
  std::vector<wire::CommitEntry> commits;
  for (std::uint32_t i = 0; i < 4; ++i) {
    commits.push_back({.slot_checksum = 1, .generation = life.entries[i].generation, .index = i, .reserved = 0});
  }
  std::vector<std::uint32_t> outcomes;
  ASSERT_TRUE(life.service().PublishCommit(session, reservation, {.entries = commits}, life.now_ns, outcomes));
  EXPECT_EQ(life.Listed(3).size(), 2U);
  ASSERT_TRUE(life.service().PublishAbort(session, reservation, life.now_ns));
  EXPECT_TRUE(life.Listed(3).empty());
  // Two grants of the same blocks; the second one is asked for twice.
  EXPECT_EQ(life.Arm(session, hashes, 1).size(), 4U);
  EXPECT_EQ(life.Listed(3).size(), 4U);
  EXPECT_EQ(life.Arm(session, std::span(hashes).first(3), 2).size(), 3U);
  std::vector<wire::PlanEntry> again;
  ASSERT_TRUE(life.service().RestorePlan(session, GrantId(2), Rank(0), life.now_ns, again));
  EXPECT_EQ(life.Listed(3).size(), 4U);
  ASSERT_TRUE(life.service().RestoreEnd(session, GrantId(1), Rank(0), wire::EndResult::kOk, {}, life.now_ns));
  EXPECT_EQ(life.Listed(3).size(), 3U);
  ASSERT_TRUE(life.service().RestoreEnd(session, GrantId(2), Rank(0), wire::EndResult::kOk, {}, life.now_ns));
  EXPECT_TRUE(life.Listed(3).empty());
  (void)life.Arm(session, hashes, 3);
  (void)life.Reserve(session, Chain(2, 2));
  EXPECT_EQ(life.Listed(3).size(), 6U);
  life.service().EndSession(session, life.now_ns);
  EXPECT_TRUE(life.state->lists().Load().empty());
}

TEST(EarlierLife, SlotsOfALiveSessionWaitUntilItHasDrainedOrIsGone) {
  const CoreStateConfig config = Config();
  for (const bool drained : {true, false}) {
    const auto tables = FreshTables(config);
    const auto hashes = Chain(1, 8);
    std::set<std::uint64_t> touched;
    {
      OneLife first(*tables, config);
      const SessionId session = first.Join(2);
      EXPECT_EQ(first.Publish(session, hashes), 8U);
      for (const auto& entry : first.Arm(session, std::span(hashes).first(3), 1)) touched.insert(entry.offset);
      (void)first.Reserve(session, Chain(2, 4));
      for (const auto& entry : first.entries) touched.insert(entry.offset);
    }
    OneLife second(*tables, config, {2});
    EXPECT_EQ(second.state->report().sessions_alive, 1U);
    EXPECT_EQ(second.state->report().held_slots, 7U);
    EXPECT_EQ(second.service().gauges().held_slots, 7U);
    ASSERT_EQ(second.service().earlier_sessions().size(), 1U);
    EXPECT_EQ(second.service().earlier_sessions()[0].slots, 7U);
    EXPECT_EQ(second.service().earlier_sessions()[0].bytes, 7U * 8192);
    const SessionId session = second.Join(0);
    EXPECT_EQ(second.Found(session, hashes), 8U) << "served meanwhile";
    // Writers come for every slot there is: none of them gets one that is held.
    const auto fill = [&](std::uint64_t seed) {
      std::size_t overlaps = 0;
      for (std::uint64_t i = 0; i < 30; ++i) {
        const ReservationId reservation = second.Reserve(session, Chain(seed + i, 60));
        for (const auto& entry : second.entries) {
          if (entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) {
            overlaps += touched.contains(entry.offset) ? 1 : 0;
          }
        }
        EXPECT_TRUE(second.service().PublishAbort(session, reservation, second.now_ns));
        EXPECT_GT(second.Publish(session, Chain(seed + i, 60)), 0U);
      }
      return overlaps;
    };
    EXPECT_EQ(fill(100), 0U);
    EXPECT_EQ(second.Found(session, std::span(hashes).first(3)), 3U) << "what is being read stays";
    if (drained) {
      EXPECT_EQ(second.service().DrainEarlierSession({1, 1}, 999), std::nullopt);
      EXPECT_EQ(second.service().DrainEarlierSession({1, 2}, 1002), std::nullopt);
      EXPECT_EQ(second.service().DrainEarlierSession({1, 1}, 1002), 2U);
    } else {
      EXPECT_FALSE(second.service().EndEarlierSession(1));
      EXPECT_TRUE(second.service().EndEarlierSession(2));
    }
    EXPECT_EQ(second.service().gauges().held_slots, 0U);
    EXPECT_GT(fill(500), 0U);
    EXPECT_TRUE(second.Listed(2).empty());
    EXPECT_TRUE(second.state->lists().Open(2, {}));
  }
}

TEST(EarlierLife, AHeldSlotIsStillHeldInTheThirdLife) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  const auto hashes = Chain(1, 4);
  {
    OneLife first(*tables, config);
    const SessionId session = first.Join(1);
    EXPECT_EQ(first.Publish(session, hashes), 4U);
    (void)first.Arm(session, hashes, 1);
  }
  {
    OneLife second(*tables, config, {1});
  }
  OneLife third(*tables, config, {1});
  EXPECT_EQ(third.state->report().held_slots, 4U);
  EXPECT_EQ(third.service().DrainEarlierSession({1, 1}, 1001), 1U);
}

TEST(EarlierLife, WhatWasTakenOverIsLookedThroughOnce) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  const auto hashes = Chain(1, 5);
  {
    OneLife first(*tables, config);
    EXPECT_FALSE(first.service().scrubbing());
    EXPECT_EQ(first.Publish(first.Join(0), hashes), 5U);
  }
  OneLife second(*tables, config);
  const SessionId session = second.Join(0);
  EXPECT_EQ(second.Publish(session, Chain(2, 3)), 3U);
  std::vector<VerifyRequest> asked;
  std::uint64_t bytes = 0;
  for (int step = 0; step < 100 && second.service().scrubbing(); ++step) {
    bytes += second.service().Scrub(second.now_ns);
    for (const VerifyRequest& request : second.service().TakeVerifyRequests()) asked.push_back(request);
  }
  EXPECT_FALSE(second.service().scrubbing());
  ASSERT_EQ(asked.size(), 5U) << "not what this life has stored";
  EXPECT_EQ(bytes, 5U * OneLife::kSlotBytes);
  EXPECT_EQ(second.Found(session, hashes), 5U) << "served while it is looked at";
  for (const VerifyRequest& request : asked) {
    EXPECT_TRUE(IsScrub(request.id));
    EXPECT_EQ(request.slot_checksum, ChecksumOf(request.key.hash, 0));
    EXPECT_EQ(request.page_bytes, 4000U);
    second.service().VerifyDone(request.id, request.key.hash != hashes[3], second.now_ns);
  }
  EXPECT_EQ(second.Found(session, hashes), 3U);
  EXPECT_EQ(second.service().counters().scrubbed_right, 4U);
  EXPECT_EQ(second.service().counters().scrubbed_wrong, 1U);
  EXPECT_EQ(second.service().counters().verified_different, 0U);
  EXPECT_EQ(second.service().sessions()[0].false_alarms, 0U);
  second.service().EndSession(session, second.now_ns);
  EXPECT_EQ(second.state->cache().gauges().granted_pins, 0U);
}

TEST(EarlierLife, OneSessionIsHeldNoMoreThanItsShare) {
  CoreStateConfig config = Config();
  config.held_percent = 1;  // five slots
  const auto tables = FreshTables(config);
  {
    OneLife first(*tables, config);
    const SessionId session = first.Join(1);
    EXPECT_EQ(first.Publish(session, Chain(1, 20)), 20U);
    (void)first.Arm(session, Chain(1, 20), 1);
    (void)first.Reserve(session, Chain(2, 3));
  }
  OneLife second(*tables, config, {1});
  EXPECT_EQ(second.state->report().held_slots, 5U);
  EXPECT_EQ(second.state->report().unfinished, 0U) << "what is being written comes first";
}

TEST(EarlierLife, ASessionThatNobodyCanWatchIsGivenUpAfterALongTime) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  {
    OneLife first(*tables, config);
    ASSERT_TRUE(first.state->lists().Open(4, {.incarnation = {1, 1}, .token = 5, .watched = false}));
    first.state->lists().Add(4, pool::SlotIndex(1));
    const SessionId writer = first.Join(0);
    EXPECT_EQ(first.Publish(writer, Chain(1, 1)), 1U);
  }
  OneLife second(*tables, config, {4});
  EXPECT_EQ(second.service().gauges().held_slots, 1U);
  const std::uint64_t end = second.now_ns + EarlierSessions::kUnwatchedNs;
  EXPECT_EQ(second.service().NextDeadline(), end);
  second.service().Tick(end - 1);
  EXPECT_EQ(second.service().gauges().held_slots, 1U);
  second.service().Tick(end);
  EXPECT_EQ(second.service().gauges().held_slots, 0U);
}

TEST(EarlierLife, TablesOfOtherSettingsAreLeftAlone) {
  const CoreStateConfig config = Config();
  const auto tables = FreshTables(config);
  CoreStateConfig other = config;
  other.pool.pool_bytes *= 2;
  other.limits.pool_bytes *= 2;
  const auto never = [](std::uint32_t, const pool::SessionOwner&) { return false; };
  const auto refused = CoreState::Begin(*tables, other, 0, never, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kRefused);
  EXPECT_EQ(wire::LoadTablesHeader(tables->bytes())->lives, 0U);
  tables->words()[0] ^= 1;
  EXPECT_EQ(CoreState::Begin(*tables, config, 0, never, 1).error().code, Code::kCorrupt);
}

// Random engines; a Manager may end at any store. What was acknowledged before the last call is served under its own
// checksum, unless it was evicted; what a session was told of is held.
TEST(EarlierLife, EveryStopOfEveryCall) {
  const CoreStateConfig config = Config();
  const wire::TablesLayout layout(config.shape());
  const auto tables = FreshTables(config);
  OneLife life(*tables, config);
  Prng prng(8);
  SessionId session = life.Join(0);
  std::uint64_t grant = 1;
  std::uint64_t looked = 0;
  const auto stored = [&](OneLife& one, SessionId asking) {
    std::vector<std::uint32_t> found;
    for (std::uint64_t seed = 0; seed < 3; ++seed) found.push_back(one.Found(asking, Chain(seed, 6)));
    return found;
  };
  tables->ForEachStop([](const auto&) {});
  for (int step = 0; step < 120; ++step) {
    const std::vector<std::uint32_t> before = stored(life, session);
    const auto hashes = Chain(prng.Below(3), 6);
    switch (prng.Below(4)) {
      case 0: (void)life.Publish(session, std::span(hashes).first(prng.Below(6) + 1)); break;
      case 1: (void)life.Reserve(session, hashes); break;
      case 2:
        if (life.Found(session, hashes) > 0) (void)life.Arm(session, hashes, grant++);
        break;
      default:
        if (prng.Below(3) == 0) {
          life.service().EndSession(session, life.now_ns);
          session = life.Join(0);
        } else if (grant > 1) {
          (void)life.service().RestoreEnd(session, GrantId(grant - 1), Rank(0), wire::EndResult::kOk, {}, life.now_ns);
        }
        break;
    }
    const std::vector<std::uint32_t> after = stored(life, session);
    tables->ForEachStop([&](const std::vector<std::uint64_t>& memory) {
      if (prng.Below(6) != 0) return;
      std::vector<std::uint64_t> copy = memory;
      wire::SpanTable table(std::as_writable_bytes(std::span(copy)));
      OneLife next(table, config, {0});
      const SessionId asking = next.Join(5);
      const std::vector<std::uint32_t> seen = stored(next, asking);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        EXPECT_GE(seen[i], std::min(before[i], after[i])) << step;
        EXPECT_LE(seen[i], std::max(before[i], after[i])) << step;
      }
      // No slot on the list is given to anybody else.
      std::set<std::uint32_t> listed = next.Listed(0);
      // But for one whose record was being sealed: its writer had said that it was done.
      std::erase_if(listed, [&](std::uint32_t slot) {
        return !wire::LoadSlotRecord(std::as_bytes(std::span(memory)).subspan(layout.slots.offset), slot - 1);
      });
      for (std::uint64_t i = 0; i < 4; ++i) (void)next.Reserve(asking, Chain(900 + i, 60));
      for (const std::uint32_t slot : next.Listed(5)) EXPECT_FALSE(listed.contains(slot)) << step;
      ++looked;
    });
    ASSERT_FALSE(::testing::Test::HasFailure()) << step;
  }
  EXPECT_GT(looked, 150U);
}

}  // namespace
}  // namespace orbitkv::service
