// Engines with several cache groups: what is registered, offered, restored and published, against a real Manager, and
// what is refused of one that makes no sense.
#include <gmock/gmock.h>

#include "orbitkv/base/log.h"
#include "orbitkv/client/client_fixture.h"
#include "orbitkv/testing/fake_device.h"
#include "orbitkv/testing/local_manager.h"
#include "orbitkv/testing/raw_client.h"

namespace orbitkv::client {
namespace {

using state::GroupDemand;
using state::GroupKind;
using ::testing::ElementsAre;

constexpr std::uint32_t kFull = 0;
constexpr std::uint32_t kWindow = 1;
constexpr std::uint64_t kWindowBlockBytes = 2 * 1024;
constexpr std::uint64_t kFullBlockBytes = 3 * 4096;

// Full attention in blocks of 16 tokens, and a window of 40 tokens in blocks of 32: it reaches over two of them, and
// every second hash block is a boundary.
class Groups : public ClientTest {
 protected:
  GroupLayouts Layouts() {
    GroupLayouts layouts;
    layouts.groups = {pages_.Layout(), window_.Layout()};
    layouts.groups[kWindow].block_tokens = 32;
    layouts.groups[kWindow].kind = GroupKind::kSlidingWindow;
    layouts.groups[kWindow].span_tokens = 40;
    return layouts;
  }
  void Start(std::unique_ptr<copy::CopyEngine> engine = nullptr) {
    StartClient(std::move(engine));
    ASSERT_TRUE(client_->RegisterGroups(Layouts()));
    ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  }
  Result<JobId> TryPublish(std::span<const state::BlockHash> hashes, std::span<const GroupDemand> runs,
                           std::span<const std::uint32_t> ids, std::uint32_t first_depth = 0) {
    return client_->Publish(
        {.hashes = hashes, .block_ids = ids, .first_depth = first_depth, .parent = {}, .runs = runs});
  }
  // Block i of a group lies in its page set i.
  Completion PublishRuns(std::span<const state::BlockHash> hashes, std::span<const GroupDemand> runs) {
    std::vector<std::uint32_t> ids;
    for (const GroupDemand& run : runs) {
      const auto more = Ids(run.block_count, run.first_block);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    const auto job = TryPublish(hashes, runs, ids);
    EXPECT_TRUE(job) << ToString(job.error());
    return Finished(job.value()).value();
  }
  void FillBoth() {
    pages_.Fill(7);
    window_.Fill(8);
    for (std::uint32_t i = 0; i < 12; ++i) full_before_.push_back(pages_.Block(i));
    for (std::uint32_t i = 0; i < 6; ++i) window_before_.push_back(window_.Block(i));
  }
  void ClearBoth() {
    pages_.Clear();
    window_.Clear();
  }
  Answer AskBehind(std::uint32_t prefix, std::string_view request = "request") {
    return client_->Ask({.request_id = request, .hashes = hashes_, .prefix_blocks = prefix}, 10 * kSecondNs)
        .value()
        .value();
  }
  Result<JobId> StartRestore(GrantId grant, std::uint32_t prefix, std::uint32_t blocks,
                             std::span<const std::uint32_t> ids, std::span<const std::uint64_t> generations = {}) {
    return client_->Restore({.grant = grant,
                             .hashes = std::span(hashes_).subspan(prefix, blocks),
                             .block_ids = ids,
                             .incarnation = std::nullopt,
                             .generations = generations,
                             .prefix_blocks = prefix});
  }

  std::vector<state::BlockHash> hashes_ = Hashes(12);
  Pages window_{2, 16, 1024};
  std::vector<std::vector<std::byte>> full_before_;
  std::vector<std::vector<std::byte>> window_before_;
};

class GroupsTest : public Groups {
 protected:
  GroupsTest() {
    log::SetLevel(log::Level::kError);
    real_ = std::make_unique<testing::LocalManager>(options_.socket_path, 16ULL << 20U);
  }
  ~GroupsTest() override { client_.reset(); }

