// A whole Manager in this process, spoken to over its real socket.
#include "orbitkv/manager/manager.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/testing/ram_backing.h"
#include "orbitkv/testing/raw_client.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::manager {
namespace {

using orbitkv::testing::Chain;
using orbitkv::testing::RawClient;
using orbitkv::testing::RawClientOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPatienceNs = 30'000'000'000;

class ManagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::SetLevel(log::Level::kError);
    directory_ = std::filesystem::temp_directory_path() / ("orbitkv_manager_" + std::to_string(getpid()));
    config_.socket = directory_ / "run" / "m.sock";
    config_.pool_bytes = 8 * kMiB;
    config_.keep_free_bytes = 0;
    config_.lock_wait_ms = 2000;
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override {
    if (manager_) manager_->Stop();
    std::filesystem::remove_all(directory_);
  }

  void StartManager(std::unique_ptr<Backing> backing = nullptr) {
    auto started = Manager::Start(config_, std::move(backing));
    ASSERT_TRUE(started) << started.error().text;
    manager_ = std::move(*started);
  }
  RawClientOptions Options(const std::string& instance = "engine") const {
    RawClientOptions options;
    options.socket = config_.socket;
    options.instance = instance;
    return options;
  }
  std::unique_ptr<RawClient> Open(const RawClientOptions& options) {
    auto client = RawClient::Open(options);
    EXPECT_TRUE(client) << ToString(client.error());
    return client ? std::move(*client) : nullptr;
  }
  double Figure(RawClient& client, const std::string& name) {
    const auto figures = client.Figures();
    EXPECT_TRUE(figures) << ToString(figures.error());
    if (!figures || !figures->contains(name)) return -1;
    return figures->at(name);
  }
  // Asks until the figure has this value: each question is a round trip through the dispatcher.
  bool Becomes(RawClient& client, const std::string& name, double value) {
    const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
    while (os::MonotonicNs() < deadline) {
      if (Figure(client, name) == value) return true;
    }
    return false;
  }

  std::filesystem::path directory_;
  Config config_;
  std::unique_ptr<Manager> manager_;
};

TEST_F(ManagerTest, PublishesAndRestoresBetweenTwoInstances) {
  StartManager();
  auto one = Open(Options("one"));
  auto two = Open(Options("two"));
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(one->Ping());
  const auto hashes = Chain(1, 20);
  EXPECT_EQ(one->Publish(hashes).value(), 20U);
  EXPECT_EQ(one->Publish(hashes).value(), 0U);
  EXPECT_EQ(two->Restore(1, hashes, GrantId(5)).value(), 20U);
  EXPECT_EQ(two->Restore(2, Chain(2, 3), GrantId(6)).value(), 0U);
  EXPECT_EQ(Figure(*one, "orbitkv_blocks_resident"), 20);
  EXPECT_EQ(Figure(*one, "orbitkv_restored_blocks_total"), 20);
  EXPECT_EQ(Figure(*one, "orbitkv_blocks_already_here_total"), 20);
  EXPECT_EQ(Figure(*one, "orbitkv_grants"), 0);
  EXPECT_EQ(Figure(*one, "orbitkv_reserved_slots"), 0);
}

TEST_F(ManagerTest, AClientOfThePreviousVersionWorks) {
  StartManager();
  auto options = Options("old");
  options.abi_max = 1;
  auto old = Open(options);
  auto now = Open(Options("now"));
  ASSERT_TRUE(old && now);
  EXPECT_EQ(old->session().abi(), 1);
  EXPECT_EQ(now->session().abi(), wire::kAbiMax);
  const auto hashes = Chain(1, 20);
  EXPECT_EQ(old->Publish(hashes).value(), 20U);
  EXPECT_EQ(old->Restore(1, hashes, GrantId(5)).value(), 20U);
  EXPECT_EQ(now->Restore(1, hashes, GrantId(5)).value(), 20U);
  // Its look-up scalars mean nothing, and the later commands do not exist for it.
  const auto args = wire::EncodeQueryV1({.request_key_lo = 9}, hashes);
  const auto answer = old->Call(wire::Command::kQuerySubmit, ~0ULL, ~0ULL, args).value();
  EXPECT_EQ(answer.status, wire::AnswerStatus::kOk);
  EXPECT_EQ(answer.scalar1, 20U);
  const auto poll = wire::EncodePoll(std::vector<wire::PollRequest>{{.operation = 1}});
  EXPECT_EQ(old->Call(wire::Command::kQueryPoll, 0, 0, poll).value().status, wire::AnswerStatus::kInvalid);
  EXPECT_EQ(now->Call(wire::Command::kQueryPoll, 0, 0, poll).value().status, wire::AnswerStatus::kOk);
  EXPECT_EQ(now->Call(wire::Command::kQuerySubmit, 1, ~0ULL, args).value().status, wire::AnswerStatus::kInvalid);
}

