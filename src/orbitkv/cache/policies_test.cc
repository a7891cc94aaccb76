#include "orbitkv/cache/policies.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "orbitkv/cache/ghost_list.h"
#include "orbitkv/cache/policy_conformance.h"

namespace orbitkv::cache {
namespace {

INSTANTIATE_TEST_SUITE_P(All, PolicyConformance,
                         testing::Values(&MakeReusePolicy, &MakeLruPolicy, &MakeSlruPolicy, &MakeS3FifoPolicy,
                                         &MakeTinyLfuPolicy, &MakeArcPolicy));

TEST(Policies, AreFoundByName) {
  EXPECT_EQ(Policies().size(), 6U);
  for (const NamedPolicy& policy : Policies()) EXPECT_EQ(FindPolicy(policy.name), policy.make);
  EXPECT_EQ(FindPolicy("default"), &MakeReusePolicy);
  EXPECT_EQ(FindPolicy("LRU"), nullptr);
}

// A cache of `capacity` blocks without a tree: asks for keys and counts what is there.
class FlatCache {
 public:
  FlatCache(PolicyMaker make, std::uint32_t capacity) : policy_(make(capacity)), capacity_(capacity) {
    policy_->AddLane();
  }
  bool Ask(std::uint64_t key) {
    now_ns_ += 1'000'000;
    if (const auto found = blocks_.find(key); found != blocks_.end()) {
      policy_->OnTouch(found->second, now_ns_);
      return true;
    }
    auto block = static_cast<std::uint32_t>(blocks_.size());
    if (block == capacity_) {
      block = policy_->Victim(0).value();
      policy_->OnRemove(block);
      blocks_.erase(keys_[block]);
    }
    policy_->OnInsert(block, BlockFacts{.key = key, .last_use_ns = now_ns_});
    policy_->OnCandidate(block);
    blocks_[key] = block;
    keys_[block] = key;
    return false;
  }
  bool Has(std::uint64_t key) const { return blocks_.contains(key); }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  std::uint32_t capacity_;
  std::uint64_t now_ns_ = 0;
  std::map<std::uint64_t, std::uint32_t> blocks_;
  std::map<std::uint32_t, std::uint64_t> keys_;
};

constexpr std::uint64_t kMixed = 0x9e3779b97f4a7c15ULL;

// Blocks used again stay when many that are used once pass by; under LRU they do not.
class ScanResistance : public testing::TestWithParam<std::pair<PolicyMaker, bool>> {};

TEST_P(ScanResistance, UsedAgainSurvivesAScan) {
  FlatCache cache(GetParam().first, 100);
  for (std::uint64_t key = 5000; key < 5100; ++key) cache.Ask(key * kMixed);
  for (int round = 0; round < 4; ++round) {
    for (std::uint64_t key = 1; key <= 20; ++key) cache.Ask(key * kMixed);
  }
  for (std::uint64_t key = 1000; key < 1500; ++key) cache.Ask(key * kMixed);
  int kept = 0;
  for (std::uint64_t key = 1; key <= 20; ++key) kept += cache.Has(key * kMixed) ? 1 : 0;
  if (GetParam().second) {
    EXPECT_GE(kept, 19);
  } else {
    EXPECT_EQ(kept, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ScanResistance,
                         testing::Values(std::pair{&MakeLruPolicy, false}, std::pair{&MakeSlruPolicy, true},
                                         std::pair{&MakeS3FifoPolicy, true}, std::pair{&MakeTinyLfuPolicy, true},
                                         std::pair{&MakeArcPolicy, true}));

TEST(S3Fifo, AKeyThatComesBackSoonGoesToTheMainQueue) {
  FlatCache cache(&MakeS3FifoPolicy, 10);
  for (std::uint64_t key = 1; key <= 11; ++key) cache.Ask(key * kMixed);
  ASSERT_FALSE(cache.Has(1 * kMixed));
  cache.Ask(1 * kMixed);
  for (std::uint64_t key = 100; key < 150; ++key) cache.Ask(key * kMixed);
  EXPECT_TRUE(cache.Has(1 * kMixed));
}

TEST(Arc, ReturningKeysLengthenTheListThatTheyLeft) {
  FlatCache cache(&MakeArcPolicy, 10);
  for (std::uint64_t key = 1; key <= 5; ++key) {
    cache.Ask(key * kMixed);
    cache.Ask(key * kMixed);  // used again
  }
  // Twelve keys in a circle do not fit beside them, until the list of keys used once may be longer.
  int hits = 0;
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t key = 100; key < 108; ++key) hits += cache.Ask(key * kMixed) ? 1 : 0;
  }
  EXPECT_GT(hits, 100);
}

TEST(GhostList, RemembersTheNewestInOrder) {
  GhostList ghosts(4);
  for (std::uint64_t key = 1; key <= 6; ++key) ghosts.Add(key);
  EXPECT_EQ(ghosts.size(), 4U);
  EXPECT_FALSE(ghosts.Contains(2));
  EXPECT_TRUE(ghosts.Contains(3));
  EXPECT_TRUE(ghosts.Take(4));
  EXPECT_FALSE(ghosts.Take(4));
  ghosts.Add(3);  // the newest now
  ghosts.Trim(1);
  EXPECT_TRUE(ghosts.Contains(3));
  EXPECT_FALSE(ghosts.Contains(6));
  EXPECT_EQ(ghosts.size(), 1U);
}

// A key is remembered until it is taken, trimmed away, or so many others were added.
TEST(GhostList, FollowsAModelThroughCollisions) {
  constexpr std::uint64_t kCapacity = 16;
  GhostList ghosts(kCapacity);
  std::map<std::uint64_t, std::uint64_t> added;  // key -> number of its last addition
  std::uint64_t additions = 0;
  Prng prng(3);
  for (int step = 0; step < 50'000; ++step) {
    const std::uint64_t home = prng.Below(6) * 32;  // few homes
    const std::uint64_t key = home + prng.Below(8);
    const auto choice = prng.Below(8);
    if (choice < 5) {
      ghosts.Add(key);
      added[key] = additions++;
      std::erase_if(added, [&](const auto& one) { return one.second + kCapacity < additions; });
    } else if (choice < 7) {
      ASSERT_EQ(ghosts.Take(key), added.erase(key) == 1);
    } else {
      const std::size_t most = kCapacity / 2 + prng.Below(kCapacity);
      ghosts.Trim(most);
      while (added.size() > most) {
        added.erase(std::ranges::min_element(added, {}, [](const auto& one) { return one.second; }));
      }
    }
    ASSERT_EQ(ghosts.size(), added.size());
    for (const std::uint64_t one : {key, prng.Below(200)}) ASSERT_EQ(ghosts.Contains(one), added.contains(one));
  }
}

}  // namespace
}  // namespace orbitkv::cache
