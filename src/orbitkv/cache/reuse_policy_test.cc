#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "orbitkv/cache/policies.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kMixed = 0x9e3779b97f4a7c15ULL;

// Lives of single blocks through a policy, each a candidate always.
class Lives {
 public:
  explicit Lives(std::uint32_t blocks) : policy(MakeReusePolicy(blocks)) {
    policy->AddLane();
    for (std::uint32_t block = blocks; block-- > 0;) free.push_back(block);
  }
  std::uint32_t Insert(BlockFacts facts) {
    const std::uint32_t block = free.back();
    free.pop_back();
    facts.last_use_ns = now_ns;
    policy->OnInsert(block, facts);
    policy->OnCandidate(block);
    return block;
  }
  void Remove(std::uint32_t block) {
    policy->OnRemove(block);
    free.push_back(block);
  }
  std::unique_ptr<EvictionPolicy> policy;
  std::vector<std::uint32_t> free;
  std::uint64_t now_ns = kSecond;
};

// Requests with short answers are followed by another use after a minute, those with long answers never.
TEST(ReusePolicy, KeepsTheKindThatIsUsedAgain) {
  Lives lives(4000);
  std::map<std::uint64_t, std::uint32_t> due;
  std::uint64_t key = 1;
  for (int step = 0; step < 3000; ++step) {
    lives.now_ns += kSecond / 4;
    for (const std::uint32_t answer : {10U, 400U}) {
      if (lives.free.size() < 10) lives.Remove(lives.policy->Victim(0).value());
      const std::uint32_t block = lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = answer});
      if (answer == 10) due[lives.now_ns + 60 * kSecond] = block;
    }
    if (const auto again = due.find(lives.now_ns); again != due.end()) {
      lives.policy->OnTouch(again->second, lives.now_ns);
    }
  }
  while (const auto victim = lives.policy->Victim(0)) lives.Remove(*victim);
  std::set<std::uint32_t> useful;
  for (int i = 0; i < 40; ++i) {
    lives.now_ns += kSecond;
    useful.insert(lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10}));
    lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 400});  // newer
  }
  for (int i = 0; i < 40; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    EXPECT_FALSE(useful.contains(victim)) << i;
    lives.Remove(victim);
  }
}

// Everything is used once more after a minute, and never after that: two minutes are too old, half a minute is not.
TEST(ReusePolicy, AgeCountsByWhatIsLearnedNotByOrder) {
  Lives lives(4000);
  std::map<std::uint64_t, std::uint32_t> due;
  std::map<std::uint32_t, std::uint64_t> born;
  std::uint64_t key = 1;
  for (int step = 0; step < 4000; ++step) {
    lives.now_ns += kSecond / 4;
    if (lives.free.size() < 10) {
      const std::uint32_t victim = lives.policy->Victim(0).value();
      lives.Remove(victim);
      std::erase_if(due, [&](const auto& one) { return one.second == victim; });
      born.erase(victim);
    }
    const std::uint32_t block = lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
    born[block] = lives.now_ns;
    if (step % 2 == 0) due[lives.now_ns + 60 * kSecond] = block;
    if (const auto again = due.find(lives.now_ns); again != due.end()) {
      lives.policy->OnTouch(again->second, lives.now_ns);
      born.erase(again->second);
    }
  }
  // Of those that were not used again, the ones that are past their minute go before the ones that wait for it, though
  // the newest, with their minute before them, are worth less than those that are near it.
  int waiting = 0;
  for (int i = 0; i < 60; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    if (const auto found = born.find(victim); found != born.end() && lives.now_ns - found->second < 55 * kSecond) {
      ++waiting;
    }
    lives.Remove(victim);
  }
  EXPECT_EQ(waiting, 0);
}

// A block that was evicted and comes back is known: it counts as found by the request, in the turn after its last.
TEST(ReusePolicy, RemembersWhatWasEvicted) {
  Lives lives(64);
  // Twenty keys come back every minute, always after everything was evicted; the others never do.
  std::uint64_t key = 1000;
  for (int round = 0; round < 30; ++round) {
    for (std::uint64_t regular = 1; regular <= 20; ++regular) {
      lives.now_ns += 3 * kSecond;
      for (const std::uint64_t one : {regular, key++}) {
        lives.Insert({.key = one * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
      }
    }
    while (const auto victim = lives.policy->Victim(0)) lives.Remove(*victim);
  }
  std::set<std::uint32_t> regulars;
  for (std::uint64_t regular = 1; regular <= 20; ++regular) {
    lives.now_ns += kSecond;
    regulars.insert(lives.Insert({.key = regular * kMixed, .prompt_tokens = 1000, .answer_tokens = 10}));
    lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
  }
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    EXPECT_FALSE(regulars.contains(victim));
    lives.Remove(victim);
  }
}

// All are used again once; those that were used twice go on. So what was used twice is worth more, at the same age.
TEST(ReusePolicy, TurnsAreToldApart) {
  Lives lives(2000);
  std::map<std::uint64_t, std::vector<std::uint32_t>> due;
  std::uint64_t key = 1;
  for (int step = 0; step < 1500; ++step) {
    lives.now_ns += kSecond;
    while (lives.free.size() < 10) lives.Remove(lives.policy->Victim(0).value());
    const std::uint32_t block = lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
    due[lives.now_ns + 40 * kSecond].push_back(block);
    if (step % 4 == 0) due[lives.now_ns + 80 * kSecond].push_back(block);
    if (step % 4 == 0) due[lives.now_ns + 120 * kSecond].push_back(block);
    for (const std::uint32_t again : due[lives.now_ns]) lives.policy->OnTouch(again, lives.now_ns);
  }
  while (const auto victim = lives.policy->Victim(0)) lives.Remove(*victim);
  std::vector<std::uint32_t> once;
  std::vector<std::uint32_t> twice;
  for (int i = 0; i < 40; ++i) {
    (i < 20 ? once : twice)
        .push_back(lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10}));
  }
  lives.now_ns += 40 * kSecond;
  for (const std::uint32_t block : twice) lives.policy->OnTouch(block, lives.now_ns);
  lives.now_ns += 40 * kSecond;
  for (const std::uint32_t block : once) lives.policy->OnTouch(block, lives.now_ns);
  for (const std::uint32_t block : twice) lives.policy->OnTouch(block, lives.now_ns);
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    EXPECT_TRUE(std::ranges::find(once, victim) != once.end());
    lives.Remove(victim);
  }
}

