// Write-behind: what is saved, when, how much at once, and what holds the slots meanwhile.
#include <gtest/gtest.h>

#include "orbitkv/service/resaves.h"
#include "orbitkv/service/test_engine.h"
#include "orbitkv/service/test_life.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::service {
namespace {

WorldOptions Options(SavePolicy policy) {
  WorldOptions options;
  options.limits.save_policy = policy;
  return options;
}

class SavesTest : public ::testing::Test {
 protected:
  explicit SavesTest(WorldOptions options = Options(SavePolicy::kAll)) : world_(options) {
    world_.service().SetSource(&source_);
    session_ = world_.Join(world_.Worker("one"));
    digest_ = world_.service().Register(session_, world_.Worker("one"), world_.now()).namespace_digest;
  }
  // What the service wants written now; nothing is reported.
  std::vector<SaveRequest> Wanted() {
    std::vector<SaveRequest> wanted;
    for (bool more = true; more;) {
      more = world_.service().Work(world_.now());
      for (const SaveRequest& request : world_.service().TakeSaves()) wanted.push_back(request);
    }
    return wanted;
  }
  void Report(const std::vector<SaveRequest>& requests, SaveResult result = SaveResult::kSaved) {
    for (const SaveRequest& request : requests) {
      if (result == SaveResult::kSaved) source_.Put(request.key, request.record);
      world_.service().SaveDone(request.id, result, world_.now());
    }
  }
  // Carries out all that is wanted; how many components.
  std::size_t SaveAll() {
    std::size_t saved = 0;
    for (auto wanted = Wanted(); !wanted.empty(); wanted = Wanted()) {
      Report(wanted);
      saved += wanted.size();
    }
    return saved;
  }
  // Restores the chain once; whatever holds it ends.
  void Use(std::span<const state::BlockHash> chain) {
    const QueryOutcome found = world_.Query(session_, ++request_, chain);
    ASSERT_EQ(found.found_blocks, chain.size());
    ASSERT_TRUE(world_.Begin(session_, found.lease, found.found_blocks, {0}, ++grant_).has_value());
    ASSERT_TRUE(world_.ReleaseGrant(session_, grant_).has_value());
  }
  Gauges gauges() { return world_.service().gauges(); }
  const Counters& counters() { return world_.service().counters(); }

  World world_;
  ::orbitkv::testing::RamSource source_;
  SessionId session_;
  state::Digest digest_{};
  std::uint64_t request_ = 0;
  std::uint64_t grant_ = 0;
};

TEST_F(SavesTest, AStoredBlockIsSavedWithItsPlaceInThePrompt) {
  const auto chain = Chain(1, 3);
  ASSERT_EQ(world_.Publish(session_, chain), 3U);
  const std::vector<wire::ReserveEntry> slots = world_.entries();
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const ComponentKey key{{digest_, chain[i], 0, 0}, world_.slot_bytes()};
    EXPECT_EQ(wanted[i].key, key);
    EXPECT_EQ(wanted[i].offset, slots[i].offset);
    EXPECT_EQ(wanted[i].generation, slots[i].generation);
    EXPECT_EQ(wanted[i].record.depth, i);
    EXPECT_EQ(wanted[i].record.checksum, ChecksumOf(chain[i], 0));
    EXPECT_EQ(wanted[i].record.parent, i == 0 ? std::nullopt : std::optional(chain[i - 1]));
    EXPECT_EQ(wanted[i].shape, (ComponentShape{2, 1000}));
  }
  EXPECT_EQ(gauges().saves, 3U);
  EXPECT_EQ(world_.cache().gauges().granted_pins, 3U) << "until they are reported, nobody may change the bytes";
  Report(wanted);
  EXPECT_EQ(world_.cache().gauges().granted_pins, 0U);
  EXPECT_EQ(counters().saves_ok, 3U);
  EXPECT_TRUE(Wanted().empty());
  Use(chain);
  EXPECT_TRUE(Wanted().empty()) << "once";
  world_.service().SaveDone(wanted[0].id, SaveResult::kSaved, world_.now());
  EXPECT_EQ(counters().saves_ok, 3U);
  world_.ExpectQuiet();
}