TEST_F(ManagerTest, ASelectedReadIsGrantedWholeOnly) {
  StartManager();
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto hashes = Chain(1, 8);
  ASSERT_EQ(client->Publish(hashes).value(), 8U);
  const std::vector<wire::HashView> views = {{.first = 1, .count = 2}, {.first = 6, .count = 1}};
  const auto args = wire::EncodeQuery({.request_key_lo = 1, .mode = wire::QueryMode::kSelected}, hashes, views);
  const auto answer = client->Call(wire::Command::kQuerySubmit, 0, 0, args).value();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.scalar1, 3U);
  const auto boundaries = wire::DecodeBoundaries(answer.payload.bytes()).value();
  ASSERT_EQ(boundaries.size(), 1U);
  EXPECT_EQ(boundaries[0], 3U);
  const std::uint32_t ranks[] = {0};
  EXPECT_EQ(client->Begin(LeaseId(answer.scalar0), GrantId(1), 2, ranks).error().code, Code::kRefused);
  ASSERT_TRUE(client->Begin(LeaseId(answer.scalar0), GrantId(2), 3, ranks));
  const auto plan = client->Plan(GrantId(2)).value().second;
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_TRUE(client->Right(plan[0], hashes[1]));
  EXPECT_TRUE(client->Right(plan[2], hashes[6]));
  EXPECT_EQ(plan[2].block, 2U);
}

// What one Manager had, the source of the next one has.
class BackedManagerTest : public ManagerTest {
 protected:
  void StartBacked(std::span<const state::BlockHash> hashes, std::uint64_t delay_ns) {
    auto backing = std::make_unique<orbitkv::testing::RamBacking>();
    StartManager();
    auto client = Open(Options());
    ASSERT_TRUE(client);
    ASSERT_EQ(client->Publish(hashes).value(), hashes.size());
    const auto query = client->Query(1, hashes).value();
    const std::uint32_t ranks[] = {0};
    ASSERT_TRUE(client->Begin(query.lease, GrantId(1), query.found, ranks));
    const auto plan = client->Plan(GrantId(1)).value().second;
    ASSERT_EQ(plan.size(), hashes.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const auto bytes = client->pool().bytes().subspan(plan[i].offset, plan[i].slot_bytes);
      service::SourceRecord record{.depth = static_cast<std::uint32_t>(i), .checksum = plan[i].slot_checksum};
      if (i > 0) record.parent = hashes[i - 1];
      backing->Fill([&](orbitkv::testing::RamSource& source) {
        source.Put({{client->namespace_digest(), hashes[i], 0, 0}, plan[i].slot_bytes}, record,
                   {bytes.begin(), bytes.end()});
      });
    }
    backing->Fill([delay_ns](orbitkv::testing::RamSource& source) {
      source.set_delay([delay_ns](const service::ComponentKey&) { return delay_ns; });
    });
    client.reset();
    manager_->Stop();
    manager_.reset();
    StartManager(std::move(backing));
  }
  static std::vector<std::byte> Args(std::uint64_t request, std::span<const state::BlockHash> hashes,
                                     wire::QueryMode mode = wire::QueryMode::kLeasedRead) {
    wire::QueryHeader header{.request_key_hi = 7, .request_key_lo = request, .wait_ns = kPatienceNs, .mode = mode};
    if (mode == wire::QueryMode::kPrepare) header.consumer_key_lo = 3;
    return wire::EncodeQuery(header, hashes);
  }
};

