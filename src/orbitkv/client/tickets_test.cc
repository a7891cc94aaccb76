#include <atomic>
#include <map>

#include "orbitkv/base/mutex.h"
#include "orbitkv/client/client_fixture.h"
#include "orbitkv/client/queries.h"

namespace orbitkv::client {
namespace {

using channel::ReceivedRequest;
using channel::ServerSession;
using wire::AnswerStatus;
using wire::Command;
using wire::TicketState;

// A Manager that loads until the test says what is over.
class TicketsTest : public ClientTest {
 protected:
  struct Submitted {
    Ticket ticket;
    wire::QueryHeader header;
  };

  void SetUp() override {
    StartManager();
    manager_->SetScript([this](ServerSession& session, const ReceivedRequest& request) {
      const MutexLock lock(mutex_);
      session_ = &session;
      switch (request.command) {
        case Command::kQuerySubmit: return Submit(session, request);
        case Command::kQueryPoll: return Poll(session, request);
        case Command::kQueryCancel:
          cancelled_.push_back({request.scalar0, static_cast<std::uint32_t>(request.scalar1)});
          session.Answer(request.handle, AnswerStatus::kOk);
          return true;
        default: return false;
      }
    });
    Connect();
  }
  void TearDown() override { manager_->SetScript(nullptr); }

  bool Submit(ServerSession& session, const ReceivedRequest& request) ORBITKV_REQUIRES(mutex_) {
    submitted_.push_back({{request.scalar0, static_cast<std::uint32_t>(request.scalar1)},
                          wire::DecodeQuery(request.args).value().header});
    if (request.scalar0 == 0) {
      session.Answer(request.handle, AnswerStatus::kOk, 900, 1);
    } else {
      session.Answer(request.handle, submit_status_);
    }
    return true;
  }
  bool Poll(ServerSession& session, const ReceivedRequest& request) ORBITKV_REQUIRES(mutex_) {
    if (poll_payload_) {
      session.Answer(request.handle, AnswerStatus::kOk, 1, 0, *poll_payload_);
      return true;
    }
    std::vector<wire::PollEntry> entries;
    std::vector<std::uint32_t> boundaries;
    const std::span<const wire::PollRequest> requests = wire::DecodePoll(request.args).value();
    for (const wire::PollRequest& asked : requests) {
      wire::PollEntry entry{.operation = asked.operation, .revision = asked.revision};
      entry.state = static_cast<std::uint32_t>(TicketState::kLoading);
      if (const auto end = ends_.find(asked.operation); end != ends_.end()) {
        entry.state = static_cast<std::uint32_t>(end->second.state);
        entry.lease = end->second.lease;
        entry.found = end->second.found;
        entry.reason = end->second.reason;
        entry.loaded = end->second.loaded;
        entry.boundary_count = static_cast<std::uint32_t>(end->second.boundaries.size());
        boundaries.insert(boundaries.end(), end->second.boundaries.begin(), end->second.boundaries.end());
      }
      entries.push_back(entry);
    }
    polled_ += entries.size();
    session.Answer(request.handle, AnswerStatus::kOk, entries.size(), 0, wire::EncodePollAnswer(entries, boundaries));
    return true;
  }

  // Loading has ended; the client hears of it when Tell is called.
  void End(std::uint64_t operation, TicketEnd end) {
    const MutexLock lock(mutex_);
    ends_[operation] = std::move(end);
  }
  void Tell() {
    const MutexLock lock(mutex_);
    session_->SignalCompletion();
  }
  std::vector<Submitted> submitted() {
    const MutexLock lock(mutex_);
    return submitted_;
  }
  std::vector<Ticket> cancelled() {
    const MutexLock lock(mutex_);
    return cancelled_;
  }
  std::size_t polled() {
    const MutexLock lock(mutex_);
    return polled_;
  }
  void AnswerSubmits(AnswerStatus status) {
    const MutexLock lock(mutex_);
    submit_status_ = status;
  }
  void AnswerPolls(std::vector<std::byte> payload) {
    const MutexLock lock(mutex_);
    poll_payload_ = std::move(payload);
  }

