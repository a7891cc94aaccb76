// Managers whose pool outlives them: killed, started again, with engines that go on all the while.
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <set>
#include <thread>
#include <unistd.h>

#include "driven_client.h"
#include "manager_world.h"

#include "orbitkv/base/prng.h"
#include "orbitkv/client/cache_client.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/effort.h"
#include "orbitkv/testing/service_keeper_fixture.h"

namespace orbitkv::integration {
namespace {

using testing::Chain;

class PoolSurvival : public ManagerWorld {
 protected:
  void SetUp() override {
    ManagerWorld::SetUp();
    static int count = 0;
    pool_directory_ = std::filesystem::path("/dev/shm") /
                      ("orbitkv_survival_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    kept_ = {"--pool-path", pool_directory_, "--lock-wait-ms", "20000"};
  }
  void TearDown() override {
    std::filesystem::remove_all(pool_directory_);
    ManagerWorld::TearDown();
  }
  std::unique_ptr<Program> StartKept() { return StartManager(kept_); }
  void KillManager(std::unique_ptr<Program>& manager) {
    manager->Signal(SIGKILL);
    ASSERT_EQ(manager->WaitExit(), 128 + SIGKILL);
  }
  // How many of the chain's blocks are restored, each of them right.
  static std::uint32_t Restored(testing::RawClient& client, std::uint32_t chain, std::uint32_t blocks) {
    static std::uint64_t grant = 1;
    ++grant;
    const auto restored = client.Restore(grant, Chain(chain, blocks), GrantId(grant));
    EXPECT_TRUE(restored) << ToString(restored.error());
    return restored.value_or(0);
  }

  std::filesystem::path pool_directory_;
  std::vector<std::string> kept_;
};

constexpr std::uint32_t kRankZero[] = {0};

TEST_F(PoolSurvival, AKilledManagersBlocksAreServedByTheNext) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  for (std::uint32_t chain = 1; chain <= 5; ++chain) ASSERT_EQ(client->Publish(Chain(chain, 8)).value(), 8U);
  const auto unfinished = client->Reserve(Chain(9, 4)).value();
  EXPECT_EQ(unfinished.entries.size(), 4U);
  client.reset();
  for (int life = 2; life <= 4; ++life) {
    KillManager(manager);
    manager = StartKept();
    ASSERT_TRUE(manager);
    EXPECT_TRUE(manager->WaitError("recovered life=" + std::to_string(life) + " components=40 ")) << manager->error();
    auto again = Open(Options());
    ASSERT_TRUE(again);
    for (std::uint32_t chain = 1; chain <= 5; ++chain) EXPECT_EQ(Restored(*again, chain, 8), 8U) << life;
    EXPECT_EQ(Restored(*again, 9, 4), 0U);
    EXPECT_EQ(Figure(*again, "orbitkv_pool_slots_writing"), 0);
    EXPECT_EQ(Figure(*again, "orbitkv_pool_outlives_manager"), 1);
    EXPECT_GT(Figure(*again, "orbitkv_recovery_seconds"), 0);
  }
  // An orderly end keeps them as well.
  manager->Signal(SIGTERM);
  ASSERT_EQ(manager->WaitExit(), 0);
  manager = StartKept();
  ASSERT_TRUE(manager);
  auto last = Open(Options());
  ASSERT_TRUE(last);
  EXPECT_EQ(Restored(*last, 3, 8), 8U);
}

TEST_F(PoolSurvival, OtherSettingsBeginWithAnEmptyPoolAndSayWhy) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  ASSERT_EQ(Open(Options())->Publish(Chain(1, 4)).value(), 4U);
  KillManager(manager);
  pool_ = "18MiB";
  manager = StartKept();
  ASSERT_TRUE(manager);
  EXPECT_TRUE(manager->WaitError("the pool had another size [then, now]")) << manager->error();
  EXPECT_EQ(Restored(*Open(Options()), 1, 4), 0U);
}

TEST_F(PoolSurvival, ADirectoryServesOneManager) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  const std::string first_socket = socket_;
  socket_ = directory_ / "run" / "other.sock";
  auto second = Launch(kept_);
  EXPECT_EQ(second->WaitExit(), 1);
  EXPECT_NE(second->error().find("another Manager (pid " + std::to_string(manager->pid()) + ")"), std::string::npos)
      << second->error();
  EXPECT_NE(second->error().find(pool_directory_), std::string::npos);
  socket_ = first_socket;
  EXPECT_TRUE(Open(Options()));
}