TEST_F(SavesTest, WhatCouldNotBeSavedIsTriedAgainWhenItIsUsed) {
  const auto chain = Chain(1, 4);
  ASSERT_EQ(world_.Publish(session_, chain), 4U);
  auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 4U);
  Report({wanted.begin(), wanted.begin() + 1}, SaveResult::kNoRoom);
  Report({wanted.begin() + 1, wanted.begin() + 2}, SaveResult::kFailed);
  Report({wanted.begin() + 2, wanted.end()});
  EXPECT_EQ(counters().saves_no_room, 1U);
  EXPECT_EQ(counters().saves_failed, 1U);
  EXPECT_EQ(counters().saves_ok, 2U);
  EXPECT_TRUE(Wanted().empty());
  Use(chain);
  wanted = Wanted();
  ASSERT_EQ(wanted.size(), 2U);
  EXPECT_EQ(wanted[0].key.hash, chain[0]);
  EXPECT_EQ(wanted[1].key.hash, chain[1]);
  Report(wanted);
  world_.ExpectQuiet();
}

TEST_F(SavesTest, WhatTheSourceHasIsNotWrittenAgain) {
  const auto chain = Chain(1, 2);
  source_.Put({{digest_, chain[0], 0, 0}, world_.slot_bytes()}, {.checksum = ChecksumOf(chain[0], 0)});
  source_.Put({{digest_, chain[1], 0, 0}, world_.slot_bytes()}, {.parent = chain[0], .depth = 1, .checksum = 1});
  ASSERT_EQ(world_.Publish(session_, chain), 2U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 1U) << "other bytes are another thing";
  EXPECT_EQ(wanted[0].key.hash, chain[1]);
  EXPECT_EQ(counters().saves_already_there, 1U);
  Report(wanted);
  Use(chain);
  EXPECT_TRUE(Wanted().empty());
  EXPECT_EQ(counters().saves_already_there, 1U);
  world_.ExpectQuiet();
}

TEST_F(SavesTest, HalfInThePoolAndHalfBehindIsOneLeaseAndReadOnceForTwoEngines) {
  const auto chain = Chain(1, 10);
  ASSERT_EQ(world_.Publish(session_, chain), 10U);
  EXPECT_EQ(SaveAll(), 10U);
  for (std::size_t i = chain.size(); i-- > 5;) {
    const auto use = world_.cache().Peek(NamespaceRow(1), chain[i]);
    ASSERT_TRUE(world_.cache().Drop(use.ref, 0, cache::DropReason::kWithdrawn).has_value());
  }
  const SessionId other = world_.Join(world_.Worker("two"));
  wire::QueryView where;
  where.header.mode = wire::QueryMode::kDiscovery;
  where.header.flags = wire::kTellTiers;
  const auto longer = Chain(1, 12);
  where.hashes = longer;
  const QueryOutcome told = World::Take(world_.service().StartQuery(other, where, world_.now()));
  EXPECT_EQ(told.found_blocks, 10U);
  std::vector<wire::Tier> tiers(12);
  std::fill_n(tiers.begin(), 5, wire::Tier::kPool);
  std::fill_n(tiers.begin() + 5, 5, wire::Tier::kBehind);
  EXPECT_EQ(told.tiers, tiers);
  EXPECT_EQ(counters().discovered_blocks, 10U);
  EXPECT_EQ(counters().discovered_blocks_behind, 5U);
  wire::QueryView view;
  view.header.wait_ns = kSecond;
  view.hashes = chain;
  for (const SessionId session : {session_, other}) {
    ASSERT_TRUE(world_.service().StartQuery(session, view, world_.now(), {1, 1})->loading);
  }
  std::vector<LoadRequest> loads;
  while (world_.service().Work(world_.now())) {
  }
  loads = world_.service().TakeLoads();
  EXPECT_EQ(loads.size(), 5U);
  for (const LoadRequest& load : loads) {
    world_.service().LoadDone(load.id, LoadResult::kOk, ChecksumOf(load.key.hash, 0), world_.now());
  }
  while (world_.service().Work(world_.now())) {
  }
  EXPECT_TRUE(world_.service().TakeLoads().empty());
  for (const SessionId session : {session_, other}) {
    const wire::PollRequest request{.operation = 1, .revision = 1};
    std::vector<wire::PollEntry> entries;
    std::vector<std::uint32_t> boundaries;
    ASSERT_TRUE(
        world_.service().PollQueries(session, std::span(&request, 1), world_.now(), entries, boundaries).has_value());
    EXPECT_EQ(entries[0].found, 10U);
    ASSERT_TRUE(world_.Begin(session, LeaseId(entries[0].lease), 10, {0}, 1).has_value());
    ASSERT_EQ(world_.Plan(session, 1), PlanStatus::kArmed);
    EXPECT_EQ(world_.plan().size(), 10U);
  }
  EXPECT_EQ(counters().query_blocks_found, 20U);
  EXPECT_EQ(counters().query_blocks_behind, 10U);
  EXPECT_EQ(SaveAll(), 0U);
  world_.ExpectQuiet();
}

