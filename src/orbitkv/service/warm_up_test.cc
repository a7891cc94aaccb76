// What comes into a full pool does not push out its own beginning, nor what others are about to use.
#include <gtest/gtest.h>

#include "orbitkv/cache/policies.h"
#include "orbitkv/service/tickets_fixture.h"

namespace orbitkv::service {
namespace {

// A tight pool under the policy to which what is newest is worth least.
class DefaultPolicyTest : public TicketTest {
 protected:
  DefaultPolicyTest() : TicketTest(Options()) {
    // Reads end in another order than they began.
    source_.set_delay([](const ComponentKey& key) { return kMs + key.hash.Prefix64() % (3 * kMs); });
    // A pool full of prompts of the last minute.
    for (std::uint64_t prompt = 100; prompt < 116; ++prompt) {
      After(4 * kSecond);
      EXPECT_EQ(world_.Publish(session_, Chain(prompt, 4)), 4U);
    }
  }
  static WorldOptions Options() {
    WorldOptions options = TightOptions();
    options.policy = cache::MakeReusePolicy;
    return options;
  }
  void WarmUp(std::span<const state::BlockHash> chain) {
    Save(chain);
    EXPECT_TRUE(Submit(session_, 0, 0, chain, {.request = 5, .mode = QueryMode::kWarmUp}));
    for (int step = 0; step < 200 && gauges().warm_ups + gauges().loads > 0; ++step) After(kMs);
    EXPECT_EQ(gauges().loads, 0U);
  }
};

TEST_F(DefaultPolicyTest, AWarmUpDoesNotPushOutItsOwnBlocks) {
  const auto chain = Chain(1, 50);
  WarmUp(chain);
  EXPECT_EQ(counters().loads_ok, 50U);
  EXPECT_EQ(world_.Found(session_, 7, chain), 50U);
  ExpectQuiet();
}

TEST_F(DefaultPolicyTest, WhatWasWarmedUpOutlivesWhatComesAfterIt) {
  const auto chain = Chain(1, 20);
  WarmUp(chain);
  for (std::uint64_t prompt = 200; prompt < 220; ++prompt) {
    After(100 * kMs);
    EXPECT_EQ(world_.Publish(session_, Chain(prompt, 4)), 4U);
  }
  EXPECT_EQ(world_.Found(session_, 7, chain), 20U);
  ExpectQuiet();
}

// The engine computes what follows and publishes it: its beginning is not what makes room for that.
TEST_F(DefaultPolicyTest, APublishDoesNotPushOutWhatItContinues) {
  const auto chain = Chain(1, 50);
  EXPECT_EQ(world_.Publish(session_, std::span(chain).first(10)), 10U);
  After(20 * kMs);
  const auto rest = std::span(chain).subspan(10);
  const auto reserved = world_.TryReserve(session_, rest, 0, 10, chain[9]);
  EXPECT_EQ(world_.Commit(session_, reserved->reservation, rest), 40U);
  EXPECT_EQ(world_.Found(session_, 7, chain), 50U);
  ExpectQuiet();
}

// An engine that hangs in the middle of a publish costs its own slots, not the prompts that it was extending.
TEST_F(DefaultPolicyTest, AWriterThatTakesLongKeepsItsSlotOnly) {
  const auto prompt = Chain(100, 4);
  const auto next = Chain(100, 5);
  ASSERT_TRUE(world_.TryReserve(session_, std::span(next).last(1), 0, 4, prompt[3]));
  EXPECT_EQ(world_.Publish(session_, Chain(300, 62)), 59U);
  EXPECT_EQ(world_.Found(session_, 7, prompt), 4U);
  EXPECT_TRUE(world_.ReleaseLease(session_, world_.Query(session_, 7, prompt).lease));
  After(9 * kSecond);
  EXPECT_EQ(world_.Publish(session_, Chain(301, 62)), 59U);
  ASSERT_TRUE(world_.service().NextDeadline());
  EXPECT_LE(*world_.service().NextDeadline(), world_.now() + kSecond);
  After(kSecond);
  EXPECT_EQ(world_.Publish(session_, Chain(302, 62)), 62U);
  EXPECT_LE(world_.Found(session_, 7, prompt), 1U);
  ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