TEST_F(PoolSurvival, WithoutADirectoryNothingHasAName) {
  const auto named = [](const Program& manager) {
    std::ifstream maps("/proc/" + std::to_string(manager.pid()) + "/maps");
    std::vector<std::string> lines;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("/dev/shm/") != std::string::npos) lines.push_back(line);
    }
    return lines;
  };
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  EXPECT_FALSE(named(*manager).empty());
  KillManager(manager);
  manager = StartManager();
  ASSERT_TRUE(manager);
  ASSERT_EQ(Open(Options())->Publish(Chain(1, 4)).value(), 4U);
  EXPECT_EQ(Figure(*Open(Options()), "orbitkv_pool_outlives_manager"), 0);
  EXPECT_THAT(named(*manager), ::testing::IsEmpty());
}

// The engine's copies run on while the Manager is away and comes back: nobody else gets what it reads or writes.
TEST_F(PoolSurvival, SlotsOfALiveEngineWaitForIt) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  DrivenClient engine(directory_, socket_, "engine");
  ASSERT_EQ(engine.Save(1), "save ok");
  engine.Expect("ask 1", "ok");
  engine.Expect("answer", "found 4");
  engine.Expect("begin", "ok");
  engine.Expect("load", "ok");
  engine.Expect("await", "ok");
  engine.Expect("step 5", "ok");  // of twelve pages
  KillManager(manager);
  manager = StartKept();
  ASSERT_TRUE(manager);
  auto other = Open(Options("other"));
  ASSERT_TRUE(other);
  EXPECT_EQ(Figure(*other, "orbitkv_held_slots"), 4);
  EXPECT_EQ(Figure(*other, "orbitkv_earlier_sessions"), 2);
  // The pool is written from end to end, several times.
  for (std::uint32_t chain = 100; chain < 200; ++chain) ASSERT_GT(other->Publish(Chain(chain, 40)).value(), 0U);
  EXPECT_GT(Figure(*other, "orbitkv_cache_evictions_total"), 1000);
  EXPECT_EQ(engine.Do("finish"), "load ok");
  engine.Expect("release", "ok");
  // The engine connects again, and what its old sessions held is free.
  EXPECT_TRUE(Becomes(*other, "orbitkv_earlier_sessions", 0));
  EXPECT_EQ(Figure(*other, "orbitkv_held_slots"), 0);
  EXPECT_EQ(engine.Save(2), "save ok");
  EXPECT_EQ(engine.Load(2), "load ok");
}

TEST_F(PoolSurvival, AWriterThatComesBackLateSpoilsNothing) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  DrivenClient engine(directory_, socket_, "engine");
  engine.Expect("save 1", "ok");
  engine.Expect("await", "ok");
  engine.Expect("step 5", "ok");
  KillManager(manager);
  manager = StartKept();
  ASSERT_TRUE(manager);
  auto other = Open(Options("other"));
  ASSERT_TRUE(other);
  EXPECT_EQ(Figure(*other, "orbitkv_held_slots"), 4);
  std::uint32_t stored = 0;
  for (std::uint32_t chain = 100; chain < 120; ++chain) stored += other->Publish(Chain(chain, 8)).value();
  EXPECT_EQ(stored, 160U);
  (void)engine.Do("finish");  // writes the rest of its pages
  for (std::uint32_t chain = 100; chain < 120; ++chain) EXPECT_EQ(Restored(*other, chain, 8), 8U);
  EXPECT_EQ(Figure(*other, "orbitkv_restores_mismatch_total"), 0);
  EXPECT_TRUE(Becomes(*other, "orbitkv_held_slots", 0));
}

