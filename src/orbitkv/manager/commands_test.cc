// Commands that take more than one turn of their session.
#include "orbitkv/manager/commands.h"

#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "orbitkv/manager/core.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint32_t kBlocks = wire::kMaxBlocksPerReserve;
constexpr std::uint64_t kPageBytes = 504;
constexpr std::uint64_t kDeadlineNs = 1000;

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() {
    Config config;
    config.pool_bytes = std::uint64_t{64} << 20U;
    config.max_slots = 3 * kBlocks;
    core_ = Core::Create(config, 1).value();
    EXPECT_TRUE(core_->pool().AddReserved(config.pool_bytes).has_value());
    EXPECT_TRUE(service().OpenSession(SessionId(1), service::Purpose::kControl, 1).has_value());
    service::Registration registration;
    registration.instance = "engine";
    registration.role = service::Role::kBoth;
    registration.world_size = 1;
    registration.shard_count = 1;
    registration.representation.emplace();
    registration.groups = {{.block_tokens = 16, .page_count = 1, .page_bytes = kPageBytes}};
    EXPECT_FALSE(service().Register(SessionId(1), registration, now_ns_).refused);
    runner_ = std::make_unique<CommandRunner>(service(), SessionId(1));
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      chain_.emplace_back();
      chain_.back().bytes[0] = static_cast<std::byte>(i);
      chain_.back().bytes[1] = static_cast<std::byte>(i >> 8U);
    }
  }
  service::Service& service() { return core_->service(); }
  const cache::CacheCounters& cache() { return core_->cache().counters(); }

  // Starts a command; a copy of its arguments is what a session owns.
  CommandRunner::Progress Start(wire::Command command, std::uint64_t scalar0, const std::vector<std::byte>& args) {
    words_.assign((args.size() + 7) / 8, 0);
    std::ranges::copy(args, std::as_writable_bytes(std::span(words_)).begin());
    const auto bytes = std::as_bytes(std::span(words_)).first(args.size());
    return runner_->Start({.command = command, .scalar0 = scalar0, .args = bytes}, now_ns_, answer_);
  }
  CommandRunner::Progress Continue() { return runner_->Continue(kDeadlineNs, now_ns_, answer_); }

  // Reserves the whole chain; the commit's arguments.
  std::vector<std::byte> Reserve() {
    wire::ReserveHeader header{};
    header.slot_bytes = kPageBytes + sizeof(std::uint64_t);
    auto progress = Start(wire::Command::kPublishReserve, 0, wire::EncodeReserve(header, chain_));
    while (progress == CommandRunner::Progress::kMore) progress = Continue();
    const auto entries = wire::DecodeReserveAnswer(answer_.payload).value();
    EXPECT_EQ(entries.size(), kBlocks);
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < entries.size(); ++i) commits.push_back({1, entries[i].generation, i, 0});
    return wire::EncodeCommit(commits);
  }

  std::unique_ptr<Core> core_;
  std::unique_ptr<CommandRunner> runner_;
  std::vector<state::BlockHash> chain_;
  std::vector<std::uint64_t> words_;
  CommandAnswer answer_;
  std::uint64_t now_ns_ = 1;
};

TEST_F(CommandsTest, ACommitStoresNoMoreInOneTurnThanATurnMay) {
  const auto args = Reserve();
  const std::uint64_t step = service().limits().step_hashes;
  auto progress = Start(wire::Command::kPublishCommit, answer_.scalar0, args);
  std::uint64_t before = 0;
  std::uint64_t turns = 1;
  for (; progress == CommandRunner::Progress::kMore; ++turns) {
    EXPECT_EQ(cache().commits - before, step);
    EXPECT_EQ(runner_->outcomes().size(), cache().commits);
    before = cache().commits;
    progress = Continue();
  }
  EXPECT_EQ(turns, kBlocks / step);
  EXPECT_EQ(answer_.status, wire::AnswerStatus::kOk);
  EXPECT_EQ(answer_.scalar0, kBlocks);
  const auto outcomes = wire::DecodeCommitAnswer(answer_.payload).value();
  ASSERT_EQ(outcomes.size(), kBlocks);
  for (const std::uint32_t outcome : outcomes) {
    ASSERT_EQ(outcome, static_cast<std::uint32_t>(wire::CommitOutcome::kStored));
  }
}

TEST_F(CommandsTest, ACommitThatHasBegunIsFinishedAndAnsweredWhateverItsDeadline) {
  const auto args = Reserve();
  auto progress = Start(wire::Command::kPublishCommit, answer_.scalar0, args);
  ASSERT_EQ(progress, CommandRunner::Progress::kMore);
  now_ns_ = kDeadlineNs + 1;
  while (progress == CommandRunner::Progress::kMore) progress = Continue();
  EXPECT_EQ(answer_.status, wire::AnswerStatus::kOk);
  EXPECT_EQ(answer_.scalar0, kBlocks);
  EXPECT_EQ(service().gauges().reservations, 0U);
}

TEST_F(CommandsTest, WhatElseTakesTurnsIsGivenUpAtItsDeadlineAndHoldsNothing) {
  wire::ReserveHeader header{};
  header.slot_bytes = kPageBytes + sizeof(std::uint64_t);
  ASSERT_EQ(Start(wire::Command::kPublishReserve, 0, wire::EncodeReserve(header, chain_)),
            CommandRunner::Progress::kMore);
  EXPECT_GT(service().gauges().reserved_slots, 0U);
  now_ns_ = kDeadlineNs;
  EXPECT_EQ(Continue(), CommandRunner::Progress::kDone);
  EXPECT_EQ(answer_.status, wire::AnswerStatus::kTimedOut);
  EXPECT_EQ(service().gauges().reserved_slots, 0U);
}

TEST_F(CommandsTest, ACommitWhoseClientIsLostKeepsTheRestReserved) {
  const auto args = Reserve();
  ASSERT_EQ(Start(wire::Command::kPublishCommit, answer_.scalar0, args), CommandRunner::Progress::kMore);
  runner_->Cancel(now_ns_);
  const std::uint64_t step = service().limits().step_hashes;
  EXPECT_EQ(cache().commits, step);
  EXPECT_EQ(service().gauges().reserved_slots, kBlocks - step);
  service().EndSession(SessionId(1), now_ns_);
  EXPECT_EQ(service().gauges().reserved_slots, 0U);
}

}  // namespace
}  // namespace orbitkv::manager
