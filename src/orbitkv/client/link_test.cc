#include <atomic>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/client/client_fixture.h"
#include "orbitkv/client/pool_map.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::client {
namespace {

using LinkTest = ClientTest;
using QueryTest = ClientTest;

TEST_F(QueryTest, FindsWhatWasPublishedAndNothingElse) {
  StartManager();
  Connect();
  const auto hashes = Hashes(5);
  Publish(std::span(hashes).first(3), Ids(3));
  const Answer answer = Ask(hashes);
  EXPECT_EQ(answer.found_blocks, 3U);
  EXPECT_FALSE(answer.lease.is_none());
  EXPECT_EQ(answer.reason, AnswerReason::kFound);
  const Answer miss = Ask(Hashes(2, 99), "other");
  EXPECT_EQ(miss.found_blocks, 0U);
  EXPECT_EQ(miss.reason, AnswerReason::kAbsent);
  ASSERT_TRUE(client_->ReleaseLease(answer.lease));
  EXPECT_TRUE(manager_->Seen("release lease"));
}

TEST_F(QueryTest, OnlyWhatIsBehindThePrefixIsAsked) {
  StartManager();
  Connect();
  const auto hashes = Hashes(5);
  Publish(hashes, Ids(5));
  const Query query{.request_id = "r", .hashes = hashes, .prefix_blocks = 2};
  EXPECT_EQ(client_->Ask(query, 10 * kSecondNs).value()->found_blocks, 3U);
  const Query all{.request_id = "r", .hashes = hashes, .prefix_blocks = 5};
  EXPECT_EQ(client_->Ask(all, 0).value()->found_blocks, 0U);
  EXPECT_EQ(manager_->CountOf("QuerySubmit"), 1U);
}

TEST_F(QueryTest, APendingQueryIsAnsweredLaterAndSentOnce) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  manager_->Hold(true);
  const Query query{.request_id = "r", .hashes = hashes};
  EXPECT_FALSE(client_->Ask(query, 100'000).value());
  EXPECT_FALSE(client_->Ask(query, 0).value());
  manager_->Hold(false);
  EXPECT_EQ(client_->Ask(query, 10 * kSecondNs).value()->found_blocks, 2U);
  EXPECT_EQ(manager_->CountOf("QuerySubmit"), 1U);
}

TEST_F(QueryTest, AnAnswerToAnotherPrefixIsNotGivenOut) {
  StartManager();
  Connect();
  const auto hashes = Hashes(4);
  Publish(hashes, Ids(4));
  manager_->Hold(true);
  EXPECT_FALSE(client_->Ask({.request_id = "r", .hashes = hashes}, 0).value());
  manager_->Hold(false);
  const Query later{.request_id = "r", .hashes = hashes, .prefix_blocks = 1};
  EXPECT_EQ(client_->Ask(later, 10 * kSecondNs).value()->found_blocks, 3U);
  EXPECT_EQ(manager_->CountOf("QuerySubmit"), 2U);
}

TEST_F(QueryTest, ASilentManagerIsSuspectAndAskedNothingUntilItAnswers) {
  options_.query_deadline_ms = 20;
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  manager_->Hold(true);
  const Query query{.request_id = "r", .hashes = hashes};
  EXPECT_FALSE(client_->Ask(query, 0).value());
  std::optional<Answer> answer;
  while (!answer) answer = client_->Ask(query, 1'000'000).value();
  EXPECT_EQ(answer->reason, AnswerReason::kTimedOut);
  EXPECT_EQ(client_->state(), State::kSuspect);
  EXPECT_EQ(client_->Ask({.request_id = "s", .hashes = hashes}, 0).value()->reason, AnswerReason::kDown);
  EXPECT_TRUE(client_->BeginRestore(LeaseHandle(1), 1, kRankZero).value().is_none());
  manager_->Hold(false);
  ASSERT_TRUE(WaitForState(State::kUp));
  // The first question had expired; what was asked while suspect was never sent.
  EXPECT_EQ(manager_->CountOf("QuerySubmit"), 0U);
  EXPECT_EQ(Counter("suspicions"), 1U);
  EXPECT_EQ(Counter("losses"), 0U);
}

TEST_F(QueryTest, TheLeaseOfACancelledQueryIsReleased) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  manager_->Hold(true);
  EXPECT_FALSE(client_->Ask({.request_id = "r", .hashes = hashes}, 0).value());
  ASSERT_TRUE(client_->CancelQuery("r"));
  manager_->Hold(false);
  EXPECT_TRUE(manager_->Seen("release lease"));
  EXPECT_EQ(Counter("late_answers"), 1U);
}

TEST_F(QueryTest, AnAnswerThatMakesNoSenseIsAMiss) {
  StartManager();
  Connect();
  manager_->SetScript([](channel::ServerSession& session, const channel::ReceivedRequest& request) {
    if (request.command != wire::Command::kQuerySubmit) return false;
    session.Answer(request.handle, wire::AnswerStatus::kOk, 5, 3);  // three of two blocks
    return true;
  });
  EXPECT_EQ(Ask(Hashes(2)).found_blocks, 0U);
  EXPECT_EQ(Counter("bad_answers"), 1U);
  EXPECT_TRUE(manager_->Seen("release lease"));
}

TEST_F(LinkTest, WithoutAManagerEverythingIsAMissAndOneComesLater) {
  StartClient();
  ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
  EXPECT_EQ(client_->state(), State::kDown);
  EXPECT_FALSE(client_->incarnation());
  EXPECT_EQ(Ask(Hashes(1)).reason, AnswerReason::kDown);
  EXPECT_FALSE(client_->WaitUp(0).value());
  StartManager();
  EXPECT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(manager_->CountOf("register"), 1U);
  EXPECT_TRUE(Publish(Hashes(1), Ids(1)).ok);
}

TEST_F(LinkTest, AnIdleLinkSleeps) {
  StartManager();
  Connect();
  constexpr std::uint64_t kWindowNs = 300'000'000;
  EXPECT_FALSE(os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(kWindowNs)));  // it may still populate
  const std::uint64_t before = Counter("link_rounds");
  EXPECT_FALSE(os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(kWindowNs)));
  EXPECT_LT(Counter("link_rounds") - before, 20U);
}