class FewBytesTest : public SavesTest {
 protected:
  static WorldOptions FewBytes() {
    WorldOptions options = Options(SavePolicy::kAll);
    options.limits.save_bytes = 10 * pool::Pool::SlotBytes(2016);
    options.limits.save_queue = 20;
    return options;
  }
  FewBytesTest() : SavesTest(FewBytes()) {}
};

TEST_F(FewBytesTest, BytesInFlightAndBlocksInLineAreBounded) {
  const auto chain = Chain(1, 30);
  ASSERT_EQ(world_.Publish(session_, chain), 30U);
  EXPECT_EQ(counters().saves_dropped, 10U) << "the newest";
  auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 10U);
  EXPECT_EQ(gauges().save_bytes, world_.service().limits().save_bytes);
  EXPECT_EQ(gauges().saves_in_line, 10U);
  EXPECT_FALSE(world_.service().HasWork()) << "until something is reported";
  Report({wanted.begin(), wanted.begin() + 1});
  EXPECT_TRUE(world_.service().HasWork());
  const auto next = Wanted();
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].key.hash, chain[10]);
  Report(next);
  Report({wanted.begin() + 1, wanted.end()});
  EXPECT_EQ(SaveAll(), 9U);
  EXPECT_EQ(counters().saves_ok, 20U);
  EXPECT_EQ(gauges().saves_in_line, 0U);
  world_.ExpectQuiet();
}

class ResavesTest : public SavesTest {
 protected:
  using SavesTest::SavesTest;
  // Whatever is looked at by and by.
  void EndRounds() {
    for (int i = 0; i < 1000 && world_.service().resaving(); ++i) world_.Advance(Resaves::kStepNs);
  }
};

TEST_F(ResavesTest, WhatTheSourceHasLostIsSavedAgain) {
  const auto chain = Chain(1, 3);
  ASSERT_EQ(world_.Publish(session_, chain), 3U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 3U);
  Report(wanted);
  Use(chain);
  world_.Advance(kSecond);
  EXPECT_FALSE(world_.service().resaving()) << "nothing was lost: nothing is looked at";
  source_.Erase(wanted[1].key);
  world_.Advance(1);
  EndRounds();
  const auto again = Wanted();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].key, wanted[1].key);
  EXPECT_EQ(counters().saves_lost, 1U);
  Report(again);
  world_.Advance(2 * kSecond);
  EndRounds();
  EXPECT_TRUE(Wanted().empty());
  EXPECT_EQ(counters().saves_already_there, 0U) << "the others were not put in line";
  // Not used since: it is saved when it is.
  source_.Erase(wanted[1].key);
  world_.Advance(kSecond);
  EndRounds();
  EXPECT_EQ(counters().saves_lost, 2U);
  EXPECT_TRUE(Wanted().empty());
  Use(chain);
  EXPECT_EQ(SaveAll(), 1U);
  // Other bytes under the same key are not what was saved.
  source_.Put(wanted[2].key, {.parent = chain[1], .depth = 2, .checksum = 1});
  source_.Put({{digest_, Chain(2, 1)[0], 0, 0}, world_.slot_bytes()}, {});
  source_.Erase({{digest_, Chain(2, 1)[0], 0, 0}, world_.slot_bytes()});
  world_.Advance(kSecond);
  EndRounds();
  EXPECT_EQ(SaveAll(), 1U);
  world_.ExpectQuiet();
}