TEST_F(PoolSurvival, AnEngineThatDiedWithTheManagerHoldsNothing) {
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  for (const bool before : {true, false}) {
    DrivenClient engine(directory_, socket_, "engine");
    engine.Expect("save 1", "ok");
    engine.Expect("await", "ok");
    if (before) {
      engine.program().Signal(SIGKILL);
      EXPECT_EQ(engine.program().WaitExit(), 128 + SIGKILL);
    }
    KillManager(manager);
    manager = StartKept();
    ASSERT_TRUE(manager);
    auto watcher = Open(Options("other"));
    ASSERT_TRUE(watcher);
    EXPECT_EQ(Figure(*watcher, "orbitkv_held_slots"), before ? 0 : 4);
    if (!before) {
      engine.program().Stop();  // it can report nothing
      engine.program().Signal(SIGKILL);
    }
    EXPECT_TRUE(Becomes(*watcher, "orbitkv_held_slots", 0));
    EXPECT_EQ(Figure(*watcher, "orbitkv_pool_slots_writing"), 0);
  }
}

// Keeps descriptors as a service manager does, and passes them to the next Manager.
TEST_F(PoolSurvival, TheServiceManagersDescriptorsDoAsWell) {
  testing::ServiceKeeper keeper(directory_ / "notify");
  const auto start = [&] { return StartManager({}, [&] { keeper.PassOn(); }); };
  auto manager = start();
  ASSERT_TRUE(manager);
  ASSERT_EQ(Open(Options())->Publish(Chain(1, 8)).value(), 8U);
  keeper.Receive();
  EXPECT_TRUE(keeper.ready());
  ASSERT_EQ(keeper.kept().size(), 3U);
  KillManager(manager);
  manager = start();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  EXPECT_EQ(Restored(*client, 1, 8), 8U);
  EXPECT_EQ(Figure(*client, "orbitkv_pool_outlives_manager"), 1);
}

// An engine with the real client that saves and loads all the time and looks at every byte it gets.
class BusyEngine {
 public:
  explicit BusyEngine(const std::string& socket, std::uint64_t seed) : prng_(seed) {
    for (std::uint32_t i = 0; i < kLayers; ++i) memory_.emplace_back(2 * kBlocks * kPageBytes);
    client::ClientOptions options;
    options.socket_path = socket;
    options.instance = "busy" + std::to_string(seed);
    options.computation_digest.fill(std::byte{7});
    options.representation_digest.fill(std::byte{8});
    options.min_backoff_ms = 1;
    options.max_backoff_ms = 10;
    options.query_deadline_ms = 2000;
    client_ = client::CacheClient::Create(options).value();
    EXPECT_TRUE(client_->Start());
    client::Layout layout;
    for (auto& layer : memory_) layout.pages.layers.push_back({layer.data(), kPageBytes});
    layout.pages.page_bytes = kPageBytes;
    layout.pages.block_count = 2 * kBlocks;
    layout.block_tokens = 16;
    EXPECT_TRUE(client_->RegisterLayout(layout));
    thread_ = std::thread([this] { Run(); });
  }
  ~BusyEngine() {
    stop_ = true;
    thread_.join();
    EXPECT_TRUE(client_->Stop());
  }
  std::uint64_t loads() const { return loads_; }
  std::uint64_t wrong() const { return wrong_; }
  std::uint64_t Counter(const std::string& name) const {
    for (const auto& [known, value] : client_->counters()) {
      if (name == known) return value;
    }
    return 0;
  }

 private:
  static constexpr std::uint32_t kBlocks = 4;
  static constexpr std::uint32_t kLayers = 2;
  static constexpr std::uint64_t kPageBytes = 32U << 10U;
  static constexpr std::uint64_t kChains = 30;  // more than the pool holds