TEST_F(LinkTest, ALostManagerIsReplacedAndOldLeasesNameNothing) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  const Answer old = Ask(hashes);
  manager_->Stop();
  ASSERT_TRUE(WaitForState(State::kDown));
  EXPECT_EQ(Ask(hashes).reason, AnswerReason::kDown);
  manager_.reset();
  StartManager({.incarnation = {5, 6}});
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(client_->incarnation(), (Incarnation{5, 6}));
  EXPECT_TRUE(manager_->Seen("drained", 2));  // the control and the publish session of the life before
  EXPECT_EQ(Ask(hashes).found_blocks, 0U);
  Publish(hashes, Ids(2));
  EXPECT_EQ(Ask(hashes).found_blocks, 2U);
  // Lease numbers start again with each Manager: the old handle must not be taken for one of the new.
  EXPECT_TRUE(Begin(old).is_none());
  ASSERT_TRUE(client_->ReleaseLease(old.lease));
  EXPECT_EQ(Counter("releases"), 0U);
  EXPECT_EQ(Counter("losses"), 1U);
}

bool IsMapped(ino_t inode) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string skipped;
    ino_t found = 0;
    fields >> skipped >> skipped >> skipped >> skipped >> found;
    if (found == inode) return true;
  }
  return false;
}

// Its pool outlives it, as clients are told.
class KeptManager : public FakeManager, private channel::Seats {
 public:
  explicit KeptManager(const Options& options) : FakeManager(options) { bootstrap().seats = this; }
  ~KeptManager() override { Stop(); }
  ino_t pool_inode() {
    struct stat facts = {};
    EXPECT_EQ(::fstat(bootstrap().pool_fds.front(), &facts), 0);
    return facts.st_ino;
  }
  // Looks, when a client registers, whether this file is still mapped.
  void LookFor(ino_t inode) { looked_for_ = inode; }
  bool found() const { return found_; }

