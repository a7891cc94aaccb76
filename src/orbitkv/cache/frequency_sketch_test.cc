#include "orbitkv/cache/frequency_sketch.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <map>

#include "orbitkv/base/prng.h"

namespace orbitkv::cache {
namespace {

TEST(FrequencySketch, CountsFewKeysExactlyUpToItsCeiling) {
  FrequencySketch sketch(1024);
  EXPECT_EQ(sketch.bytes(), 2048U);
  EXPECT_EQ(sketch.Estimate(5), 0U);
  for (std::uint32_t i = 1; i <= 20; ++i) {
    sketch.Add(5);
    EXPECT_EQ(sketch.Estimate(5), std::min(i, FrequencySketch::kMaxEstimate));
    EXPECT_EQ(sketch.Estimate(6), 0U);
  }
}

TEST(FrequencySketch, NeverTooLowAndSeldomTooHigh) {
  constexpr std::uint64_t kKeys = 4096;
  FrequencySketch sketch(kKeys, 99, 1'000'000);
  std::map<std::uint64_t, std::uint32_t> counts;
  Prng prng(3);
  for (std::uint64_t i = 0; i < 2 * kKeys; ++i) {
    const std::uint64_t key = prng.Below(kKeys);
    sketch.Add(key);
    ++counts[key];
  }
  std::uint64_t high = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const std::uint32_t exact = std::min(counts[key], FrequencySketch::kMaxEstimate);
    ASSERT_GE(sketch.Estimate(key), exact);
    if (sketch.Estimate(key) > exact) ++high;
  }
  EXPECT_LT(high, kKeys / 5);
}

TEST(FrequencySketch, OldPopularityFades) {
  constexpr std::uint64_t kSample = 10'000;
  FrequencySketch sketch(1000, 7, kSample);
  for (int i = 0; i < 12; ++i) sketch.Add(1);
  EXPECT_EQ(sketch.Estimate(1), 12U);
  // Other keys, a few additions each, until a halving has begun and gone over all counters.
  for (std::uint64_t i = 0; i < kSample - 12; ++i) sketch.Add(1000 + i % 2);
  for (std::uint64_t i = 0; i < 100; ++i) sketch.Add(1000 + i % 2);
  EXPECT_EQ(sketch.Estimate(1), 6U);
  for (std::uint64_t i = 0; i < kSample; ++i) sketch.Add(1000 + i % 2);
  EXPECT_EQ(sketch.Estimate(1), 3U);
}

TEST(FrequencySketch, ASampleShorterThanAHalvingWaitsForIt) {
  FrequencySketch sketch(1024, 0, 1);  // 256 words, four a time
  for (int i = 0; i < 3; ++i) sketch.Add(1);
  std::uint32_t halvings = 0;
  for (std::uint32_t before = sketch.Estimate(1), i = 0; i < 64; ++i) {
    sketch.Add(2);
    if (sketch.Estimate(1) < before) ++halvings;
    before = sketch.Estimate(1);
  }
  EXPECT_EQ(halvings, 1U);
}

TEST(FrequencySketch, SizesAtTheEdges) {
  FrequencySketch none(0);
  none.Add(1);
  EXPECT_EQ(none.Estimate(1), 1U);
  EXPECT_EQ(none.bytes(), 32U);
  EXPECT_EQ(FrequencySketch(1025).bytes(), 4096U);
}

TEST(FrequencySketch, SameCallsSameEstimates) {
  FrequencySketch one(64, 5);
  FrequencySketch two(64, 5);
  FrequencySketch other_seed(64, 6);
  Prng prng(1);
  bool differs = false;
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t key = prng.Below(500);
    one.Add(key);
    two.Add(key);
    other_seed.Add(key);
    ASSERT_EQ(one.Estimate(key), two.Estimate(key));
    differs = differs || one.Estimate(key) != other_seed.Estimate(key);
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace orbitkv::cache