TEST_F(BackedManagerTest, ATicketIsLoadedSignalledPolledAndRestored) {
  const auto hashes = Chain(1, 40);
  StartBacked(hashes, 1'000'000);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const std::uint32_t before = client->session().completions();
  const auto submitted = client->Call(wire::Command::kQuerySubmit, 1, 1, Args(1, hashes)).value();
  ASSERT_EQ(submitted.status, wire::AnswerStatus::kNotYet);
  const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
  while (client->session().completions() == before && os::MonotonicNs() < deadline) std::this_thread::yield();
  ASSERT_NE(client->session().completions(), before);
  const auto poll = wire::EncodePoll(std::vector<wire::PollRequest>{{.operation = 1, .revision = 1}});
  const auto polled = client->Call(wire::Command::kQueryPoll, 0, 0, poll).value();
  const auto view = wire::DecodePollAnswer(polled.payload.bytes()).value();
  ASSERT_EQ(view.entries.size(), 1U);
  EXPECT_EQ(view.entries[0].state, static_cast<std::uint32_t>(wire::TicketState::kReady));
  ASSERT_EQ(view.entries[0].found, 40U);
  const std::uint32_t ranks[] = {0};
  ASSERT_TRUE(client->Begin(LeaseId(view.entries[0].lease), GrantId(9), 40, ranks));
  const auto plan = client->Plan(GrantId(9)).value().second;
  ASSERT_EQ(plan.size(), 40U);
  for (std::size_t i = 0; i < plan.size(); ++i) EXPECT_TRUE(client->Right(plan[i], hashes[i])) << i;
  EXPECT_EQ(Figure(*client, "orbitkv_loads_ok_total"), 40);
  EXPECT_EQ(Figure(*client, "orbitkv_tickets"), 0);
}

TEST_F(BackedManagerTest, ClaimCancelAndDisconnect) {
  const auto hashes = Chain(1, 8);
  StartBacked(hashes, 1'000'000);
  auto client = Open(Options());
  auto watcher = Open(Options("watcher"));
  ASSERT_TRUE(client && watcher);
  const auto prepare = Args(1, hashes, wire::QueryMode::kPrepare);
  ASSERT_EQ(client->Call(wire::Command::kQuerySubmit, 1, 1, prepare).value().status, wire::AnswerStatus::kNotYet);
  const auto claim = wire::EncodeClaim({.consumer_key_lo = 3, .revision = 1});
  const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
  auto claimed = client->Call(wire::Command::kQueryClaim, 0, 0, claim).value();
  while (claimed.status == wire::AnswerStatus::kNotYet && os::MonotonicNs() < deadline) {
    claimed = client->Call(wire::Command::kQueryClaim, 0, 0, claim).value();
  }
  ASSERT_EQ(claimed.status, wire::AnswerStatus::kOk);
  EXPECT_EQ(claimed.scalar1, 8U);
  EXPECT_EQ(client->Call(wire::Command::kQueryClaim, 0, 0, claim).value().status, wire::AnswerStatus::kBusy);
  ASSERT_EQ(client->Call(wire::Command::kQuerySubmit, 2, 1, prepare).value().status, wire::AnswerStatus::kNotYet);
  EXPECT_EQ(client->Call(wire::Command::kQueryCancel, 2, 9).value().status, wire::AnswerStatus::kStale);
  EXPECT_EQ(client->Call(wire::Command::kQueryCancel, 2, 1).value().status, wire::AnswerStatus::kOk);
  EXPECT_EQ(client->Call(wire::Command::kQueryCancel, 2, 1).value().status, wire::AnswerStatus::kNotFound);
  ASSERT_EQ(client->Call(wire::Command::kQuerySubmit, 3, 1, prepare).value().status, wire::AnswerStatus::kNotYet);
  EXPECT_EQ(Figure(*watcher, "orbitkv_tickets"), 1);
  client.reset();
  EXPECT_TRUE(Becomes(*watcher, "orbitkv_tickets", 0));
  EXPECT_EQ(Figure(*watcher, "orbitkv_leases"), 0);
}