  void OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind, std::vector<std::byte> payload) override {
    if (kind == wire::FRAME_REGISTER && looked_for_ != 0) found_ = IsMapped(looked_for_);
    FakeManager::OnFrame(session, frame_id, kind, std::move(payload));
  }

 private:
  Result<Taken> Take(bool /*watched*/) override { return Taken{0, os::CreateMemfd("test", 1).value()}; }
  void Give(std::uint32_t /*row*/) override {}

  std::atomic<ino_t> looked_for_{0};
  std::atomic<bool> found_{false};
};

// Freeing a large pool takes a second and more.
TEST_F(LinkTest, ItRegistersBeforeItFreesThePoolOfTheManagerBefore) {
  auto first = std::make_unique<KeptManager>(FakeManager::Options{.socket_path = options_.socket_path});
  const ino_t inode = first->pool_inode();
  ASSERT_TRUE(first->Start());
  Connect();
  first.reset();
  ASSERT_TRUE(WaitForState(State::kDown));
  EXPECT_TRUE(IsMapped(inode));
  KeptManager second({.socket_path = options_.socket_path, .incarnation = {5, 6}});
  second.LookFor(inode);
  ASSERT_TRUE(second.Start());
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_TRUE(second.found());
  EXPECT_TRUE(Eventually([&] { return !IsMapped(inode); }));
  EXPECT_EQ(Counter("pools_kept"), 0U);
  client_.reset();
}

// The Manager is full of sessions that have lost their connection, this client's own among them.
TEST_F(LinkTest, WithoutAPlaceItReportsWhatHasDrainedAndThenFindsOne) {
  FakeManager::Options fake;
  fake.socket_path = options_.socket_path;
  manager_ = std::make_unique<FakeManager>(fake);
  manager_->bootstrap().max_sessions = 2;
  ASSERT_TRUE(manager_->Start());
  for (std::size_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(channel::ClientSession::Connect(manager_->Client()).has_value()) << i;
    ASSERT_TRUE(manager_->Seen("hangup", i));
  }
  Connect();
  EXPECT_EQ(channel::ClientSession::Connect(manager_->Client()).error().code, Code::kBusy);
  // Its ring makes no sense to it any more, so it leaves, and the Manager keeps what it left.
  manager_->SetScript([](channel::ServerSession& session, const channel::ReceivedRequest& request) {
    if (request.command != wire::Command::kQuerySubmit) return false;
    const wire::SessionGeometry geometry;
    const auto memory = os::Mapping::Map(session.session_fd(), geometry.total_bytes(), os::Access::kReadWrite).value();
    reinterpret_cast<wire::SessionHeader*>(memory.data())->answer_head = 1'000'000;
    session.FlushWake();
    return true;
  });
  (void)client_->Ask({.request_id = "r", .hashes = Hashes(1)}, 10'000'000);
  EXPECT_TRUE(manager_->Seen("drained"));
  EXPECT_GE(manager_->CountOf("opened"), 5U) << "three, its own, and the one that only reports";
  ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  EXPECT_EQ(Counter("connects"), 2U);
}

TEST_F(LinkTest, APoolThatCouldShrinkIsNotMapped) {
  StartManager({.seal_pool = false});
  StartClient();
  ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
  ASSERT_TRUE(manager_->Seen("opened", 2));  // it tried again
  EXPECT_EQ(client_->state(), State::kDown);
  EXPECT_EQ(manager_->CountOf("register"), 0U);
}

TEST_F(LinkTest, ARefusedRegistrationLeavesTheEngineWithoutCache) {
  StartManager({.refuse_registration = true});
  StartClient();
  ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
  ASSERT_TRUE(manager_->Seen("register"));
  EXPECT_FALSE(client_->WaitUp(0).value());
  EXPECT_FALSE(Publish(Hashes(1), Ids(1)).ok);
}

TEST_F(LinkTest, AnotherLayoutIsRefusedTheSameIsNot) {
  StartManager();
  Connect();
  EXPECT_TRUE(client_->RegisterLayout(pages_.Layout()));
  Pages others(3, 32, 4096);
  EXPECT_EQ(client_->RegisterLayout(others.Layout()).error().code, Code::kRefused);
}