  Query Loading(std::string_view request, std::uint64_t load_wait_ns = 60 * kSecondNs) {
    return {.request_id = request, .hashes = hashes_, .load_wait_ns = load_wait_ns};
  }
  // Asks until the Manager has said that it loads.
  void AskLoading(std::string_view request) {
    std::optional<Answer> answer;
    ASSERT_TRUE(Eventually([&] { return (answer = client_->Ask(Loading(request), 1'000'000).value()).has_value(); }));
    ASSERT_EQ(answer->reason, AnswerReason::kLoading);
  }
  Answer AskToTheEnd(const Query& query) {
    const std::uint64_t deadline = os::DeadlineAfter(10 * kSecondNs);
    for (;;) {
      const auto answer = client_->Ask(query, 5'000'000).value();
      if (answer && answer->reason != AnswerReason::kLoading) return *answer;
      if (os::MonotonicNs() > deadline) {
        ADD_FAILURE() << "no end";
        return {};
      }
    }
  }

  std::vector<state::BlockHash> hashes_ = Hashes(4);
  Mutex mutex_;
  ServerSession* session_ ORBITKV_GUARDED_BY(mutex_) = nullptr;
  AnswerStatus submit_status_ ORBITKV_GUARDED_BY(mutex_) = AnswerStatus::kNotYet;
  std::optional<std::vector<std::byte>> poll_payload_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<Submitted> submitted_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<Ticket> cancelled_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, TicketEnd> ends_ ORBITKV_GUARDED_BY(mutex_);
  std::size_t polled_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

TEST_F(TicketsTest, WithoutAWaitForLoadingThereIsNoOperation) {
  EXPECT_EQ(AskToTheEnd({.request_id = "r", .hashes = hashes_}).found_blocks, 1U);
  ASSERT_EQ(submitted().size(), 1U);
  EXPECT_EQ(submitted()[0].ticket.operation, 0U);
  EXPECT_EQ(submitted()[0].header.wait_ns, 0U);
}

TEST_F(TicketsTest, AnAnswerSaysWhatWasLoadedForIt) {
  for (const char* request : {"a", "b", "c"}) AskLoading(request);
  const auto told = static_cast<std::uint32_t>(wire::MissReason::kNone);
  End(1, {.state = TicketState::kReady, .lease = 31, .found = 4, .reason = told, .loaded = 3});
  End(2, {.state = TicketState::kReady, .lease = 32, .found = 4, .reason = told, .loaded = 5});
  End(3, {.state = TicketState::kReady, .reason = static_cast<std::uint32_t>(wire::MissReason::kEvicted)});
  Tell();
  const Answer part = AskToTheEnd(Loading("a"));
  EXPECT_EQ(part.found_blocks, 4U);
  EXPECT_EQ(part.loaded_blocks, 3U);
  EXPECT_EQ(AskToTheEnd(Loading("b")).reason, AnswerReason::kRefused) << "more than was found";
  const Answer gone = AskToTheEnd(Loading("c"));
  EXPECT_EQ(gone.reason, AnswerReason::kEvicted);
  EXPECT_EQ(ReasonName(gone.reason), "evicted");
}

TEST_F(TicketsTest, AnAnswerSaysWhyThereIsNotMore) {
  for (const char* request : {"a", "b", "c", "d"}) AskLoading(request);
  End(1, {TicketState::kReady, 31, 4, static_cast<std::uint32_t>(wire::MissReason::kRecompute), {}});
  End(2, {TicketState::kReady, 0, 0, static_cast<std::uint32_t>(wire::MissReason::kRecompute), {}});
  // Of a later Manager that knows more reasons.
  End(3, {TicketState::kReady, 33, 2, 4711, {}});
  End(4, {TicketState::kReady, 0, 0, 4711, {}});
  Tell();
  const Answer part = AskToTheEnd(Loading("a"));
  EXPECT_EQ(part.found_blocks, 4U);
  EXPECT_EQ(part.reason, AnswerReason::kRecompute);
  EXPECT_EQ(ReasonName(part.reason), "recompute");
  EXPECT_EQ(AskToTheEnd(Loading("b")).reason, AnswerReason::kRecompute);
  const Answer unknown = AskToTheEnd(Loading("c"));
  EXPECT_EQ(unknown.found_blocks, 2U);
  EXPECT_EQ(unknown.reason, AnswerReason::kFound);
  EXPECT_EQ(AskToTheEnd(Loading("d")).reason, AnswerReason::kAbsent);
}

TEST_F(TicketsTest, AllTicketsArePolledOnceWhenTheManagerSaysSo) {
  for (const char* request : {"a", "b", "c"}) AskLoading(request);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client_->Ask(Loading("a"), 0).value()->reason, AnswerReason::kLoading);
  EXPECT_TRUE(manager_->Seen("QuerySubmit", 3));
  EXPECT_EQ(manager_->CountOf("QueryPoll"), 0U);  // nothing is over, and no round trip is spent on that
  End(1, {TicketState::kReady, 31, 4, 0, {2, 4}});
  End(2, {TicketState::kReady, 0, 0, static_cast<std::uint32_t>(wire::MissReason::kAbsent), {}});
  End(3, {TicketState::kReady, 33, 1, static_cast<std::uint32_t>(wire::MissReason::kTooLate), {}});
  Tell();
  const Answer first = AskToTheEnd(Loading("a"));
  EXPECT_EQ(first.found_blocks, 4U);
  EXPECT_EQ(first.boundaries, (std::vector<std::uint32_t>{2, 4}));
  EXPECT_EQ(first.reason, AnswerReason::kFound);
  EXPECT_FALSE(first.lease.is_none());
  EXPECT_EQ(AskToTheEnd(Loading("b")).reason, AnswerReason::kAbsent);
  const Answer third = AskToTheEnd(Loading("c"));
  EXPECT_EQ(third.found_blocks, 1U);
  EXPECT_EQ(third.reason, AnswerReason::kTooLate);
  EXPECT_TRUE(manager_->Seen("QueryPoll"));
  EXPECT_EQ(manager_->CountOf("QueryPoll"), 1U);
  EXPECT_EQ(polled(), 3U);
  EXPECT_EQ(manager_->CountOf("QuerySubmit"), 3U);
}

TEST_F(TicketsTest, AnAskThatWaitsIsWokenByTheManager) {
  AskLoading("a");
  std::thread teller([this] {
    End(1, {TicketState::kReady, 31, 4, 0, {}});
    Tell();
  });
  // Within one call: the deadline is far away.
  EXPECT_EQ(client_->Ask(Loading("a"), 20 * kSecondNs).value()->found_blocks, 4U);
  teller.join();
}

TEST_F(TicketsTest, ALostManagerEndsTheWait) {
  AskLoading("a");
  std::thread killer([this] { manager_->Stop(); });
  const auto answer = client_->Ask(Loading("a"), 20 * kSecondNs).value();
  killer.join();
  ASSERT_TRUE(WaitForState(State::kDown));
  if (answer && answer->reason == AnswerReason::kLoading) {
    EXPECT_EQ(client_->Ask(Loading("a"), 0).value()->reason, AnswerReason::kDown);
  }
}

TEST_F(TicketsTest, ACancelledTicketIsCancelledThereAndItsLeaseGivenBack) {
  AskLoading("a");
  AskLoading("b");
  ASSERT_TRUE(client_->CancelQuery("a"));
  ASSERT_TRUE(manager_->Seen("QueryCancel"));
  ASSERT_EQ(cancelled().size(), 1U);
  EXPECT_EQ(cancelled()[0].operation, 1U);
  EXPECT_EQ(cancelled()[0].revision, 1U);
  // A Manager that answers it nevertheless gets the lease back.
  AnswerPolls(
      wire::EncodePollAnswer(std::vector<wire::PollEntry>{{.operation = 1,
                                                           .lease = 31,
                                                           .revision = 1,
                                                           .state = static_cast<std::uint32_t>(TicketState::kReady),
                                                           .found = 1},
                                                          {.operation = 2,
                                                           .lease = 32,
                                                           .revision = 1,
                                                           .state = static_cast<std::uint32_t>(TicketState::kReady),
                                                           .found = 1}},
                             {}));
  Tell();
  EXPECT_EQ(AskToTheEnd(Loading("b")).found_blocks, 1U);
  EXPECT_TRUE(manager_->Seen("release lease"));
}

TEST_F(TicketsTest, WhatIsNotAdmittedIsAskedAgainWithFreshOperationsAndThenWithout) {
  AnswerSubmits(AnswerStatus::kBusy);
  EXPECT_EQ(AskToTheEnd(Loading("a")).found_blocks, 1U);
  const auto asked = submitted();
  ASSERT_EQ(asked.size(), Queries::kMostRefusals + 2U);
  for (std::size_t i = 0; i <= Queries::kMostRefusals; ++i) {
    EXPECT_EQ(asked[i].ticket.operation, i + 1);
    EXPECT_EQ(asked[i].ticket.revision, 1U);
  }
  EXPECT_EQ(asked.back().ticket.operation, 0U);
  EXPECT_EQ(Counter("queries_not_admitted"), Queries::kMostRefusals + 1U);
}

TEST_F(TicketsTest, ATicketThatIsGivenUpUnderPressureIsReplacedByAFreshOne) {
  AskLoading("a");
  End(1, {TicketState::kNotAdmitted, 0, 0, 0, {}});
  End(2, {TicketState::kReady, 31, 4, 0, {}});
  Tell();
  ASSERT_TRUE(Eventually([&] {
    (void)client_->Ask(Loading("a"), 1'000'000).value();
    return submitted().size() == 2;
  }));
  EXPECT_EQ(submitted()[1].ticket.operation, 2U);
  Tell();
  EXPECT_EQ(AskToTheEnd(Loading("a")).found_blocks, 4U);
}

TEST_F(TicketsTest, AQuestionThatChangesReplacesItsOperationInPlace) {
  AskLoading("a");
  Query other = Loading("a");
  other.prefix_blocks = 1;
  std::optional<Answer> answer = client_->Ask(other, 1'000'000).value();
  ASSERT_TRUE(manager_->Seen("QuerySubmit", 2));
  EXPECT_EQ(submitted()[1].ticket.operation, 1U);
  EXPECT_EQ(submitted()[1].ticket.revision, 2U);
  EXPECT_EQ(submitted()[1].header.prefix_blocks, 1U);
  End(1, {TicketState::kReady, 31, 3, 0, {}});
  Tell();
  EXPECT_EQ(AskToTheEnd(other).found_blocks, 3U);
  EXPECT_TRUE(cancelled().empty());
}

TEST_F(TicketsTest, AnotherModeIsAnotherOperation) {
  AskLoading("a");
  Query all = Loading("a");
  all.mode = QueryMode::kFullPrefix;
  (void)client_->Ask(all, 1'000'000).value();
  ASSERT_TRUE(manager_->Seen("QuerySubmit", 2));
  ASSERT_TRUE(manager_->Seen("QueryCancel"));
  EXPECT_EQ(cancelled()[0].operation, 1U);
  EXPECT_EQ(submitted()[1].ticket.operation, 2U);
  EXPECT_EQ(submitted()[1].ticket.revision, 1U);
}

TEST_F(TicketsTest, AManagerThatSaysNothingIsAskedWhenTheWaitIsOver) {
  client_.reset();
  options_.query_deadline_ms = 100;
  Connect();
  End(1, {TicketState::kReady, 31, 2, static_cast<std::uint32_t>(wire::MissReason::kTooLate), {}});
  const Answer answer = AskToTheEnd(Loading("a", 1'000'000));
  EXPECT_EQ(answer.found_blocks, 2U);
  EXPECT_EQ(Counter("ticket_polls"), 1U);
}

TEST_F(TicketsTest, AManagerThatGoesOnLoadingForEverIsGivenUp) {
  client_.reset();
  options_.query_deadline_ms = 100;
  Connect();
  const Answer answer = AskToTheEnd(Loading("a", 1'000'000));
  EXPECT_EQ(answer.reason, AnswerReason::kTimedOut);
  EXPECT_TRUE(manager_->Seen("QueryCancel"));
  EXPECT_EQ(Counter("suspicions"), 0U);  // it answers, only not with an end
}

TEST_F(TicketsTest, AManagerThatDoesNotAnswerAPollIsSuspect) {
  client_.reset();
  options_.query_deadline_ms = 100;
  Connect();
  AskLoading("a");
  manager_->Hold(true);
  Tell();
  const Answer answer = AskToTheEnd(Loading("a"));
  EXPECT_EQ(answer.reason, AnswerReason::kTimedOut);
  EXPECT_EQ(client_->state(), State::kSuspect);
  manager_->Hold(false);
  EXPECT_TRUE(manager_->Seen("QueryCancel"));
  EXPECT_TRUE(WaitForState(State::kUp));
}

TEST_F(TicketsTest, EndsThatMakeNoSenseAreMissesAndTheirLeasesGivenBack) {
  const TicketEnd ends[] = {{TicketState::kReady, 31, 5, 0, {}},      // more than was asked for
                            {TicketState::kReady, 0, 2, 0, {}},       // found without a lease
                            {TicketState::kReady, 31, 0, 0, {}},      // a lease on nothing
                            {TicketState::kReady, 31, 4, 0, {4, 2}},  // boundaries that fall
                            {TicketState::kReady, 31, 4, 0, {1, 2}},  // of which the last is not what was found
                            {TicketState::kReady, ~0ULL, 4, 0, {}}};  // no lease has that number
  std::uint64_t operation = 0;
  for (const TicketEnd& end : ends) {
    AskLoading("a");
    End(++operation, end);
    Tell();
    EXPECT_EQ(AskToTheEnd(Loading("a")).found_blocks, 0U);
    EXPECT_EQ(Counter("bad_answers"), operation);
  }
  EXPECT_TRUE(manager_->Seen("release lease", 5));
  AskLoading("a");
  AnswerPolls(std::vector<std::byte>(24, std::byte{0xff}));
  Tell();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(client_->Ask(Loading("a"), 1'000'000).value()->reason, AnswerReason::kLoading);
    return Counter("bad_answers") == 7;
  }));
  EXPECT_EQ(client_->state(), State::kUp);
}

