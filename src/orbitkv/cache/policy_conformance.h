// What every EvictionPolicy must do, as one suite: instantiate it with a factory.
//   INSTANTIATE_TEST_SUITE_P(Lru, PolicyConformance, testing::Values(&MakeLruPolicy));
// Test code only.
#pragma once

#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/eviction.h"

namespace orbitkv::cache {

using PolicyMaker = std::unique_ptr<EvictionPolicy> (*)(std::uint32_t max_blocks);

class PolicyConformance : public testing::TestWithParam<PolicyMaker> {};

TEST_P(PolicyConformance, OnlyCandidatesAreVictims) {
  const auto policy = GetParam()(4);
  policy->AddLane();
  EXPECT_FALSE(policy->Victim(0));
  policy->OnInsert(2, BlockFacts{.last_use_ns = 5});
  EXPECT_FALSE(policy->Victim(0));
  policy->OnCandidate(2);
  EXPECT_EQ(policy->Victim(0), 2U);
  EXPECT_EQ(policy->Victim(0), 2U);  // asking changes nothing
  policy->OnNoCandidate(2);
  EXPECT_FALSE(policy->Victim(0));
  policy->OnCandidate(2);
  policy->OnRemove(2);
  EXPECT_FALSE(policy->Victim(0));
}

TEST_P(PolicyConformance, LanesAreApart) {
  const auto policy = GetParam()(4);
  policy->AddLane();
  policy->AddLane();
  policy->OnInsert(0, BlockFacts{.last_use_ns = 1, .lane = 1});
  policy->OnCandidate(0);
  EXPECT_FALSE(policy->Victim(0));
  EXPECT_EQ(policy->Victim(1), 0U);
  policy->OnInsert(1, BlockFacts{.last_use_ns = 9, .lane = 0});
  policy->OnCandidate(1);
  EXPECT_EQ(policy->Victim(0), 1U);
  EXPECT_EQ(policy->Victim(1), 0U);
}

TEST_P(PolicyConformance, NumbersAreReusedWithoutMemoryOfTheLastLife) {
  const auto policy = GetParam()(2);
  policy->AddLane();
  policy->AddLane();
  policy->OnInsert(0, BlockFacts{.last_use_ns = 1});
  policy->OnCandidate(0);
  policy->OnRemove(0);
  policy->OnInsert(0, BlockFacts{.last_use_ns = 2, .lane = 1});
  EXPECT_FALSE(policy->Victim(0));
  EXPECT_FALSE(policy->Victim(1));
  policy->OnCandidate(0);
  EXPECT_EQ(policy->Victim(1), 0U);
}

// Whatever the order, victims are candidates of their lane, and every candidate is a victim in the end.
TEST_P(PolicyConformance, RandomLivesAreFollowed) {
  constexpr std::uint32_t kBlocks = 200;
  constexpr std::uint32_t kLanes = 3;
  const auto policy = GetParam()(kBlocks);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) policy->AddLane();
  struct Life {
    std::uint32_t lane = 0;
    bool candidate = false;
  };
  std::map<std::uint32_t, Life> lives;
  std::set<std::uint32_t> candidates[kLanes];
  Prng prng(7);
  for (std::uint64_t now = 1; now < 40'000; ++now) {
    const auto block = static_cast<std::uint32_t>(prng.Below(kBlocks));
    const auto lane = static_cast<std::uint32_t>(prng.Below(kLanes));
    const auto found = lives.find(block);
    if (found == lives.end()) {
      policy->OnInsert(block, BlockFacts{.last_use_ns = now, .lane = lane, .depth = block % 7});
      lives[block] = Life{.lane = lane};
    } else if (const auto choice = prng.Below(10); choice < 4) {
      policy->OnTouch(block, now);
    } else if (choice < 9) {
      Life& life = found->second;
      life.candidate = !life.candidate;
      if (life.candidate) {
        policy->OnCandidate(block);
        candidates[life.lane].insert(block);
      } else {
        policy->OnNoCandidate(block);
        candidates[life.lane].erase(block);
      }
    } else {
      policy->OnRemove(block);
      candidates[found->second.lane].erase(block);
      lives.erase(found);
    }
    const auto victim = policy->Victim(lane);
    ASSERT_EQ(victim.has_value(), !candidates[lane].empty());
    if (victim) {
      ASSERT_TRUE(candidates[lane].contains(*victim));
    }
  }
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    while (const auto victim = policy->Victim(lane)) {
      ASSERT_EQ(candidates[lane].erase(*victim), 1U);
      policy->OnRemove(*victim);
    }
    EXPECT_TRUE(candidates[lane].empty());
  }
}

}  // namespace orbitkv::cache