TEST_F(BackedManagerTest, WhatLeavesThePoolWasSavedAndComesBack) {
  config_.pool_bytes = 2 * kMiB;    // three blocks
  config_.eviction_policy = "lru";  // so that it is known which are left
  config_.publish_budget_percent = 100;
  config_.lease_budget_percent = 100;
  config_.load_budget_percent = 100;
  StartManager(std::make_unique<orbitkv::testing::RamBacking>());
  auto options = Options();
  options.page_bytes = 256U << 10U;
  auto client = Open(options);
  ASSERT_TRUE(client);
  for (std::uint32_t chain = 1; chain <= 6; ++chain) {
    ASSERT_EQ(client->Publish(Chain(chain, 2)).value(), 2U) << chain;
    ASSERT_TRUE(Becomes(*client, "orbitkv_saves_ok_total", 2.0 * chain));
  }
  EXPECT_EQ(Figure(*client, "orbitkv_cache_evicted_unsaved_total"), 0);
  EXPECT_EQ(Figure(*client, "orbitkv_saves"), 0);
  const auto first = Chain(1, 2);
  ASSERT_EQ(client->Query(1, first).value().found, 0U);
  const wire::QueryHeader header{.request_key_lo = 2, .mode = wire::QueryMode::kDiscovery, .flags = wire::kTellTiers};
  const auto discovered = client->Call(wire::Command::kQuerySubmit, 0, 0, wire::EncodeQuery(header, first)).value();
  ASSERT_TRUE(discovered.ok());
  EXPECT_EQ(discovered.scalar1, 2U);
  const auto where = wire::DecodeDiscovery(discovered.payload.bytes()).value();
  ASSERT_EQ(where.tiers.size(), 2U);
  EXPECT_EQ(where.tiers[0], wire::Tier::kBehind);
  EXPECT_EQ(where.tiers[1], wire::Tier::kBehind);
  ASSERT_EQ(client->Call(wire::Command::kQuerySubmit, 1, 1, Args(3, first)).value().status,
            wire::AnswerStatus::kNotYet);
  ASSERT_TRUE(Becomes(*client, "orbitkv_tickets_ready", 1));
  const auto poll = wire::EncodePoll(std::vector<wire::PollRequest>{{.operation = 1, .revision = 1}});
  const auto polled = client->Call(wire::Command::kQueryPoll, 0, 0, poll).value();
  const auto view = wire::DecodePollAnswer(polled.payload.bytes()).value();
  ASSERT_EQ(view.entries[0].found, 2U);
  const std::uint32_t ranks[] = {0};
  ASSERT_TRUE(client->Begin(LeaseId(view.entries[0].lease), GrantId(9), 2, ranks));
  const auto plan = client->Plan(GrantId(9)).value().second;
  ASSERT_EQ(plan.size(), 2U);
  for (std::size_t i = 0; i < plan.size(); ++i) EXPECT_TRUE(client->Right(plan[i], first[i])) << i;
  ASSERT_TRUE(client->End(GrantId(9), wire::EndResult::kOk));
  EXPECT_EQ(Figure(*client, "orbitkv_saves_ok_total"), 12) << "what was loaded is not saved again";
}

TEST_F(ManagerTest, AnotherModelSharesNothing) {
  StartManager();
  auto one = Open(Options("one"));
  auto options = Options("two");
  options.computation = std::byte{9};
  auto two = Open(options);
  ASSERT_TRUE(one && two);
  ASSERT_EQ(one->Publish(Chain(1, 4)).value(), 4U);
  EXPECT_EQ(two->Query(1, Chain(1, 4)).value().found, 0U);
}