TEST_F(ResavesTest, AReportedSaveOrLoadIsTimeToLook) {
  const auto chain = Chain(1, 2);
  ASSERT_EQ(world_.Publish(session_, std::span(chain).first(1)), 1U);
  EXPECT_EQ(SaveAll(), 1U);
  Use(std::span(chain).first(1));
  ASSERT_EQ(world_.Publish(session_, chain), 1U);
  const auto wanted = Wanted();
  source_.Erase({{digest_, chain[0], 0, 0}, world_.slot_bytes()});
  EXPECT_FALSE(world_.service().resaving());
  Report(wanted);
  ASSERT_TRUE(world_.service().resaving());
  EXPECT_LE(*world_.service().NextDeadline(), world_.now());
  EndRounds();
  EXPECT_EQ(SaveAll(), 1U);
  world_.ExpectQuiet();
}

TEST_F(ResavesTest, ARoundTakesShortStepsAndRests) {
  const auto chain = Chain(1, 400);
  ASSERT_EQ(world_.Publish(session_, chain), 400U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 400U);
  Report(wanted);
  Use(chain);
  for (const SaveRequest& request : wanted) source_.Erase(request.key);
  world_.Advance(1);
  EXPECT_LE(counters().saves_lost, Resaves::kSlotsPerStep);
  const std::uint64_t began = world_.now();
  EndRounds();
  EXPECT_EQ(counters().saves_lost, 400U);
  EXPECT_EQ(SaveAll(), 400U);
  // The next one a while after the last began, however much is lost.
  Use(chain);
  source_.Erase(wanted[7].key);
  world_.Advance(1);
  ASSERT_TRUE(world_.service().resaving());
  EXPECT_EQ(*world_.service().NextDeadline(), began + Resaves::kRoundNs);
  EXPECT_TRUE(Wanted().empty());
  world_.Advance(Resaves::kRoundNs);
  EndRounds();
  EXPECT_EQ(SaveAll(), 1U);
  world_.ExpectQuiet();
}

class ShortLineTest : public ResavesTest {
 protected:
  static WorldOptions ShortLine() {
    WorldOptions options = Options(SavePolicy::kAll);
    options.limits.save_queue = 10;
    return options;
  }
  ShortLineTest() : ResavesTest(ShortLine()) {}
};

TEST_F(ShortLineTest, ARoundLeavesRoomInTheLine) {
  std::vector<ComponentKey> keys;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto block = Chain(seed, 1);
    ASSERT_EQ(world_.Publish(session_, block), 1U);
    EXPECT_EQ(SaveAll(), 1U);
    Use(block);
    keys.push_back({{digest_, block[0], 0, 0}, world_.slot_bytes()});
  }
  for (const ComponentKey& key : keys) source_.Erase(key);
  world_.Advance(1);
  EXPECT_EQ(gauges().saves_in_line, 5U);
  std::size_t saved = 0;
  for (int i = 0; i < 1000 && world_.service().resaving(); ++i) {
    world_.Advance(Resaves::kStepNs);
    saved += SaveAll();
  }
  EXPECT_EQ(saved, 20U);
  EXPECT_EQ(counters().saves_dropped, 0U);
  world_.ExpectQuiet();
}