TEST_F(TicketsTest, ADiscoveryTakesNoLease) {
  manager_->SetScript([](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    const auto header = wire::DecodeQuery(request.args).value().header;
    EXPECT_EQ(header.mode, QueryMode::kDiscovery);
    EXPECT_EQ(header.flags, wire::kTellTiers);
    const std::uint32_t boundaries[] = {1, 3};
    std::vector<wire::Tier> tiers(header.hash_count);
    tiers[0] = wire::Tier::kPool;
    tiers[2] = wire::Tier::kBehind;
    session.Answer(request.handle, AnswerStatus::kOk, request.scalar0, 3, wire::EncodeDiscovery(boundaries, tiers));
    return true;
  });
  const Query query{.request_id = "r", .hashes = hashes_, .mode = QueryMode::kDiscovery, .load_wait_ns = kSecondNs};
  const Answer answer = AskToTheEnd(query);
  EXPECT_EQ(answer.found_blocks, 3U);
  EXPECT_TRUE(answer.lease.is_none());
  EXPECT_EQ(answer.boundaries, (std::vector<std::uint32_t>{1, 3}));
  ASSERT_EQ(answer.tiers.size(), hashes_.size());
  EXPECT_EQ(answer.tiers[0], wire::Tier::kPool);
  EXPECT_EQ(answer.tiers[1], wire::Tier::kAbsent);
  EXPECT_EQ(answer.tiers[2], wire::Tier::kBehind);
  manager_->SetScript([](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    session.Answer(request.handle, AnswerStatus::kOk, 77, 3);  // one that has a lease after all
    return true;
  });
  EXPECT_EQ(AskToTheEnd(query).found_blocks, 0U);
  EXPECT_TRUE(manager_->Seen("release lease"));
}