  // All full blocks; of the window those that the boundaries 6 and 12 need.
  void PublishSparse() {
    FillBoth();
    const GroupDemand runs[] = {{kFull, 0, 12}, {kWindow, 1, 2}, {kWindow, 4, 2}};
    const Completion done = PublishRuns(hashes_, runs);
    EXPECT_TRUE(done.ok) << done.error;
    EXPECT_EQ(done.outcomes, Outcomes(16, Outcome::kStored));
    EXPECT_EQ(done.bytes, 12 * kFullBlockBytes + 4 * kWindowBlockBytes);
    ClearBoth();
  }
  // Changes a byte of the block, wherever it lies in the pool.
  void Corrupt(const std::vector<std::byte>& block) {
    testing::RawClientOptions options;
    options.socket = options_.socket_path;
    options.instance = "saboteur";
    const auto saboteur = testing::RawClient::Connect(options).value();
    const std::span<std::byte> pool(saboteur->pool().data(), saboteur->pool().size());
    const auto found = std::ranges::search(pool, block);
    ASSERT_FALSE(found.empty());
    found.front() ^= std::byte{1};
  }
  std::vector<std::byte> Zeros(std::uint64_t bytes) { return std::vector<std::byte>(bytes); }

  std::unique_ptr<testing::LocalManager> real_;
};

TEST_F(GroupsTest, ARestoreBringsExactlyWhatItsBoundaryDemands) {
  Start();
  PublishSparse();
  const Answer answer = AskBehind(0);
  EXPECT_THAT(answer.boundaries, ElementsAre(6, 12));
  EXPECT_EQ(answer.found_blocks, 12U);
  const GrantId grant = client_->BeginRestore(answer.lease, 6, kRankZero).value();
  // Six blocks of full attention, then the window's two that end at the boundary.
  const Completion done =
      Finished(StartRestore(grant, 0, 6, std::vector<std::uint32_t>{20, 21, 22, 23, 24, 25, 9, 8}).value()).value();
  EXPECT_TRUE(done.ok) << done.error;
  EXPECT_EQ(done.outcomes, Outcomes(8, Outcome::kRestored));
  EXPECT_EQ(done.bytes, 6 * kFullBlockBytes + 2 * kWindowBlockBytes);
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_EQ(pages_.Block(20 + i), full_before_[i]);
  EXPECT_EQ(window_.Block(9), window_before_[1]);
  EXPECT_EQ(window_.Block(8), window_before_[2]);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(window_.Block(i), Zeros(kWindowBlockBytes)) << i;
  EXPECT_EQ(client_->WaitLayers(done.job, 0, 0).value(), 3U + 2U) << "of both groups, one after the other";
  EXPECT_EQ(Counter("restored_blocks"), 8U);
}

TEST_F(GroupsTest, TheDemandIsRelativeToThePrefixAlsoOfAnotherEngine) {
  Start();
  PublishSparse();
  client_.reset();
  options_.instance = "another engine";
  Start();
  // From inside the window's last block but one: that block is needed whole.
  for (const std::uint32_t prefix : {4U, 9U, 10U}) {
    ClearBoth();
    const Answer answer = AskBehind(prefix, "request " + std::to_string(prefix));
    ASSERT_EQ(answer.found_blocks, 12 - prefix);
    const GrantId grant = client_->BeginRestore(answer.lease, 12 - prefix, kRankZero).value();
    std::vector<std::uint32_t> ids = Ids(12 - prefix, prefix);
    if (prefix < 10) ids.push_back(4);
    ids.push_back(5);
    const Completion done = Finished(StartRestore(grant, prefix, 12 - prefix, ids).value()).value();
    EXPECT_TRUE(done.ok) << prefix << done.error;
    for (std::uint32_t i = prefix; i < 12; ++i) EXPECT_EQ(pages_.Block(i), full_before_[i]);
    if (prefix < 10) {
      EXPECT_EQ(window_.Block(4), window_before_[4]);
    }
    EXPECT_EQ(window_.Block(5), window_before_[5]);
  }
}

TEST_F(GroupsTest, ABoundaryThatWasNotOfferedIsNotGranted) {
  options_.load_deadline_ms = 100;
  Start();
  PublishSparse();
  const Answer answer = AskBehind(0);
  const GrantId grant = client_->BeginRestore(answer.lease, 8, kRankZero).value();
  const Completion done =
      Finished(StartRestore(grant, 0, 8, std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 2, 3}).value()).value();
  EXPECT_EQ(done.outcomes, Outcomes(10, Outcome::kFailed));
  EXPECT_EQ(pages_.Block(0), Zeros(kFullBlockBytes));
}

TEST_F(GroupsTest, AMismatchIsWithdrawnInItsGroup) {
  Start();
  PublishSparse();
  const Answer answer = AskBehind(0);
  const GrantId grant = client_->BeginRestore(answer.lease, 12, kRankZero).value();
  Corrupt(window_before_[5]);
  std::vector<std::uint32_t> ids = Ids(12);
  ids.insert(ids.end(), {4, 5});
  const Completion done = Finished(StartRestore(grant, 0, 12, ids).value()).value();
  EXPECT_FALSE(done.ok);
  auto expected = Outcomes(14, Outcome::kRestored);
  expected[13] = static_cast<std::uint8_t>(Outcome::kMismatch);
  EXPECT_EQ(done.outcomes, expected);
  // The Manager looks for itself, and then offers no boundary that needs the block.
  ASSERT_TRUE(Eventually([&] { return AskBehind(0, "again").boundaries == std::vector<std::uint32_t>{6}; }));
}

TEST_F(GroupsTest, AMismatchInAFirstGroupLeavesTheOthersPagesAlone) {
  Start();
  PublishSparse();
  const Answer answer = AskBehind(0);
  const GrantId grant = client_->BeginRestore(answer.lease, 6, kRankZero).value();
  Corrupt(full_before_[3]);
  std::vector<std::uint32_t> ids = Ids(6);
  ids.insert(ids.end(), {1, 2});
  const Completion done = Finished(StartRestore(grant, 0, 6, ids).value()).value();
  EXPECT_FALSE(done.ok);
  EXPECT_EQ(done.outcomes, (std::vector<std::uint8_t>{4, 4, 4, 5, 4, 4, 6, 6}));
  EXPECT_EQ(window_.Block(1), Zeros(kWindowBlockBytes));
}

TEST_F(GroupsTest, WithoutRunsAllWholeBlocksArePublished) {
  Start();
  FillBoth();
  std::vector<std::uint32_t> ids = Ids(5);
  ids.insert(ids.end(), {0, 1});
  const auto first = TryPublish(std::span(hashes_).first(5), {}, ids);
  ASSERT_TRUE(first) << ToString(first.error());
  EXPECT_TRUE(Finished(*first).value().ok);
  EXPECT_THAT(AskBehind(0).boundaries, ElementsAre(2, 4));
  // The window's third block began before these hashes, so it is not whole in them.
  ids = Ids(5, 5);
  ids.insert(ids.end(), {3, 4});
  EXPECT_TRUE(Finished(TryPublish(std::span(hashes_).subspan(5, 5), {}, ids, 5).value()).value().ok);
  EXPECT_THAT(AskBehind(0).boundaries, ElementsAre(2, 4, 10));
  ClearBoth();
  const Answer answer = AskBehind(0);
  const GrantId grant = client_->BeginRestore(answer.lease, 10, kRankZero).value();
  ids = Ids(10);
  ids.insert(ids.end(), {3, 4});
  EXPECT_TRUE(Finished(StartRestore(grant, 0, 10, ids).value()).value().ok);
  EXPECT_EQ(window_.Block(4), window_before_[4]);
}

TEST_F(GroupsTest, AnEngineOfOneWindowRestoresItsTail) {
  StartClient();
  Layout layout = pages_.Layout();
  layout.kind = GroupKind::kSlidingWindow;
  layout.span_tokens = 33;  // two blocks
  ASSERT_TRUE(client_->RegisterLayout(layout));
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  pages_.Fill(7);
  const auto seventh = pages_.Block(7);
  const GroupDemand run[] = {{0, 6, 2}};
  EXPECT_TRUE(PublishRuns(hashes_, run).ok);
  const Answer answer = AskBehind(0);
  EXPECT_THAT(answer.boundaries, ElementsAre(8));
  pages_.Clear();
  const GrantId grant = client_->BeginRestore(answer.lease, 8, kRankZero).value();
  EXPECT_TRUE(Finished(StartRestore(grant, 0, 8, std::vector<std::uint32_t>{30, 31}).value()).value().ok);
  EXPECT_EQ(pages_.Block(31), seventh);
}

TEST_F(GroupsTest, ADeviceThatIsFullBetweenTwoGroupsIsTriedAgain) {
  // While it tells the end of one copy, it has no room for another one.
  auto device = std::make_unique<doubles::FakeDeviceEngine>(1);
  doubles::FakeDeviceEngine& engine = *device;
  Start(std::move(device));
  const auto run = [&](JobId job) {
    ASSERT_TRUE(Eventually([&] {
      engine.Step();
      return copy::IsDrained(client_->StateOf(job).value());
    }));
  };
  FillBoth();
  std::vector<std::uint32_t> ids = Ids(12);
  ids.insert(ids.end(), {4, 5});
  const GroupDemand runs[] = {{kFull, 0, 12}, {kWindow, 4, 2}};
  const JobId publish = TryPublish(hashes_, runs, ids).value();
  run(publish);
  ASSERT_TRUE(Finished(publish).value().ok);
  ClearBoth();
  const Answer answer = AskBehind(0);
  EXPECT_THAT(answer.boundaries, ElementsAre(12));
  const JobId job = StartRestore(client_->BeginRestore(answer.lease, 12, kRankZero).value(), 0, 12, ids).value();
  ASSERT_TRUE(Eventually([&] {
    engine.Step();
    return pages_.Block(11) == full_before_[11];
  }));
  engine.Step();
  EXPECT_EQ(client_->StateOf(job).value(), JobState::kEnqueued) << "pages of it were touched";
  run(job);
  const Completion done = Finished(job).value();
  EXPECT_TRUE(done.ok) << done.error;
  EXPECT_EQ(window_.Block(5), window_before_[5]);
}

TEST_F(GroupsTest, PagesOfEachGroupHaveGenerationsOfTheirOwn) {
  Start();
  PublishSparse();
  const std::uint32_t renewed[] = {5};
  ASSERT_TRUE(client_->RenewPages(renewed, 2, kWindow));
  EXPECT_EQ(client_->RenewPages(renewed, 2, 2).error().code, Code::kInvalid);
  const std::uint32_t beyond[] = {20};  // the window has 16 blocks, full attention more
  EXPECT_EQ(client_->RenewPages(beyond, 2, kWindow).error().code, Code::kInvalid);
  EXPECT_TRUE(client_->RenewPages(beyond, 2, kFull));
  std::vector<std::uint32_t> ids = Ids(12);
  ids.insert(ids.end(), {4, 5});
  std::vector<std::uint64_t> uses(14);
  const auto restore = [&] {
    const Answer answer = AskBehind(0);
    const GrantId grant = client_->BeginRestore(answer.lease, 12, kRankZero).value();
    return Finished(StartRestore(grant, 0, 12, ids, uses).value()).value();
  };
  EXPECT_EQ(restore().outcomes, Outcomes(14, Outcome::kStale)) << "page 5 of the window has its second use";
  uses.back() = 2;
  EXPECT_TRUE(restore().ok);
}

class GroupArgumentsTest : public Groups {};

TEST_F(GroupArgumentsTest, BlocksThatTheHashesDoNotNameAreRefused) {
  StartManager();
  Start();
  const auto ids = Ids(2);
  const auto refused = [&](const GroupDemand& run, std::uint32_t first_depth = 0) {
    const auto job = TryPublish(std::span(hashes_).first(5), std::span(&run, 1), ids, first_depth);
    return !job && job.error().code == Code::kInvalid;
  };
  EXPECT_FALSE(refused({kWindow, 0, 2}));
  EXPECT_TRUE(refused({2, 0, 2})) << "no such group";
  EXPECT_TRUE(refused({kFull, 4, 2})) << "beyond the hashes";
  EXPECT_TRUE(refused({kWindow, 1, 2})) << "the hashes end inside the last block";
  EXPECT_TRUE(refused({kWindow, 0, 3})) << "more blocks than ids";
  EXPECT_TRUE(refused({kWindow, 0, 0})) << "none";
  EXPECT_TRUE(refused({kFull, 0, 2}, 1)) << "before the hashes";
  EXPECT_TRUE(refused({kWindow, 0, 2}, 1)) << "the first block begins before the hashes";
  EXPECT_TRUE(refused({kFull, ~0U, 2})) << "far outside";
  EXPECT_TRUE(refused({kFull, 0, 2}, ~0U)) << "far outside";
  const auto restore = [&](std::uint32_t prefix, std::uint32_t blocks, std::vector<std::uint32_t> pages) {
    const auto job = StartRestore(GrantId(5), prefix, blocks, pages);
    return job ? Code::kNotFound : job.error().code;
  };
  EXPECT_EQ(restore(0, 5, Ids(7)), Code::kInvalid) << "no boundary";
  EXPECT_EQ(restore(0, 4, Ids(4)), Code::kInvalid) << "the window's pages are missing";
  EXPECT_EQ(restore(0, 4, {0, 1, 2, 3, 7, 7}), Code::kInvalid) << "a page twice";
  EXPECT_EQ(restore(0, 4, {0, 1, 2, 3, 0, 16}), Code::kInvalid) << "the window has fewer blocks";
  EXPECT_EQ(restore(0, 4, {0, 1, 2, 31, 0, 1}), Code::kNotFound);
}

TEST_F(GroupArgumentsTest, GroupsThatCannotBeAreRefused) {
  StartManager();
  StartClient();
  GroupLayouts layouts = Layouts();
  layouts.groups[kWindow].span_tokens = 0;
  EXPECT_EQ(client_->RegisterGroups(layouts).error().code, Code::kInvalid);
  layouts = Layouts();
  layouts.hash_block_tokens = 10;
  EXPECT_EQ(client_->RegisterGroups(layouts).error().code, Code::kInvalid);
  EXPECT_EQ(client_->RegisterGroups({}).error().code, Code::kInvalid);
  layouts = Layouts();
  ASSERT_TRUE(client_->RegisterGroups(layouts));
  EXPECT_TRUE(client_->RegisterGroups(layouts));
  layouts.groups[kWindow].span_tokens = 41;
  EXPECT_EQ(client_->RegisterGroups(layouts).error().code, Code::kRefused);
  EXPECT_EQ(client_->RegisterLayout(pages_.Layout()).error().code, Code::kRefused);
}

TEST_F(GroupArgumentsTest, AWorkerMustHaveTheGroupsThatItsSchedulerExpects) {
  const testing::LocalManager manager(options_.socket_path, 64ULL << 20U);
  for (const std::uint32_t span : {41U, 40U}) {
    ClientOptions expecting = options_;
    expecting.instance = "engine with " + std::to_string(span);
    expecting.role = Role::kScheduler;
    expecting.representation_digest = {};
    expecting.expected_groups = {{.block_tokens = 16}, {.block_tokens = 32}};
    expecting.expected_groups[kWindow].kind = GroupKind::kSlidingWindow;
    expecting.expected_groups[kWindow].span_tokens = span;
    auto scheduler = CacheClient::Create(expecting).value();
    ASSERT_TRUE(scheduler->Start());
    ASSERT_TRUE(scheduler->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
    options_.instance = expecting.instance;
    options_.role = Role::kWorker;
    StartClient();
    ASSERT_TRUE(client_->RegisterGroups(Layouts()));
    if (span == 40) {
      EXPECT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
    } else {
      EXPECT_TRUE(Eventually([&] { return Counter("registrations_refused") > 0; }));
      EXPECT_EQ(Counter("registrations"), 0U);
    }
    client_.reset();
  }
  options_.expected_groups = {{.block_tokens = 16}};
  EXPECT_EQ(CacheClient::Create(options_).error().code, Code::kInvalid) << "a worker registers its own";
}

TEST_F(GroupArgumentsTest, AnOlderManagerIsToldNothingThatItWouldMisread) {
  manager_ = std::make_unique<FakeManager>(FakeManager::Options{.socket_path = options_.socket_path});
  manager_->bootstrap().abi_max = 2;
  ASSERT_TRUE(manager_->Start());
  StartClient();
  ASSERT_TRUE(client_->RegisterGroups(Layouts()));
  ASSERT_TRUE(Eventually([&] { return Counter("registrations_refused") > 0; }));
  EXPECT_EQ(manager_->CountOf("register"), 0U);
}

TEST_F(GroupArgumentsTest, ReservesNameGroupDepthAndParent) {
  pages_ = Pages(1, 600, 64);
  StartManager();
  Start();
  const auto hashes = Hashes(530);
  std::vector<wire::ReserveHeader> seen;
  manager_->SetScript([&](channel::ServerSession&, const channel::ReceivedRequest& request) {
    if (request.command == wire::Command::kPublishReserve) {
      seen.push_back(wire::DecodeReserve(request.args).value().header);
    }
    return false;
  });
  const GroupDemand runs[] = {{kFull, 3, 520}, {kWindow, 4, 2}};
  std::vector<std::uint32_t> ids = Ids(520);
  ids.insert(ids.end(), {0, 1});
  EXPECT_TRUE(Finished(TryPublish(hashes, runs, ids).value()).value().ok);
  ASSERT_TRUE(manager_->Seen("PublishReserve", 3));
  manager_->SetScript(nullptr);
  ASSERT_EQ(seen.size(), 3U);  // a reservation has 512 blocks at most
  const auto told = [&](std::size_t i) {
    return std::tuple(seen[i].group, seen[i].first_depth, seen[i].block_count, seen[i].parent);
  };
  EXPECT_EQ(told(0), std::tuple(kFull, 3U, 512U, hashes[2]));
  EXPECT_EQ(told(1), std::tuple(kFull, 515U, 8U, hashes[514]));
  EXPECT_EQ(told(2), std::tuple(kWindow, 4U, 2U, hashes[7]));
  EXPECT_EQ(seen[2].slot_bytes, Layouts().groups[kWindow].slot_bytes());
}

TEST_F(GroupArgumentsTest, PlansOfOtherBlocksAreRefused) {
  StartManager();
  Start();
  const std::uint32_t full = Layouts().groups[kFull].slot_bytes();
  const std::uint32_t window = Layouts().groups[kWindow].slot_bytes();
  const auto entry = [](std::uint32_t group, std::uint32_t block, std::uint64_t offset, std::uint32_t bytes) {
    return wire::PlanEntry{.offset = offset, .generation = 1, .slot_bytes = bytes, .group = group, .block = block};
  };
  const wire::PlanEntry first = entry(kFull, 0, 0, full);
  const wire::PlanEntry second = entry(kFull, 1, 65536, full);
  const std::vector<wire::PlanEntry> plans[] = {
      {first, second, entry(kFull, 1, 131072, window)},               // of another group
      {first, second, entry(kWindow, 0, 131072, window)},             // named by another hash
      {first, second, entry(kWindow, 1, 131072, full)},               // of another group's size
      {first, second, entry(kWindow, 1, 65536 + full - 64, window)},  // in the slot before
      {entry(kWindow, 1, 131072, window), first, second},             // in another order
      {first, second}};
  std::size_t bad = 0;
  for (const auto& plan : plans) {
    manager_->SetScript([&](channel::ServerSession& session, const channel::ReceivedRequest& request) {
      if (request.command != wire::Command::kRestorePlan) return false;
      session.Answer(request.handle, wire::AnswerStatus::kOk, plan.size(), 0, std::as_bytes(std::span(plan)));
      return true;
    });
    const Completion done =
        Finished(StartRestore(GrantId(5), 0, 2, std::vector<std::uint32_t>{0, 1, 0}).value()).value();
    EXPECT_EQ(done.outcomes, Outcomes(3, Outcome::kFailed));
    EXPECT_EQ(Counter("bad_answers"), ++bad);
  }
  manager_->SetScript(nullptr);
}

}  // namespace
}  // namespace orbitkv::client
