// What every EvictionPolicy must do, as one suite: instantiate it with a factory.
//   INSTANTIATE_TEST_SUITE_P(Lru, PolicyConformance, testing::Values(&MakeLruPolicy));
// policies_test.cc does so for all of policies.h.
// Test code only.
#pragma once

#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {

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
  constexpr std::uint64_t kStepNs = 150'000'000;  // an hour and a half in all
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
      policy->OnInsert(block, BlockFacts{.key = prng.Below(300) * 0x9e3779b97f4a7c15ULL,
                                         .last_use_ns = now * kStepNs,
                                         .lane = lane,
                                         .depth = block % 7,
                                         .parent_key = prng.Below(300) * 0x9e3779b97f4a7c15ULL,
                                         .prompt_tokens = 1000,
                                         .answer_tokens = block});
      lives[block] = Life{.lane = lane};
    } else if (const auto choice = prng.Below(10); choice < 4) {
      policy->OnTouch(block, now * kStepNs);
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

// Two policies that are told the same say the same.
TEST_P(PolicyConformance, SameCallsSameVictims) {
  constexpr std::uint32_t kBlocks = 64;
  const auto one = GetParam()(kBlocks);
  const auto two = GetParam()(kBlocks);
  one->AddLane();
  two->AddLane();
  const auto both = [&](auto&& call) {
    call(*one);
    call(*two);
  };
  Prng prng(5);
  std::set<std::uint32_t> there;
  std::uint64_t now_ns = 0;
  for (int step = 0; step < 20'000; ++step) {
    now_ns += prng.Below(40'000'000);
    const auto block = static_cast<std::uint32_t>(prng.Below(kBlocks));
    if (there.contains(block)) {
      both([&](EvictionPolicy& policy) { policy.OnTouch(block, now_ns); });
    } else {
      const BlockFacts facts{.key = prng.Below(200), .last_use_ns = now_ns, .depth = block % 5};
      both([&](EvictionPolicy& policy) {
        policy.OnInsert(block, facts);
        policy.OnCandidate(block);
      });
      there.insert(block);
    }
    if (there.size() < kBlocks - 4) continue;
    const auto victim = one->Victim(0);
    ASSERT_EQ(victim, two->Victim(0));
    both([&](EvictionPolicy& policy) { policy.OnRemove(victim.value()); });
    there.erase(victim.value());
  }
}

// Time may pass in which nothing is said, however long.
TEST_P(PolicyConformance, LongSilenceIsFine) {
  const auto policy = GetParam()(100);
  policy->AddLane();
  for (std::uint32_t block = 0; block < 100; ++block) {
    policy->OnInsert(block, BlockFacts{.key = block, .last_use_ns = 1'000'000'000ULL * block});
    policy->OnCandidate(block);
  }
  policy->OnTouch(7, 10'000'000'000'000'000ULL);  // four months later
  std::set<std::uint32_t> gone;
  while (const auto victim = policy->Victim(0)) {
    policy->OnRemove(*victim);
    ASSERT_TRUE(gone.insert(*victim).second);
  }
  EXPECT_EQ(gone.size(), 100U);
}

}  // namespace orbitkv::cache