TEST_F(TicketsTest, ATierForEachBlockOrNone) {
  manager_->SetScript([](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    const std::vector<wire::Tier> tiers(2);
    session.Answer(request.handle, AnswerStatus::kOk, 0, 2, wire::EncodeDiscovery({}, tiers));
    return true;
  });
  const Query query{.request_id = "r", .hashes = hashes_, .mode = QueryMode::kDiscovery};
  ASSERT_NE(hashes_.size(), 2U);
  EXPECT_EQ(AskToTheEnd(query).reason, AnswerReason::kRefused);
  EXPECT_EQ(Counter("bad_answers"), 1U);
}

TEST_F(TicketsTest, AMeasuredWaitIsSaidToBeOne) {
  std::atomic<std::uint32_t> flags = 0xff;
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    flags = wire::DecodeQuery(request.args).value().header.flags;
    session.Answer(request.handle, AnswerStatus::kOk);
    return true;
  });
  Query query{.request_id = "r", .hashes = hashes_, .load_wait_ns = kSecondNs, .load_wait_is_compute_time = true};
  static_cast<void>(AskToTheEnd(query));
  EXPECT_EQ(flags, wire::kWaitIsComputeTime);
  query.load_wait_is_compute_time = false;
  static_cast<void>(AskToTheEnd(query));
  EXPECT_EQ(flags, 0U);
}

