#include "orbitkv/cache/eviction.h"

#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/block_index.h"
#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

TEST(LruPolicy, OldestFirstThenDeepest) {
  const auto policy = MakeLruPolicy(300);
  policy->AddLane();
  std::map<std::uint32_t, std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>> keys;  // last use, -depth, block
  Prng prng(11);
  std::uint64_t now = 0;
  for (std::uint32_t block = 0; block < 300; ++block) {
    now += prng.Below(2);
    const auto depth = static_cast<std::uint32_t>(prng.Below(5));
    policy->OnInsert(block, BlockFacts{.last_use_ns = now, .depth = depth});
    policy->OnCandidate(block);
    keys[block] = {now, ~depth, block};
  }
  for (int i = 0; i < 500; ++i) {
    const auto block = static_cast<std::uint32_t>(prng.Below(300));
    policy->OnTouch(block, ++now);
    std::get<0>(keys[block]) = now;
  }
  while (!keys.empty()) {
    auto least = keys.begin();
    for (auto it = keys.begin(); it != keys.end(); ++it) {
      if (it->second < least->second) least = it;
    }
    ASSERT_EQ(policy->Victim(0), least->first);
    policy->OnRemove(least->first);
    keys.erase(least);
  }
  EXPECT_FALSE(policy->Victim(0));
}

TEST(LruPolicy, OrderSurvivesRemovalFromTheMiddle) {
  constexpr std::uint32_t kBlocks = 400;
  const auto policy = MakeLruPolicy(kBlocks);
  policy->AddLane();
  Prng prng(29);
  std::set<std::pair<std::uint64_t, std::uint32_t>> order;
  std::map<std::uint32_t, std::uint64_t> last_use;
  for (int step = 0; step < 20'000; ++step) {
    auto block = static_cast<std::uint32_t>(prng.Below(kBlocks));
    if (!order.empty() && prng.Below(4) == 0) block = order.begin()->second;
    if (const auto found = last_use.find(block); found != last_use.end()) {
      order.erase({found->second, block});
      last_use.erase(found);
      policy->OnRemove(block);
    } else {
      // Any age: a block may become a leaf long after its last use. A depth that orders equal ages by number.
      const std::uint64_t age = prng.Below(1000);
      policy->OnInsert(block, BlockFacts{.last_use_ns = age, .depth = kBlocks - block});
      policy->OnCandidate(block);
      order.insert({age, block});
      last_use[block] = age;
    }
    ASSERT_EQ(policy->Victim(0), order.empty() ? std::nullopt : std::optional(order.begin()->second));
  }
}

TEST(LruPolicy, UseBetweenCandidaciesCounts) {
  const auto policy = MakeLruPolicy(2);
  policy->AddLane();
  policy->OnInsert(0, BlockFacts{.last_use_ns = 1});
  policy->OnInsert(1, BlockFacts{.last_use_ns = 2});
  policy->OnTouch(0, 3);  // while it is no candidate
  policy->OnCandidate(0);
  policy->OnCandidate(1);
  EXPECT_EQ(policy->Victim(0), 1U);
}

TEST(BlockIndex, FollowsAMapThroughCollisions) {
  constexpr std::uint32_t kEntries = 64;
  BlockIndex index(kEntries);
  std::map<std::uint32_t, std::uint32_t> hash_of;  // entry -> hash
  Prng prng(3);
  for (int step = 0; step < 100'000; ++step) {
    const auto entry = static_cast<std::uint32_t>(prng.Below(kEntries));
    if (const auto found = hash_of.find(entry); found != hash_of.end()) {
      index.Erase(found->second, entry);
      hash_of.erase(found);
    } else {
      // Few different hashes near the end of the table: long runs that wrap around.
      const std::uint64_t place = 120 + prng.Below(12);
      const auto hash = static_cast<std::uint32_t>(place + prng.Below(2) * 128);
      index.Insert(hash, entry);
      hash_of[entry] = hash;
    }
    ASSERT_EQ(index.size(), hash_of.size());
    const auto asked = static_cast<std::uint32_t>(prng.Below(kEntries));
    const auto known = hash_of.find(asked);
    const std::uint32_t hash = known == hash_of.end() ? 125 : known->second;
    const std::uint32_t got = index.Find(hash, [&](std::uint32_t candidate) { return candidate == asked; });
    ASSERT_EQ(got, known == hash_of.end() ? BlockIndex::kNone : asked);
  }
}

}  // namespace
}  // namespace orbitkv::cache