TEST_F(LinkTest, AForkedChildIsRefused) {
  StartManager();
  Connect();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto hashes = Hashes(1);
    const auto ids = Ids(1);
    const bool refused =
        client_->Ask({.request_id = "r", .hashes = hashes}, 0).error().code == Code::kRefused &&
        client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}}).error().code == Code::kRefused &&
        client_->Poll().error().code == Code::kRefused && client_->state() == State::kDown;
    client_.reset();  // must neither hang nor end the parent's sessions
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(Publish(Hashes(1), Ids(1)).ok);
}

TEST_F(LinkTest, GrantsDifferAndAreReleased) {
  StartManager();
  Connect();
  const auto hashes = Hashes(2);
  Publish(hashes, Ids(2));
  const GrantId first = Begin(Ask(hashes, "a"));
  const GrantId second = Begin(Ask(hashes, "b"));
  EXPECT_FALSE(first.is_none());
  EXPECT_NE(first, second);
  EXPECT_EQ(Counter("late_answers"), 0U);
  ASSERT_TRUE(client_->ReleaseGrant(first));
  ASSERT_TRUE(client_->ReleaseGrant(second));
  EXPECT_TRUE(manager_->Seen("release grant", 2));
  EXPECT_EQ(manager_->grants(), 0U);
}

TEST(OptionsTest, EachFieldIsChecked) {
  ClientOptions good;
  good.socket_path = "/s";
  good.instance = "i";
  good.computation_digest.fill(std::byte{1});
  good.representation_digest.fill(std::byte{1});
  ASSERT_TRUE(good.Validate());
  const auto refused = [&](auto change) {
    ClientOptions options = good;
    change(options);
    return !options.Validate();
  };
  EXPECT_TRUE(refused([](ClientOptions& o) { o.socket_path.clear(); }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.instance.clear(); }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.rank = 1; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.world_size = 2; }));  // both is one process
  EXPECT_TRUE(refused([](ClientOptions& o) { o.shard_count = 2; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.shard = 1; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.computation_digest.fill(std::byte{0}); }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.representation_digest.fill(std::byte{0}); }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.max_queued_saves = 0; }));
  EXPECT_TRUE(refused([](ClientOptions& o) { o.max_backoff_ms = 1; }));
}

TEST(PoolMapTest, PopulatesWhatIsReservedAndNoMore) {
  constexpr std::uint64_t kBytes = 64U << 20U;
  const os::UniqueFd fd = os::CreateMemfd("test", kBytes).value();
  ASSERT_TRUE(os::SealSize(fd.get()));
  ASSERT_TRUE(os::Reserve(fd.get(), 0, 24U << 20U));
  EXPECT_EQ(PoolMap::Open(fd.get(), {.bytes = kBytes / 2}).error().code, Code::kRefused);
  const auto map = PoolMap::Open(fd.get(), {.bytes = kBytes}).value();
  EXPECT_EQ(map->PopulateNext(), PoolMap::kPieceBytes);
  EXPECT_EQ(map->PopulateNext(), 8U << 20U);
  EXPECT_EQ(map->PopulateNext(), 0U);
  EXPECT_EQ(os::AllocatedBytes(fd.get()).value(), 24U << 20U);
  ASSERT_TRUE(os::Reserve(fd.get(), 24U << 20U, 4U << 20U));
  EXPECT_EQ(map->PopulateNext(), 4U << 20U);
}

TEST(PoolMapTest, KnowsItsPoolAgainByDeviceAndInode) {
  constexpr std::uint64_t kBytes = 1U << 20U;
  const os::UniqueFd fd = os::CreateMemfd("test", kBytes).value();
  const os::UniqueFd other = os::CreateMemfd("test", kBytes).value();
  const PoolDescription description{.bytes = kBytes, .named = true};
  auto map = PoolMap::Open(fd.get(), description).value();
  EXPECT_TRUE(map->IsOf(os::Duplicate(fd.get()).value().get(), description));
  EXPECT_FALSE(map->IsOf(other.get(), description));
  EXPECT_FALSE(map->IsOf(fd.get(), {.bytes = kBytes, .named = true, .read_only = true}));
  EXPECT_FALSE(map->IsOf(fd.get(), {.bytes = kBytes / 2, .named = true}));
}

}  // namespace
}  // namespace orbitkv::client