TEST_F(TicketsTest, SelectedBlocksAreNamedByViews) {
  std::vector<wire::HashView> seen;
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    if (request.command != Command::kQuerySubmit) return false;
    const auto view = wire::DecodeQuery(request.args).value();
    const MutexLock lock(mutex_);
    seen.assign(view.views.begin(), view.views.end());
    session.Answer(request.handle, AnswerStatus::kOk, 31, 3);
    return true;
  });
  const HashView views[] = {{0, 1, 2, 0}};
  Query query{.request_id = "r", .hashes = hashes_, .mode = QueryMode::kSelected, .views = views};
  EXPECT_EQ(AskToTheEnd(query).found_blocks, 3U);
  {
    const MutexLock lock(mutex_);
    ASSERT_EQ(seen.size(), 1U);
    EXPECT_EQ(seen[0].first, 1U);
    EXPECT_EQ(seen[0].count, 2U);
  }
  query.views = {};
  EXPECT_EQ(client_->Ask(query, 0).error().code, Code::kInvalid);
  query.mode = QueryMode::kWarmUp;
  EXPECT_EQ(client_->Ask(query, 0).error().code, Code::kInvalid);
}

TEST_F(TicketsTest, APreparationIsClaimedByItsConsumer) {
  AnswerStatus status = AnswerStatus::kNotYet;
  wire::ClaimRequest claimed;
  wire::QueryHeader prepared;
  std::uint64_t operation = 0;
  manager_->SetScript([&](ServerSession& session, const ReceivedRequest& request) {
    const MutexLock lock(mutex_);
    if (request.command == Command::kQuerySubmit) {
      prepared = wire::DecodeQuery(request.args).value().header;
      operation = request.scalar0;
      session.Answer(request.handle, AnswerStatus::kNotYet);
      return true;
    }
    if (request.command != Command::kQueryClaim) return false;
    claimed = wire::DecodeClaim(request.args).value();
    session.Answer(request.handle, status, status == AnswerStatus::kOk ? 31 : 0, status == AnswerStatus::kOk ? 4 : 0);
    return true;
  });
  const TicketHandle ticket = client_->Prepare(Loading("r"), "consumer").value();
  ASSERT_TRUE(manager_->Seen("QuerySubmit"));
  const auto claim = [&](TicketHandle handle) {
    return client_->Claim({.consumer = "consumer", .ticket = handle, .most_blocks = 4}, 10 * kSecondNs).value().value();
  };
  EXPECT_EQ(claim(ticket).reason, AnswerReason::kLoading);
  {
    const MutexLock lock(mutex_);
    EXPECT_EQ(prepared.mode, QueryMode::kPrepare);
    EXPECT_EQ(claimed.operation, operation);
    EXPECT_EQ(claimed.consumer_key_hi, prepared.consumer_key_hi);
    EXPECT_EQ(claimed.consumer_key_lo, prepared.consumer_key_lo);
    EXPECT_NE(claimed.consumer_key_lo, 0U);
    status = AnswerStatus::kOk;
  }
  const Answer answer = claim({});
  EXPECT_EQ(answer.found_blocks, 4U);
  EXPECT_FALSE(answer.lease.is_none());
  {
    const MutexLock lock(mutex_);
    EXPECT_EQ(claimed.operation, 0U);
    EXPECT_EQ(claimed.revision, 1U) << "the Manager gives out an exact revision, named or not";
    status = AnswerStatus::kGone;
  }
  EXPECT_EQ(claim(ticket).reason, AnswerReason::kNotAdmitted);
  EXPECT_TRUE(manager_->Seen("QueryClaim", 3));
  EXPECT_EQ(claim(TicketHandle(ticket.value() + (1ULL << 48U))).reason, AnswerReason::kNotAdmitted);  // of another life
  EXPECT_EQ(manager_->CountOf("QueryClaim"), 3U);
  ASSERT_TRUE(client_->CancelPrepared(ticket));
  EXPECT_TRUE(manager_->Seen("QueryCancel"));
}