TEST_F(ManagerTest, LargeRequestsTakeSeveralTurnsWhileOthersAreServed) {
  config_.pool_bytes = 64 * kMiB;
  config_.max_slots = 4096;
  config_.publish_budget_percent = 100;
  config_.lease_budget_percent = 100;
  StartManager();
  auto options = Options();
  options.layers = 1;
  options.page_bytes = 1024;
  auto client = Open(options);
  auto other = Open(Options("other"));
  ASSERT_TRUE(client && other);
  const auto hashes = Chain(1, 3000);
  EXPECT_EQ(client->Publish(std::span(hashes).first(1500)).value(), 1500U);
  EXPECT_TRUE(other->Ping());
  EXPECT_EQ(client->Restore(1, hashes, GrantId(1)).value(), 1500U);
}

TEST_F(ManagerTest, EverythingOfAClosedSessionEnds) {
  StartManager();
  auto watcher = Open(Options("watcher"));
  auto client = Open(Options());
  ASSERT_TRUE(watcher && client);
  ASSERT_EQ(client->Publish(Chain(1, 4)).value(), 4U);
  ASSERT_EQ(client->Query(1, Chain(1, 4)).value().found, 4U);
  EXPECT_EQ(Figure(*watcher, "orbitkv_sessions"), 2);
  EXPECT_EQ(Figure(*watcher, "orbitkv_leases"), 1);
  client.reset();
  EXPECT_TRUE(Becomes(*watcher, "orbitkv_sessions", 1));
  EXPECT_EQ(Figure(*watcher, "orbitkv_leases"), 0);
  EXPECT_EQ(Figure(*watcher, "orbitkv_blocks_resident"), 4);
}

TEST_F(ManagerTest, AHungUpSessionThatMayStillCopyKeepsItsPinsUntilItReportsDrained) {
  StartManager();
  auto watcher = Open(Options("watcher"));
  auto client = Open(Options());
  ASSERT_TRUE(watcher && client);
  const auto hashes = Chain(1, 4);
  ASSERT_EQ(client->Publish(hashes).value(), 4U);
  const auto query = client->Query(1, hashes).value();
  const std::uint32_t ranks[] = {0};
  ASSERT_TRUE(client->Begin(query.lease, GrantId(1), 4, ranks));
  ASSERT_EQ(client->Plan(GrantId(1)).value().second.size(), 4U);
  ASSERT_TRUE(client->Reserve(Chain(2, 2)));
  const std::uint64_t token = client->session().token();
  // The connection ends, this process lives.
  client.reset();
  EXPECT_TRUE(Becomes(*watcher, "orbitkv_sessions_detached", 1));
  EXPECT_EQ(Figure(*watcher, "orbitkv_armed_ranks"), 1);
  EXPECT_EQ(Figure(*watcher, "orbitkv_reserved_slots"), 2);
  auto again = Open(Options());
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->ReportDrained(token, Incarnation{1, 2}));
  EXPECT_EQ(Figure(*watcher, "orbitkv_armed_ranks"), 1) << "the token of another Manager life is nobody's here";
  EXPECT_TRUE(again->ReportDrained(token, manager_->incarnation()));
  EXPECT_EQ(Figure(*watcher, "orbitkv_armed_ranks"), 0);
  EXPECT_EQ(Figure(*watcher, "orbitkv_reserved_slots"), 0);
  EXPECT_EQ(Figure(*watcher, "orbitkv_sessions"), 2);
}

TEST_F(ManagerTest, AWrongByteIsAMissAndCounted) {
  StartManager();
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto hashes = Chain(1, 3);
  ASSERT_EQ(client->Publish(hashes).value(), 3U);
  const auto query = client->Query(1, hashes).value();
  const std::uint32_t ranks[] = {0};
  ASSERT_TRUE(client->Begin(query.lease, GrantId(1), 3, ranks));
  const auto plan = client->Plan(GrantId(1)).value();
  ASSERT_EQ(plan.second.size(), 3U);
  client->pool().data()[plan.second[1].offset + 100] ^= std::byte{1};
  EXPECT_TRUE(client->Right(plan.second[0], hashes[0]));
  EXPECT_FALSE(client->Right(plan.second[1], hashes[1]));
  const std::uint32_t wrong[] = {1};
  ASSERT_TRUE(client->End(GrantId(1), wire::EndResult::kMismatch, wrong));
  EXPECT_EQ(client->Query(2, hashes).value().found, 1U) << "a suspect block is not offered";
  EXPECT_TRUE(Becomes(*client, "orbitkv_verified_different_total", 1));
  EXPECT_EQ(Figure(*client, "orbitkv_blocks_resident"), 2);
  EXPECT_EQ(client->Publish(hashes).value(), 1U);
  EXPECT_EQ(client->Restore(3, hashes, GrantId(2)).value(), 3U);
}