// Blocks of one prompt have the same age and kind: the one that became a candidate last goes first, so that one prompt
// goes from its end instead of all of them losing their ends.
TEST(ReusePolicy, APromptThatBeginsToGoGoesOn) {
  const auto policy = MakeReusePolicy(20);
  policy->AddLane();
  for (std::uint32_t block = 0; block < 20; ++block) {
    const std::uint64_t at_ns = 100 * kSecond + block / 10 * (kSecond / 20);  // of about the same age
    policy->OnInsert(block, {.key = (block + 1) * kMixed,
                             .last_use_ns = at_ns,
                             .depth = block % 10,
                             .parent_key = block % 10 == 0 ? 0 : block * kMixed});
  }
  policy->OnCandidate(9);
  policy->OnCandidate(19);
  const std::uint32_t first = policy->Victim(0).value();
  for (std::uint32_t i = 0; i < 10; ++i) {
    const std::uint32_t victim = policy->Victim(0).value();
    EXPECT_EQ(victim, first - i);
    policy->OnRemove(victim);
    if (i < 9) policy->OnCandidate(victim - 1);
  }
}

// What was loaded for somebody stays until he has used it, though new blocks and the next half minute are worth least.
TEST(ReusePolicy, WhatWasBroughtAheadOfAUseStaysForIt) {
  Lives lives(200);
  std::uint64_t key = 1;
  for (int i = 0; i < 60; ++i) {
    lives.now_ns += kSecond;
    lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
  }
  std::set<std::uint32_t> awaited;
  for (int i = 0; i < 40; ++i) {
    lives.now_ns += kSecond / 100;
    awaited.insert(lives.Insert({.key = key++ * kMixed, .awaited = true}));
    lives.Remove(lives.policy->Victim(0).value());
    lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10});
  }
  for (int i = 0; i < 60; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    EXPECT_FALSE(awaited.contains(victim)) << i;
    lives.Remove(victim);
  }
}

// Bringing a block and the use that it was brought for are one use: a prompt is not older for having been away.
TEST(ReusePolicy, TheUseThatABlockWasBroughtForIsNotAnother) {
  Lives lives(4000);
  std::map<std::uint64_t, std::vector<std::uint32_t>> due;
  std::uint64_t key = 1;
  const auto bring = [&] { return lives.Insert({.key = key++ * kMixed, .prompt_tokens = 1000, .answer_tokens = 10}); };
  // All are used twice more, and never again.
  for (int step = 0; step < 1500; ++step) {
    lives.now_ns += kSecond;
    while (lives.free.size() < 10) lives.Remove(lives.policy->Victim(0).value());
    const std::uint32_t block = bring();
    due[lives.now_ns + 40 * kSecond].push_back(block);
    due[lives.now_ns + 80 * kSecond].push_back(block);
    for (const std::uint32_t again : due[lives.now_ns]) lives.policy->OnTouch(again, lives.now_ns);
  }
  while (const auto victim = lives.policy->Victim(0)) lives.Remove(*victim);
  std::vector<std::uint32_t> thrice;
  std::vector<std::uint32_t> twice;
  for (int i = 0; i < 20; ++i) thrice.push_back(bring());
  lives.now_ns += 40 * kSecond;
  for (const std::uint32_t block : thrice) lives.policy->OnTouch(block, lives.now_ns);
  lives.now_ns += 35 * kSecond;
  for (int i = 0; i < 20; ++i) twice.push_back(lives.Insert({.key = key++ * kMixed, .awaited = true}));
  lives.now_ns += 5 * kSecond;
  for (int i = 0; i < 20; ++i) {
    lives.policy->OnTouch(thrice[i], lives.now_ns);
    lives.policy->OnTouch(twice[i], lives.now_ns);
  }
  lives.now_ns += 38 * kSecond;
  for (int i = 0; i < 20; ++i) {
    const std::uint32_t victim = lives.policy->Victim(0).value();
    EXPECT_TRUE(std::ranges::find(thrice, victim) != thrice.end()) << i;
    lives.Remove(victim);
  }
}

}  // namespace
}  // namespace orbitkv::cache