TEST_F(TicketsTest, AWarmUpLeavesNothingBehind) {
  ASSERT_TRUE(client_->WarmUp(Loading("r")));
  ASSERT_TRUE(manager_->Seen("QuerySubmit"));
  EXPECT_EQ(submitted()[0].header.mode, QueryMode::kWarmUp);
  EXPECT_EQ(submitted()[0].ticket.operation, 0U);
  EXPECT_EQ(client_->WarmUp({.request_id = "r", .hashes = {}}).error().code, Code::kInvalid);
  manager_->Stop();
  ASSERT_TRUE(WaitForState(State::kDown));
  EXPECT_EQ(client_->WarmUp(Loading("r")).error().code, Code::kUnavailable);
}

using OldManagerTest = ClientTest;

TEST_F(OldManagerTest, AManagerOfVersion1IsSpokenToInItsOwnWords) {
  manager_ = std::make_unique<FakeManager>(FakeManager::Options{.socket_path = options_.socket_path});
  manager_->bootstrap().abi_max = 1;
  ASSERT_TRUE(manager_->Start());
  Connect();
  pages_.Fill(4);
  const auto hashes = Hashes(3);
  const auto expected = pages_.Block(1);
  ASSERT_TRUE(Publish(std::span(hashes).first(2), Ids(2)).ok);
  // What is in memory is the answer, however long loading might take.
  const Query query{.request_id = "r", .hashes = hashes, .load_wait_ns = kSecondNs};
  const Answer answer = client_->Ask(query, 10 * kSecondNs).value().value();
  EXPECT_EQ(answer.found_blocks, 2U);
  EXPECT_TRUE(answer.boundaries.empty());
  const GrantId grant = Begin(answer);
  EXPECT_TRUE(Finished(StartRestore(grant, std::span(hashes).first(2), Ids(2, 20)).value()).value().ok);
  EXPECT_EQ(pages_.Block(21), expected);
  Query full = query;
  full.request_id = "f";
  full.mode = QueryMode::kFullPrefix;
  EXPECT_EQ(client_->Ask(full, 10 * kSecondNs).value()->reason, AnswerReason::kIncomplete);
  EXPECT_TRUE(manager_->Seen("release lease"));
  full.hashes = full.hashes.first(2);
  EXPECT_EQ(client_->Ask(full, 10 * kSecondNs).value()->found_blocks, 2U);
  Query discovery = query;
  discovery.mode = QueryMode::kDiscovery;
  EXPECT_EQ(client_->Ask(discovery, kSecondNs).value()->reason, AnswerReason::kRefused);
  EXPECT_EQ(client_->Prepare(query, "c").error().code, Code::kUnsupported);
  EXPECT_EQ(client_->WarmUp(query).error().code, Code::kUnsupported);
  EXPECT_EQ(client_->Claim({.consumer = "c", .most_blocks = 1}, 0).value()->reason, AnswerReason::kNotAdmitted);
}

}  // namespace
}  // namespace orbitkv::client
