// Load it or compute it: what a look-up that says how long computing takes is offered.
#include <gtest/gtest.h>

#include "orbitkv/service/test_engine.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::service {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint32_t kBlocks = 20;

class RecomputeTest : public ::testing::Test {
 protected:
  explicit RecomputeTest(const WorldOptions& options = Options(true)) : world_(options) {
    world_.service().SetSource(&source_);
    session_ = world_.Join(world_.Worker("one"));
    digest_ = world_.service().Register(session_, world_.Worker("one"), world_.now()).namespace_digest;
    // Every look-up takes this long to load, however many blocks it has.
    source_.set_delay([](const ComponentKey&) { return 10 * kMs; });
  }
  static WorldOptions Options(bool recompute) {
    WorldOptions options;
    options.limits.recompute = recompute;
    return options;
  }
  std::vector<state::BlockHash> Saved(std::uint64_t seed, std::size_t here = 0) {
    const auto chain = Chain(seed, kBlocks);
    for (std::size_t i = here; i < chain.size(); ++i) {
      SourceRecord record{.depth = static_cast<std::uint32_t>(i), .checksum = ChecksumOf(chain[i], 0)};
      if (i > 0) record.parent = chain[i - 1];
      source_.Put({{digest_, chain[i], 0, 0}, world_.slot_bytes()}, record);
    }
    if (here > 0) {
      EXPECT_EQ(world_.Publish(session_, std::span(chain).first(here)), here);
    }
    return chain;
  }
  QueryOutcome Submit(std::span<const state::BlockHash> chain, std::uint64_t compute_ns) {
    wire::QueryView view;
    view.header.request_key_lo = ++operation_;
    view.header.wait_ns = kSecond;
    view.hashes = chain;
    view.compute_ns = compute_ns;
    auto outcome = world_.service().StartQuery(session_, view, world_.now(), {operation_, 1});
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(session_, world_.now());
    return World::Take(std::move(outcome));
  }
  void Work() {
    while (world_.service().Work(world_.now())) {
    }
    for (const LoadRequest& request : world_.service().TakeLoads()) source_.Submit(request, world_.now());
  }
  void Settle() {
    Work();
    world_.Advance(10 * kMs);
    for (const auto& done : source_.Step(world_.now())) {
      world_.service().LoadDone(done.id, done.result, done.checksum, world_.now());
    }
    Work();
  }
  // The source is measured: kBlocks in 10 ms.
  void Measure() {
    ASSERT_TRUE(Submit(Saved(100), 0).loading);
    Settle();
    const auto speed = static_cast<double>(world_.service().gauges().load_bytes_per_second);
    ASSERT_NEAR(speed, static_cast<double>(kBlocks * pool::Pool::SlotBytes(2016)) * 100, 1000);
  }
  std::uint64_t chosen() { return world_.service().counters().recompute_chosen; }

  World world_;
  ::orbitkv::testing::RamSource source_;
  SessionId session_;
  state::Digest digest_{};
  std::uint64_t operation_ = 0;
};

TEST_F(RecomputeTest, WhatIsComputedSoonerIsNotLoaded) {
  EXPECT_TRUE(Submit(Saved(1), 1).loading) << "nobody knows yet how fast the source is";
  Settle();
  Measure();
  // A block takes about half a millisecond to load.
  EXPECT_TRUE(Submit(Saved(2), kMs).loading);
  Settle();
  EXPECT_EQ(chosen(), 0U);
  const auto half = Saved(3, kBlocks / 2);
  const QueryOutcome outcome = Submit(half, kMs / 4);
  EXPECT_FALSE(outcome.loading);
  EXPECT_EQ(outcome.found_blocks, kBlocks / 2) << "what is in the pool is offered";
  EXPECT_EQ(outcome.miss_reason, static_cast<std::uint32_t>(wire::MissReason::kRecompute));
  EXPECT_EQ(chosen(), 1U);
  const QueryOutcome nothing = Submit(Saved(4), kMs / 4);
  EXPECT_EQ(nothing.found_blocks, 0U);
  EXPECT_EQ(nothing.miss_reason, static_cast<std::uint32_t>(wire::MissReason::kRecompute)) << "it is not absent";
  const auto here = Saved(5, kBlocks);
  EXPECT_EQ(Submit(here, kMs / 4).miss_reason, 0U) << "there is nothing to load";
  EXPECT_TRUE(Submit(half, 0).loading) << "it does not say";
  Settle();
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

TEST_F(RecomputeTest, WhatIsAheadInLineCountsToo) {
  Measure();
  EXPECT_TRUE(Submit(Saved(1), 3 * kMs / 4).loading);
  Work();
  const auto second = Saved(2);
  EXPECT_FALSE(Submit(second, 3 * kMs / 4).loading) << "the first one is being loaded";
  EXPECT_EQ(chosen(), 1U);
  EXPECT_TRUE(Submit(second, 2 * kMs).loading);
  Settle();
  EXPECT_TRUE(Submit(Saved(3), 3 * kMs / 4).loading);
  Settle();
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

TEST_F(RecomputeTest, AMeasureGrowsOldAndIsTriedAgain) {
  Measure();
  const auto chain = Saved(1);
  EXPECT_FALSE(Submit(chain, kMs / 4).loading);
  world_.Advance(11 * kSecond);
  EXPECT_TRUE(Submit(chain, kMs / 4).loading);
  Settle();
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

// Each look-up loads more than what a measure takes.
class LargeLoadTest : public RecomputeTest {
 protected:
  static constexpr std::uint64_t kPageBytes = 1'000'000;
  LargeLoadTest() : RecomputeTest(Large()) {}
  static WorldOptions Large() {
    WorldOptions options = Options(true);
    options.pool_bytes = 256 * kMiB;
    options.page_bytes = kPageBytes;
    return options;
  }
  double speed() { return static_cast<double>(world_.service().gauges().load_bytes_per_second); }
  double all_bytes() { return static_cast<double>(kBlocks) * world_.slot_bytes(); }
};

TEST_F(LargeLoadTest, WhatEndsTogetherIsMeasuredTogether) {
  ASSERT_TRUE(Submit(Saved(1), 0).loading);
  Settle();
  EXPECT_NEAR(speed(), all_bytes() * 100, all_bytes());
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

TEST_F(LargeLoadTest, WhatEndsRightBehindSaysNothing) {
  ASSERT_TRUE(Submit(Saved(1), 0).loading);
  Work();
  world_.Advance(10 * kMs);
  std::uint32_t done = 0;
  for (const auto& end : source_.Step(world_.now())) {
    world_.service().LoadDone(end.id, end.result, end.checksum, world_.now());
    if (++done == kBlocks / 2) world_.Advance(50'000);
  }
  Work();
  EXPECT_EQ(done, kBlocks);
  EXPECT_NEAR(speed(), all_bytes() / 2 * 100, all_bytes());
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

class SwitchedOffTest : public RecomputeTest {
 protected:
  SwitchedOffTest() : RecomputeTest(Options(false)) {}
};

TEST_F(SwitchedOffTest, EverythingIsLoaded) {
  Measure();
  EXPECT_TRUE(Submit(Saved(1), 1).loading);
  Settle();
  EXPECT_EQ(chosen(), 0U);
  world_.EndAllSessions();
  world_.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