  static void Fill(const state::BlockHash& hash, std::uint32_t layer, std::span<std::byte> page) {
    Prng prng(hash.Prefix64() * 31 + layer);
    for (std::size_t at = 0; at < page.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.Next();
      std::memcpy(page.data() + at, &word, sizeof word);
    }
  }
  std::span<std::byte> Page(std::uint32_t layer, std::uint32_t block) {
    return {memory_[layer].data() + block * kPageBytes, kPageBytes};
  }
  bool Wait() {
    while (!stop_) {
      (void)os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(20'000'000));
      const auto done = client_->Poll();
      if (done && !done->empty()) return done->front().ok;
    }
    return false;
  }
  void Run() {
    while (!stop_) {
      const auto hashes = Chain(static_cast<std::uint32_t>(prng_.Below(kChains)) + 1, kBlocks);
      if (prng_.Below(2) == 0) {
        Save(hashes);
      } else {
        Load(hashes);
      }
    }
  }
  void Save(const std::vector<state::BlockHash>& hashes) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) Fill(hashes[block], layer, Page(layer, block));
    }
    const std::vector<std::uint32_t> ids = {0, 1, 2, 3};
    if (client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}})) Wait();
  }
  void Load(const std::vector<state::BlockHash>& hashes) {
    const std::string request = std::to_string(++requests_);
    const auto answer = client_->Ask({.request_id = request, .hashes = hashes}, 50'000'000);
    if (!answer || !*answer || (*answer)->found_blocks == 0) {
      (void)client_->CancelQuery(request);
      if (client_->state() != client::State::kUp) (void)client_->WaitUp(os::DeadlineAfter(20'000'000));
      return;
    }
    const std::uint32_t found = (*answer)->found_blocks;
    const auto incarnation = client_->incarnation();
    const auto grant = client_->BeginRestore((*answer)->lease, found, kRankZero);
    if (!grant || grant->is_none()) return;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t block = 0; block < found; ++block) ids.push_back(kBlocks + block);
    const auto job = client_->Restore(
        {.grant = *grant, .hashes = std::span(hashes).first(found), .block_ids = ids, .incarnation = incarnation});
    if (!job || !Wait()) {
      (void)client_->ReleaseGrant(*grant);
      return;
    }
    ++loads_;
    std::vector<std::byte> expected(kPageBytes);
    for (std::uint32_t block = 0; block < found; ++block) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
        Fill(hashes[block], layer, expected);
        if (!std::ranges::equal(expected, Page(layer, kBlocks + block))) ++wrong_;
      }
    }
  }

  Prng prng_;
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<client::CacheClient> client_;
  std::uint64_t requests_ = 0;
  std::atomic<std::uint64_t> loads_{0};
  std::atomic<std::uint64_t> wrong_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(PoolSurvival, ManyKillsUnderLoadAndNeverAWrongByte) {
  const std::uint64_t kills = testing::Effort(20, 200);
  pool_ = "6MiB";
  auto manager = StartKept();
  ASSERT_TRUE(manager);
  BusyEngine engine(socket_, 1);
  BusyEngine other(socket_, 2);
  Prng prng(testing::Seed());
  std::uint64_t kept = 0;
  for (std::uint64_t kill = 0; kill < kills; ++kill) {
    // Some loads into its life, at no particular point of the next one.
    const std::uint64_t loads = engine.loads() + other.loads() + 2 + prng.Below(20);
    ASSERT_TRUE(Eventually([&] { return engine.loads() + other.loads() >= loads; })) << manager->error();
    os::WaitReadable(-1, os::DeadlineAfter(prng.Below(3'000'000)));
    ASSERT_NO_FATAL_FAILURE(KillManager(manager));
    manager = StartKept();
    ASSERT_TRUE(manager);
    EXPECT_TRUE(manager->WaitError("recovered life="));
    kept += manager->error().find("components=0 ") == std::string::npos ? 1 : 0;
    ASSERT_EQ(engine.wrong() + other.wrong(), 0U) << "after " << kill + 1 << " kills";
  }
  EXPECT_EQ(kept, kills) << "each life begins with what the last one had";
  EXPECT_EQ(engine.Counter("pools_kept") + other.Counter("pools_kept") > 0, true);
  auto watcher = Open(Options("watcher"));
  ASSERT_TRUE(watcher);
  EXPECT_TRUE(Becomes(*watcher, "orbitkv_earlier_sessions", 0));
  EXPECT_EQ(engine.wrong() + other.wrong(), 0U);
}

}  // namespace
}  // namespace orbitkv::integration