TEST_F(ManagerTest, AFalseAlarmLeavesTheBlockAndIsCountedAgainstTheSession) {
  StartManager();
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto hashes = Chain(1, 2);
  ASSERT_EQ(client->Publish(hashes).value(), 2U);
  const auto query = client->Query(1, hashes).value();
  const std::uint32_t ranks[] = {0};
  ASSERT_TRUE(client->Begin(query.lease, GrantId(1), 2, ranks));
  ASSERT_EQ(client->Plan(GrantId(1)).value().second.size(), 2U);
  const std::uint32_t alarmed[] = {0};
  ASSERT_TRUE(client->End(GrantId(1), wire::EndResult::kMismatch, alarmed));
  EXPECT_TRUE(Becomes(*client, "orbitkv_verified_equal_total", 1));
  EXPECT_EQ(client->Query(2, hashes).value().found, 2U);
  EXPECT_TRUE(Becomes(
      *client,
      "orbitkv_session_false_alarms_total{raw client," + std::to_string(client->session().epoch().value()) + "}", 1));
}

TEST_F(ManagerTest, MalformedCommandsAndFramesAreAnsweredAndKeepTheSession) {
  StartManager();
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const std::vector<std::byte> garbage(40, std::byte{0xff});
  for (const wire::Command command :
       {wire::Command::kQuerySubmit, wire::Command::kPublishReserve, wire::Command::kPublishCommit,
        wire::Command::kRestoreBegin, wire::Command::kRestoreEnd}) {
    EXPECT_EQ(client->Call(command, 0, 0, garbage).value().status, wire::AnswerStatus::kInvalid)
        << wire::CommandName(command);
  }
  EXPECT_EQ(client->Call(wire::Command::kRestorePlan, 1, ~0ULL).value().status, wire::AnswerStatus::kInvalid);
  EXPECT_EQ(client->Call(wire::Command::kRelease, 3, 1).value().status, wire::AnswerStatus::kInvalid);
  EXPECT_EQ(client->Plan(GrantId(77)).value().first, wire::AnswerStatus::kNotYet);
  const auto reply = client->session().Exchange(wire::FRAME_REGISTER, garbage, os::DeadlineAfter(kPatienceNs));
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->refused);
  const auto unknown = client->session().Exchange(99, {}, os::DeadlineAfter(kPatienceNs));
  ASSERT_TRUE(unknown);
  EXPECT_TRUE(unknown->refused);
  EXPECT_TRUE(client->Ping());
}

TEST_F(ManagerTest, ASecondLayoutOfOneSessionIsRefused) {
  StartManager();
  auto client = Open(Options());
  auto options = Options();
  options.page_bytes = 8192;
  ASSERT_TRUE(client);
  EXPECT_TRUE(client->Register());
  const auto other = RawClient::Open(options);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kRefused);
}

TEST_F(ManagerTest, AnAdminSessionAsksForHealthAndReportsWhatHasDrained) {
  StartManager();
  auto options = Options();
  options.purpose = wire::Purpose::kAdmin;
  auto admin = RawClient::Connect(options);
  ASSERT_TRUE(admin);
  EXPECT_EQ((*admin)->Register().error().code, Code::kRefused);
  EXPECT_EQ((*admin)->Query(1, Chain(1, 1)).error().code, Code::kRefused);
  EXPECT_EQ((*admin)->Unregister().error().code, Code::kRefused);
  EXPECT_TRUE((*admin)->ReportDrained(1, manager_->incarnation())) << "of nobody";
  EXPECT_EQ(Figure(**admin, "orbitkv_sessions"), 0);
  EXPECT_EQ(Figure(**admin, "orbitkv_pool_bytes"), 8 * kMiB);
}