// Nobody remembers over a restart what was saved of a pool that survives it.
TEST(ResavesAfterARestart, WhatWasTakenOverIsPutInLineAndSavedWhereItIsNotYet) {
  CoreStateConfig config = Config();
  config.limits.save_policy = SavePolicy::kAll;
  const auto tables = FreshTables(config);
  ::orbitkv::testing::RamSource source;
  const auto chain = Chain(1, 6);
  const auto wanted = [](Service& service, std::uint64_t& now_ns) {
    std::vector<SaveRequest> all;
    for (int i = 0; i < 1000 && (service.resaving() || service.HasWork()); ++i) {
      service.Tick(now_ns += Resaves::kStepNs);
      service.Work(now_ns);
      for (const SaveRequest& request : service.TakeSaves()) all.push_back(request);
    }
    return all;
  };
  {
    OneLife life(*tables, config);
    life.service().SetSource(&source);
    EXPECT_FALSE(life.service().resaving()) << "nothing was taken over";
    const SessionId session = life.Join(0);
    ASSERT_EQ(life.Publish(session, chain), 6U);
    const auto first = wanted(life.service(), life.now_ns);
    ASSERT_EQ(first.size(), 6U);
    for (std::size_t i = 0; i < 4; ++i) source.Put(first[i].key, first[i].record);
    // The Manager dies before the last two are written.
  }
  OneLife life(*tables, config);
  life.service().SetSource(&source);
  const auto again = wanted(life.service(), life.now_ns);
  EXPECT_EQ(life.service().counters().saves_already_there, 4U);
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].key.hash, chain[4]);
  EXPECT_EQ(again[1].key.hash, chain[5]);
  for (const SaveRequest& request : again) life.service().SaveDone(request.id, SaveResult::kSaved, life.now_ns);
  EXPECT_TRUE(wanted(life.service(), life.now_ns).empty()) << "once";
}

class SmallPoolTest : public SavesTest {
 protected:
  static WorldOptions SmallPool() {
    WorldOptions options = Options(SavePolicy::kAll);
    options.pool_bytes = 2 * kMiB;
    options.max_blocks = 64;
    options.limits.reserved_percent_per_session = 100;
    return options;
  }
  SmallPoolTest() : SavesTest(SmallPool()) {}
};

TEST_F(SmallPoolTest, EvictionTakesNeitherWhatIsBeingSavedNorWaits) {
  const auto old = Chain(1, 1);
  ASSERT_EQ(world_.Publish(session_, old), 1U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 1U);
  // As many as the index holds, one chain each, so that all of them could go.
  for (std::uint64_t seed = 2; seed < 200; ++seed) ASSERT_EQ(world_.Publish(session_, Chain(seed, 1)), 1U);
  EXPECT_GT(world_.cache().counters().evictions, 100U);
  EXPECT_EQ(world_.Found(session_, 1, old), 1U);
  world_.EndAllSessions();
  Report(wanted);
  session_ = world_.Join(world_.Worker("one"));
  for (std::uint64_t seed = 200; seed < 300; ++seed) ASSERT_EQ(world_.Publish(session_, Chain(seed, 1)), 1U);
  EXPECT_EQ(world_.Found(session_, 1, old), 0U);
  EXPECT_GT(world_.cache().counters().evicted_unsaved, 0U) << "all of them waited: room was made all the same";
  EXPECT_GT(SaveAll(), 0U);
  world_.ExpectQuiet();
}

class ReuseTest : public SavesTest {
 protected:
  ReuseTest() : SavesTest(Options(SavePolicy::kReuse)) {}
};

