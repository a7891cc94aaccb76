// The simulator itself: a seed replays bit for bit, and a sweep goes everywhere.
#include <gtest/gtest.h>

#include "orbitkv/testing/sim/run.h"

namespace orbitkv::sim {
namespace {

TEST(SimulationTest, TheSameSeedGivesTheSameHistory) {
  for (const std::uint64_t seed : {3U, 17U, 99U}) {
    const Outcome first = RunSeed(seed, 1000);
    const Outcome second = RunSeed(seed, 1000);
    EXPECT_EQ(first.history_hash, second.history_hash) << seed;
    EXPECT_EQ(first.history, second.history) << seed;
    EXPECT_NE(first.history_hash, RunSeed(seed + 1).history_hash) << seed;
  }
}

TEST(SimulationTest, KeepingTheHistoryChangesNothing) {
  EXPECT_EQ(RunSeed(7, 0).history_hash, RunSeed(7, 50).history_hash);
}

TEST(SimulationTest, ASweepGoesEverywhere) {
  Coverage all;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Outcome outcome = RunSeed(seed);
    EXPECT_EQ(outcome.violation, "") << "seed " << seed;
    all.Add(outcome.coverage);
  }
  EXPECT_GT(all.stored, 0U);
  EXPECT_GT(all.already_there, 0U);
  EXPECT_GT(all.not_now, 0U);
  EXPECT_GT(all.evictions, 0U);
  EXPECT_GT(all.grants, 0U);
  EXPECT_GT(all.late_grants, 0U);
  EXPECT_GT(all.restored, 0U);
  EXPECT_GT(all.revoked, 0U);
  EXPECT_GT(all.over_budget, 0U);
  EXPECT_GT(all.mismatched, 0U);
  EXPECT_GT(all.verified_different, 0U);
  EXPECT_GT(all.false_alarms, 0U);
  EXPECT_GT(all.given_up, 0U);
  EXPECT_GT(all.late_answers, 0U);
  EXPECT_GT(all.process_crashes, 0U);
  EXPECT_GT(all.manager_crashes, 0U);
  EXPECT_GT(all.disconnects, 0U);
  EXPECT_GT(all.damages, 0U);
  EXPECT_GT(all.loading, 0U);
  EXPECT_GT(all.loads_ok, 0U);
  EXPECT_GT(all.loads_bad, 0U);
  EXPECT_GT(all.recoveries, 0U);
  EXPECT_GT(all.died_storing, 0U);
  EXPECT_GT(all.died_recovering, 0U);
  EXPECT_GT(all.adopted, 0U);
  EXPECT_GT(all.unfinished, 0U);
  EXPECT_GT(all.torn, 0U);
  EXPECT_GT(all.held, 0U);
  EXPECT_GT(all.earlier_died, 0U);
  EXPECT_GT(all.earlier_drained, 0U);
  EXPECT_GT(all.restored_earlier, 0U);
  EXPECT_GT(all.power_losses, 0U);
  EXPECT_GT(all.saves_ok, 0U);
  EXPECT_GT(all.saves_bad, 0U);
  EXPECT_GT(all.evicted_unsaved, 0U);
  EXPECT_GT(all.claims, 0U);
  EXPECT_GT(all.claims_by_others, 0U);
  EXPECT_GT(all.restored_groups, 0U);
  EXPECT_GT(all.unregistered, 0U);
  EXPECT_GT(all.detached_holding, 0U);
  EXPECT_GT(all.drained, 0U);
  EXPECT_GT(all.too_late, 0U);
}

}  // namespace
}  // namespace orbitkv::sim