TEST_F(ManagerTest, ReachesItsPoolSizeAndSaysSo) {
  config_.pool_bytes = 160 * kMiB;
  StartManager();
  EXPECT_EQ(manager_->pool_bytes(), 160 * kMiB);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  EXPECT_TRUE(Becomes(*client, "orbitkv_pool_reserved_bytes", 160 * kMiB));
}

TEST_F(ManagerTest, APoolOfOneSlabEvictsAndGoesOn) {
  config_.pool_bytes = 2 * kMiB;
  config_.eviction_policy = "arc";
  config_.publish_budget_percent = 100;
  config_.lease_budget_percent = 100;
  StartManager();
  auto options = Options();
  options.page_bytes = 256U << 10U;
  auto client = Open(options);
  ASSERT_TRUE(client);
  for (std::uint32_t chain = 1; chain <= 20; ++chain) {
    EXPECT_EQ(client->Publish(Chain(chain, 2)).value(), 2U) << chain;
    EXPECT_EQ(client->Restore(chain, Chain(chain, 2), GrantId(chain)).value(), 2U) << chain;
    ASSERT_TRUE(client->Query(chain, Chain(1000 + chain, 1)));
  }
  EXPECT_GT(Figure(*client, "orbitkv_cache_evictions_total"), 30);
  EXPECT_EQ(Figure(*client, "orbitkv_eviction_policy{arc}"), 1);
  EXPECT_LE(Figure(*client, "orbitkv_pool_used_bytes"), 2 * kMiB);
}

TEST_F(ManagerTest, ASecondManagerIsRefusedNamingTheFirst) {
  StartManager();
  const auto second = Manager::Start(config_);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().text, AllOf(HasSubstr("pid " + std::to_string(getpid())), HasSubstr(config_.socket)));
  auto client = Open(Options());
  EXPECT_TRUE(client && client->Ping());
}

TEST_F(ManagerTest, StopRemovesTheSocketAndANewOneStarts) {
  StartManager();
  const Incarnation first = manager_->incarnation();
  auto client = Open(Options());
  ASSERT_TRUE(client);
  manager_->Stop();
  manager_->Stop();
  EXPECT_FALSE(std::filesystem::exists(config_.socket));
  EXPECT_TRUE(std::filesystem::exists(config_.socket + ".lock"));
  manager_.reset();
  StartManager();
  EXPECT_NE(manager_->incarnation(), first);
  auto again = Open(Options());
  EXPECT_TRUE(again && again->Ping());
}

TEST_F(ManagerTest, StartSaysWhatIsWrong) {
  config_.pool_bytes = std::uint64_t{60} << 40;
  auto failed = Manager::Start(config_);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(failed.error().bad_configuration);
  EXPECT_THAT(failed.error().text, AllOf(HasSubstr("65970697666560"), HasSubstr("--pool-bytes")));
  config_.pool_bytes = 8 * kMiB;
  config_.socket = "/proc/nowhere/m.sock";
  failed = Manager::Start(config_);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(failed.error().bad_configuration);
  EXPECT_THAT(failed.error().text, AllOf(HasSubstr("/proc/nowhere/m.sock"), HasSubstr("--socket")));
}

TEST_F(ManagerTest, MoreClientsThanAllowedAreRefused) {
  config_.max_sessions = 2;
  StartManager();
  auto one = Open(Options("one"));
  auto two = Open(Options("two"));
  ASSERT_TRUE(one && two);
  // The handshake may pass, because places for admin sessions are kept; registration does not.
  EXPECT_FALSE(RawClient::Open(Options("three")));
  EXPECT_TRUE(one->Ping());
  two.reset();
  EXPECT_TRUE(Becomes(*one, "orbitkv_sessions", 1));
  EXPECT_TRUE(RawClient::Open(Options("three")));
}

}  // namespace
}  // namespace orbitkv::manager
