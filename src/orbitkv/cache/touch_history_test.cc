#include "orbitkv/cache/touch_history.h"

#include <gtest/gtest.h>
#include <map>
#include <vector>

#include "orbitkv/base/prng.h"

namespace orbitkv::cache {
namespace {

TEST(TouchHistory, FindsTheLastUseOfWhatTheRingHolds) {
  ReuseModel model;
  constexpr std::uint32_t kCapacity = 64;
  TouchHistory history(kCapacity, model);
  std::map<std::uint64_t, int> last;  // key -> number of its last use
  std::map<std::uint64_t, std::uint8_t> turn;
  Prng prng(1);
  const auto any_key = [&prng] {
    const std::uint64_t home = prng.Below(12) * 128;  // few in the table
    return home + prng.Below(10);
  };
  Ticks now = 0;
  for (int number = 0; number < 100'000; ++number) {
    now += static_cast<Ticks>(prng.Below(3));
    const std::uint64_t key = any_key();
    const auto use_turn = static_cast<std::uint8_t>(1 + prng.Below(8));
    history.Add({.key = key, .touched = now, .cls = ReuseModel::FoundClass(use_turn), .turn = use_turn});
    last[key] = number;
    turn[key] = use_turn;
    history.Advance(now);
    for (const std::uint64_t one : {key, any_key()}) {
      const auto* found = history.Find(one);
      const auto known = last.find(one);
      const bool there = known != last.end() && number - known->second < static_cast<int>(kCapacity);
      ASSERT_EQ(found != nullptr, there);
      if (found != nullptr) {
        ASSERT_EQ(found->turn, turn[one]);
      }
    }
  }
}

// What is used again at one age and never at others is worth most just before that age.
TEST(TouchHistory, TheModelLearnsWhenBlocksAreUsedAgain) {
  ReuseModel model;
  TouchHistory history(10'000, model);
  const std::uint8_t cls = ReuseModel::FoundClass(1);
  const Ticks period = model.edge(14) + (model.edge(15) - model.edge(14)) / 2;
  std::map<Ticks, std::uint64_t> due;
  std::uint64_t next_key = 1;
  Ticks now = 0;
  for (int step = 0; step < 200'000; ++step, ++now) {
    if (step % 4 == 0) {
      history.Add({.key = next_key, .touched = now, .cls = cls, .turn = 1});
      due[now + period] = next_key++;
    }
    if (const auto again = due.find(now); again != due.end()) {
      history.Add({.key = again->second, .touched = now, .cls = ReuseModel::FoundClass(2), .turn = 2});
    }
    history.Advance(now);
  }
  for (std::uint32_t round = 0; round <= ReuseModel::kClasses; ++round) model.RefreshStep(now);
  for (std::uint32_t round = 0; round <= ReuseModel::kClasses; ++round) model.RefreshStep(now);
  EXPECT_GT(model.index(cls, 14), 2 * model.index(cls, 10));
  EXPECT_GT(model.index(cls, 10), model.index(cls, 0));
  EXPECT_GT(model.index(cls, 14), 20 * model.index(cls, 16));
  // The second turn is never followed by a third.
  for (std::uint32_t bin = 0; bin < ReuseModel::kBins; ++bin) {
    EXPECT_LT(model.index(ReuseModel::FoundClass(2), bin), model.index(cls, 14));
  }
}

TEST(ReuseModel, BinsHaveTheirEdges) {
  const ReuseModel model;
  EXPECT_EQ(model.edge(0), 0U);
  for (std::uint32_t bin = 0; bin < ReuseModel::kBins; ++bin) {
    ASSERT_LT(model.edge(bin), model.edge(bin + 1));
    EXPECT_EQ(model.BinOf(model.edge(bin)), bin);
    if (bin + 1 < ReuseModel::kBins) {
      EXPECT_EQ(model.BinOf(model.edge(bin + 1) - 1), bin);
    }
  }
  EXPECT_EQ(model.BinOf(0xffffffffU), ReuseModel::kBins - 1);
}

TEST(ReuseModel, ClassesAreApart) {
  std::map<std::uint8_t, int> seen;
  for (std::uint32_t turn = 1; turn <= ReuseModel::kTurns; ++turn) {
    ++seen[ReuseModel::FoundClass(turn)];
    ++seen[ReuseModel::BroughtClass(turn, 0, 5000)];
    for (const std::uint32_t answer : {0U, 25U, 100U, 200U, 500U}) {
      ++seen[ReuseModel::BroughtClass(turn, 100, answer)];
      EXPECT_EQ(ReuseModel::BroughtClass(turn, 100, answer), ReuseModel::BroughtClass(turn, 9000, answer + 20));
    }
  }
  for (std::uint32_t pace = 0; pace < ReuseModel::kBins; ++pace) ++seen[ReuseModel::PaceClass(pace)];
  for (const bool has_pace : {false, true}) {
    const std::uint8_t cls = ReuseModel::AwaitedClass(has_pace);
    ++seen[cls];
    EXPECT_TRUE(ReuseModel::IsAwaited(cls));
    EXPECT_EQ(ReuseModel::HasPace(cls), has_pace);
  }
  EXPECT_EQ(seen.size(), ReuseModel::kClasses);
  EXPECT_EQ(ReuseModel::FoundClass(100), ReuseModel::FoundClass(ReuseModel::kTurns));
}

// Before anything was seen the index rises while the usual time of a next use comes closer, then falls.
TEST(ReuseModel, StartsWithAPriorByAge) {
  const ReuseModel model;
  std::uint32_t best = 0;
  for (std::uint32_t bin = 0; bin < ReuseModel::kBins; ++bin) {
    EXPECT_GT(model.index(0, bin), 0);
    EXPECT_FLOAT_EQ(model.index(0, bin), model.index(15, bin));
    if (model.index(0, bin) > model.index(0, best)) best = bin;
  }
  EXPECT_GT(best, 5U);
  EXPECT_LT(best, 25U);
}

// What was brought ahead of a use is worth more than anything else at once, and less the longer that does not come.
TEST(ReuseModel, TheAwaitedAreWorthMostAtFirst) {
  const ReuseModel model;
  const std::uint8_t awaited = ReuseModel::AwaitedClass(false);
  for (std::uint32_t bin = 0; bin < ReuseModel::kBins; ++bin) {
    EXPECT_GT(model.index(awaited, 0), 3 * model.index(ReuseModel::FoundClass(1), bin));
  }
  EXPECT_LT(model.index(awaited, model.BinOf(600U << (30 - kTickShift))), model.index(awaited, 0) / 3);
}

// Those that wait in vain are learned from, and say nothing about the others.
TEST(ReuseModel, TheAwaitedAreLearnedByThemselves) {
  ReuseModel model;
  const ReuseModel fresh;
  const std::uint8_t awaited = ReuseModel::AwaitedClass(false);
  for (std::uint32_t bin = 0; bin < 20; ++bin) {
    for (int i = 0; i < 500; ++i) {
      model.Enter(awaited, bin, 0);
      model.Leave(awaited, bin, 0, model.edge(bin + 1), false);
    }
  }
  for (std::uint32_t round = 0; round <= 2 * ReuseModel::kClasses + 1; ++round) model.RefreshStep(model.edge(20));
  EXPECT_LT(10 * model.index(awaited, 0), fresh.index(awaited, 0));
  for (std::uint32_t bin = 0; bin < 20; ++bin) {
    EXPECT_FLOAT_EQ(model.index(ReuseModel::FoundClass(1), bin), fresh.index(ReuseModel::FoundClass(1), bin));
  }
}

// What was seen of one class tells about another by the features that they share.
TEST(ReuseModel, FeaturesSpeakForClassesThatWereNotSeen) {
  ReuseModel model;
  const std::uint32_t bin = 10;
  Ticks now = model.edge(bin + 1);
  // Short answers are followed by uses in the first two turns, long ones are not.
  for (const std::uint32_t turn : {1U, 2U}) {
    for (int i = 0; i < 500; ++i) {
      const std::uint32_t used = ReuseModel::BroughtClass(turn, 1000, 10);
      model.Enter(used, bin, 0);
      model.Leave(used, bin, 0, now, true);
      const std::uint32_t unused = ReuseModel::BroughtClass(turn, 1000, 900);
      model.Enter(unused, bin, 0);
      model.Leave(unused, bin, 0, now, false);
    }
  }
  for (std::uint32_t round = 0; round <= 2 * ReuseModel::kClasses + 1; ++round) model.RefreshStep(now);
  EXPECT_GT(model.index(ReuseModel::BroughtClass(3, 1000, 10), bin),
            3 * model.index(ReuseModel::BroughtClass(3, 1000, 900), bin));
}

TEST(ReuseModel, WhatFadedIsOutweighedByWhatComes) {
  ReuseModel faded;
  ReuseModel kept;
  const std::uint32_t cls = ReuseModel::FoundClass(2);
  const Ticks now = faded.edge(11);
  const auto see = [&](ReuseModel& model, bool used) {
    for (int i = 0; i < 400; ++i) {
      model.Enter(cls, 10, 0);
      model.Leave(cls, 10, 0, now, used);
    }
  };
  see(faded, true);
  see(kept, true);
  for (int i = 0; i < 6; ++i) faded.Fade();
  see(faded, false);
  see(kept, false);
  for (std::uint32_t round = 0; round <= 2 * ReuseModel::kClasses + 1; ++round) {
    faded.RefreshStep(now);
    kept.RefreshStep(now);
  }
  EXPECT_LT(3 * faded.index(cls, 10), kept.index(cls, 10));
}

}  // namespace
}  // namespace orbitkv::cache
