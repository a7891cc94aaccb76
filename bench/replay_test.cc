#include "replay.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>

#include "workloads.h"

namespace orbitkv::bench {
namespace {

std::string traces_folder;

class ReplayTest : public testing::Test {
 protected:
  std::string File(const std::string& text) {
    const std::string path =
        testing::TempDir() + "replay_test_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".txt";
    std::ofstream(path) << text;
    return path;
  }
  void TearDown() override {
    std::filesystem::remove(testing::TempDir() + "replay_test_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".txt");
  }
};

TEST_F(ReplayTest, BothFormsSayTheSame) {
  const Trace lines =
      LoadTrace(File("{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [7, 8]}\n"
                     "{\"timestamp\": 1500, \"input_length\": 1500, \"output_length\": 6, \"hash_ids\": [7, 9, 10]}\n"
                     "{\"timestamp\": 1500, \"input_length\": 10, \"output_length\": 7, \"hash_ids\": [8]}\n"));
  const Trace compact = LoadTrace(File("orbitkv-trace 1\n# a comment\n0 1000 5 -1 2\n1500 1500 6 0 2\n0 10 7 -1 1\n"));
  for (const Trace* trace : {&lines, &compact}) {
    ASSERT_EQ(trace->requests.size(), 3U);
    EXPECT_EQ(trace->block_count, 5U);
    EXPECT_EQ(trace->references(), 6U);
    EXPECT_EQ(trace->requests[1].blocks, (std::vector<std::uint32_t>{0, 2, 3}));
    EXPECT_EQ(trace->requests[2].blocks, (std::vector<std::uint32_t>{4}));  // the same id at another prefix
    EXPECT_DOUBLE_EQ(trace->requests[2].at_s, 1.5);
    EXPECT_EQ(trace->requests[2].answer_tokens, 7U);
  }
}

TEST_F(ReplayTest, AWrongLineIsNamed) {
  for (const char* text : {"orbitkv-trace 1\n0 1 1 -1 1\n0 1 1 5 1\n", "orbitkv-trace 1\n0 1 1 -1 1\nx\n"}) {
    try {
      LoadTrace(File(text));
      ADD_FAILURE();
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(":3: "), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(LoadTrace(File("")), std::runtime_error);
  EXPECT_THROW(LoadTrace("/nonexistent"), std::runtime_error);
}

// Two prompts in turn, each of three blocks, in a cache of four.
TEST_F(ReplayTest, CountsHitsUpToTheFirstMiss) {
  TraceBuilder builder("hand");
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t first = i % 2 == 0 ? 1 : 11;
    builder.Add(i, 1536, 10, {first, first + 1, first + 2});
  }
  const Trace trace = builder.Take();
  const ReplayResult lru = Replay(trace, cache::FindPolicy("lru"), 4);
  EXPECT_EQ(lru.references, 12U);
  // The second prompt takes the end of the first; one block of it is left, then one of the second.
  EXPECT_EQ(lru.hits, 2U);
  EXPECT_DOUBLE_EQ(lru.hit_ratio, 2.0 / 12);
  // Deep blocks cost more, and those hits were all at depth 0.
  EXPECT_LT(lru.saved_flops_ratio, lru.hit_ratio);
  EXPECT_GT(lru.saved_flops_ratio, 0.9 * lru.hit_ratio);
  EXPECT_EQ(ReplayBelady(trace, 4).hits, 4U);
  EXPECT_EQ(ReplayBelady(trace, 6).hits, 6U);
  EXPECT_EQ(Replay(trace, cache::FindPolicy("lru"), 6).hits, 6U);
}

TEST_F(ReplayTest, APromptLongerThanTheCacheIsKeptFromItsStart) {
  TraceBuilder builder("long");
  for (int i = 0; i < 2; ++i) builder.Add(i, 5120, 10, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const Trace trace = builder.Take();
  for (const cache::NamedPolicy& policy : cache::Policies()) {
    EXPECT_EQ(Replay(trace, policy.make, 4).hits, 4U) << policy.name;
    EXPECT_EQ(ReplayThroughCache(trace, policy.make, 4).hits, 4U) << policy.name;
  }
}

TEST_F(ReplayTest, TheRecordedTracesAreWhole) {
  const Trace conversation = LoadTrace(traces_folder + "/conversation.trace");
  EXPECT_EQ(conversation.requests.size(), 12'031U);
  EXPECT_EQ(conversation.references(), 288'500U);
  EXPECT_EQ(conversation.block_count, 182'790U);
  const Trace synthetic = LoadTrace(traces_folder + "/synthetic.trace");
  EXPECT_EQ(synthetic.requests.size(), 3993U);
  EXPECT_EQ(synthetic.references(), 121'877U);
  EXPECT_EQ(synthetic.block_count, 43'924U);
}

// The default is better than LRU on a recorded trace, by far where the cache is small, and no policy beats knowledge of
// the future; through the block cache it is about the same.
TEST_F(ReplayTest, TheDefaultBeatsLruOnARecordedTrace) {
  const Trace trace = LoadTrace(traces_folder + "/synthetic.trace");
  const double ours = Replay(trace, cache::FindPolicy("default"), 3000).hit_ratio;
  EXPECT_GT(ours, 1.08 * Replay(trace, cache::FindPolicy("lru"), 3000).hit_ratio);
  EXPECT_LT(ours, ReplayBelady(trace, 3000).hit_ratio);
  EXPECT_NEAR(ReplayThroughCache(trace, cache::FindPolicy("default"), 3000).hit_ratio, ours, 0.01);
}

TEST_F(ReplayTest, TheSameTraceGivesTheSameRatio) {
  const Trace one = Workloads()[3].make();
  const Trace two = Workloads()[3].make();
  ASSERT_EQ(one.references(), two.references());
  EXPECT_EQ(Replay(one, cache::FindPolicy("default"), 1000).hits, Replay(two, cache::FindPolicy("default"), 1000).hits);
}

}  // namespace
}  // namespace orbitkv::bench

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: replay_test TRACES_FOLDER\n");
    return 2;
  }
  orbitkv::bench::traces_folder = argv[1];
  return RUN_ALL_TESTS();
}