TEST_F(ReuseTest, OnlyBlocksThatAreUsedAgainAreSaved) {
  const auto used = Chain(1, 4);
  const auto lost = Chain(2, 3);
  ASSERT_EQ(world_.Publish(session_, used), 4U);
  ASSERT_EQ(world_.Publish(session_, lost), 3U);
  EXPECT_TRUE(Wanted().empty());
  ASSERT_EQ(world_.Found(session_, 1, used), 4U);
  EXPECT_TRUE(Wanted().empty()) << "a look-up alone uses nothing";
  Use(std::span(used).first(2));
  auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 2U);
  EXPECT_EQ(wanted[1].key.hash, used[1]);
  Report(wanted);
  Use(used);
  wanted = Wanted();
  ASSERT_EQ(wanted.size(), 2U);
  EXPECT_EQ(wanted[0].key.hash, used[2]);
  Report(wanted);
  // Stored anew after it went.
  for (std::size_t i = lost.size(); i-- > 0;) {
    const auto use = world_.cache().Peek(NamespaceRow(1), lost[i]);
    ASSERT_TRUE(world_.cache().Drop(use.ref, 0, cache::DropReason::kWithdrawn).has_value());
  }
  ASSERT_EQ(world_.Publish(session_, lost), 3U);
  EXPECT_EQ(SaveAll(), 3U);
  world_.ExpectQuiet();
}

class ShardsTest : public SavesTest {};

TEST_F(ShardsTest, ABlockIsSavedWhenAllItsShardsAreThere) {
  const SessionId zero = world_.Join(world_.Worker("two", 0, 2, 0, 2));
  const SessionId one = world_.Join(world_.Worker("two", 1, 2, 1, 2));
  const auto chain = Chain(7, 2);
  ASSERT_EQ(world_.Publish(zero, chain, 0), 2U);
  EXPECT_TRUE(Wanted().empty());
  ASSERT_EQ(world_.Publish(one, chain, 1), 2U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 4U);
  EXPECT_EQ(wanted[0].key.hash, chain[0]);
  EXPECT_EQ(wanted[1].key.hash, chain[0]);
  EXPECT_NE(wanted[0].key.shard, wanted[1].key.shard);
  EXPECT_EQ(wanted[0].record.checksum, ChecksumOf(chain[0], wanted[0].key.shard));
  Report(wanted);
  world_.ExpectQuiet();
}

// Without all its shards nobody can use a group, from the pool or from behind it: what comes of it later is saved anew.
TEST_F(ShardsTest, WhatLacksAShardIsNotSavedAndGoesFirst) {
  const SessionId zero = world_.Join(world_.Worker("two", 0, 2, 0, 2));
  const SessionId one = world_.Join(world_.Worker("two", 1, 2, 1, 2));
  const auto chain = Chain(7, 2);
  ASSERT_EQ(world_.Publish(zero, chain, 0), 2U);
  ASSERT_EQ(world_.Publish(one, std::span(chain).first(1), 1), 1U);
  world_.End(one);
  world_.Advance(11 * kSecond);
  EXPECT_EQ(world_.cache().counters().incomplete, 1U) << "among the first victims";
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 2U);
  for (const SaveRequest& request : wanted) EXPECT_EQ(request.key.hash, chain[0]);
  Report(wanted);
  // A shard that comes all the same completes it.
  const SessionId late = world_.Join(world_.Worker("two", 1, 2, 1, 2));
  ASSERT_EQ(world_.Publish(late, chain, 1), 1U);
  EXPECT_EQ(SaveAll(), 2U);
  world_.ExpectQuiet();
}

TEST_F(SavesTest, ABlockThatIsDroppedWhileItIsSavedIsFreedAfterTheReport) {
  const auto chain = Chain(1, 1);
  ASSERT_EQ(world_.Publish(session_, chain), 1U);
  const auto wanted = Wanted();
  ASSERT_EQ(wanted.size(), 1U);
  const auto use = world_.cache().Peek(NamespaceRow(1), chain[0]);
  ASSERT_TRUE(world_.cache().Drop(use.ref, 0, cache::DropReason::kChecksum).has_value());
  EXPECT_EQ(world_.cache().gauges().draining, 1U);
  Report(wanted);
  EXPECT_EQ(world_.cache().gauges().draining, 0U);
  // Another write of the same key is another component.
  ASSERT_EQ(world_.Publish(session_, chain), 1U);
  source_.Erase(wanted[0].key);
  EXPECT_EQ(SaveAll(), 1U);
  world_.ExpectQuiet();
}

}  // namespace
}  // namespace orbitkv::service
