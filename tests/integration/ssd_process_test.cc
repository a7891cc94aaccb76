// Managers with an SSD store that are killed, started again, refused, and looked into.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include "manager_world.h"

#include "orbitkv/wire/query.h"

namespace orbitkv::integration {
namespace {

using testing::Chain;
using ::testing::HasSubstr;
using testing::RawClient;

class SsdProcess : public ManagerWorld {
 protected:
  void SetUp() override {
    ManagerWorld::SetUp();
    file_ = (directory_ / "store").string();
  }
  std::unique_ptr<Program> StartWithSsd() { return StartManager({"--ssd-path", file_, "--ssd-bytes", "32MiB"}); }
  void KillManager(Program& manager) {
    manager.Signal(SIGKILL);
    ASSERT_EQ(manager.WaitExit(), 128 + SIGKILL);
  }
  // Has the Manager load the chain from behind the pool; how many blocks of it were restored, each of them right.
  std::uint32_t Restore(RawClient& client, const std::vector<state::BlockHash>& chain) {
    const std::uint64_t request = ++request_;
    const wire::QueryHeader header{
        .request_key_hi = 9, .request_key_lo = request, .wait_ns = kPatienceNs, .mode = wire::QueryMode::kWarmUp};
    const auto asked = client.Call(wire::Command::kQuerySubmit, request, 1, wire::EncodeQuery(header, chain));
    EXPECT_TRUE(asked) << ToString(asked.error());
    EXPECT_TRUE(
        Eventually([&] { return Figure(client, "orbitkv_warm_ups") == 0 && Figure(client, "orbitkv_loads") == 0; }));
    const auto restored = client.Restore(request, chain, GrantId(request));
    EXPECT_TRUE(restored) << ToString(restored.error());
    return restored.value_or(0);
  }

  std::string file_;
  std::uint64_t request_ = 100;
};

TEST_F(SsdProcess, BlocksSurviveAKilledManager) {
  auto manager = StartWithSsd();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto chain = Chain(1, 64);
  ASSERT_EQ(client->Publish(chain).value(), 64U);
  ASSERT_TRUE(Becomes(*client, "orbitkv_saves_ok_total", 64));
  KillManager(*manager);

  manager = StartWithSsd();
  ASSERT_TRUE(manager);
  client = Open(Options());
  ASSERT_TRUE(client);
  EXPECT_EQ(Figure(*client, "orbitkv_blocks_resident"), 0);
  EXPECT_EQ(Restore(*client, chain), 64U);
  EXPECT_EQ(Figure(*client, "orbitkv_loads_ok_total"), 64);
  // What came from there is not written there again.
  EXPECT_EQ(Figure(*client, "orbitkv_saves_ok_total"), 0);
  KillManager(*manager);
  EXPECT_EQ(std::filesystem::file_size(file_), std::uint64_t{32} << 20U);
}

TEST_F(SsdProcess, BlocksThatThePoolHadNoRoomForComeBack) {
  pool_ = "4MiB";
  auto manager = StartWithSsd();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  // 24 chains of 64 blocks of 8 KiB: three times the pool.
  for (std::uint32_t chain = 1; chain <= 24; ++chain) {
    ASSERT_TRUE(client->Publish(Chain(chain, 64)));
    ASSERT_TRUE(Eventually(
        [&] { return Figure(*client, "orbitkv_saves_in_line") == 0 && Figure(*client, "orbitkv_saves") == 0; }));
  }
  std::uint32_t restored = 0;
  for (std::uint32_t chain = 1; chain <= 24; ++chain) restored += Restore(*client, Chain(chain, 64));
  EXPECT_EQ(restored, 24U * 64U);
  EXPECT_GT(Figure(*client, "orbitkv_loads_ok_total"), 0);
}

// Eight segments of 1 MiB. The first one holds what is used all the while, but only from the pool: the store takes it
// for cold and gives it up for new records.
TEST_F(SsdProcess, WhatTheStoreGaveUpWhileItWasUsedIsSavedAgain) {
  pool_ = "64MiB";
  auto manager = StartManager({"--ssd-path", file_, "--ssd-bytes", "8MiB"});
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  const auto used = Chain(1, 64);
  ASSERT_EQ(client->Publish(used).value(), 64U);
  std::uint32_t chains = 1;
  std::uint64_t request = 1;
  while (Figure(*client, "orbitkv_saves_lost_total") == 0) {
    ASSERT_EQ(client->Restore(request, used, GrantId(request)).value(), 64U);
    ++request;
    ASSERT_LT(chains, 40U) << "nothing is given up";
    ASSERT_EQ(client->Publish(Chain(++chains, 64)).value(), 64U);
    ASSERT_TRUE(Eventually([&] { return Figure(*client, "orbitkv_saves_ok_total") >= 64.0 * chains; }));
  }
  // Only what was used meanwhile goes there a second time.
  EXPECT_TRUE(Becomes(*client, "orbitkv_saves_ok_total", 64.0 * (chains + 1)));
  KillManager(*manager);

  manager = StartManager({"--ssd-path", file_, "--ssd-bytes", "8MiB"});
  ASSERT_TRUE(manager);
  client = Open(Options());
  ASSERT_TRUE(client);
  EXPECT_EQ(Restore(*client, used), 64U);
}

TEST_F(SsdProcess, KillsInTheMiddleOfSavesNeverGiveAWrongByte) {
  const std::uint32_t lives = 6;
  std::uint32_t restored = 0;
  for (std::uint32_t life = 0; life < lives; ++life) {
    auto manager = StartWithSsd();
    ASSERT_TRUE(manager);
    auto client = Open(Options());
    ASSERT_TRUE(client);
    // Restore compares every byte; how many blocks there are depends on when the kill came.
    for (std::uint32_t chain = 1; chain <= life * 3; ++chain) restored += Restore(*client, Chain(chain, 40));
    for (std::uint32_t chain = life * 3 + 1; chain <= life * 3 + 3; ++chain) {
      ASSERT_TRUE(client->Publish(Chain(chain, 40)));
    }
    ASSERT_TRUE(Eventually([&] { return Figure(*client, "orbitkv_saves_ok_total") >= 20 + life * 15; }));
    KillManager(*manager);
  }
  EXPECT_GE(restored, 20U);
}

TEST_F(SsdProcess, ASecondManagerIsRefusedAndNamesTheFirst) {
  auto manager = StartWithSsd();
  ASSERT_TRUE(manager);
  Program second(directory_, {Command()[0], "--socket", (directory_ / "run" / "other.sock").string(), "--pool-bytes",
                              "16MiB", "--ssd-path", file_, "--ssd-bytes", "32MiB", "--lock-wait-ms", "100"});
  EXPECT_EQ(second.WaitExit(), 2);
  EXPECT_THAT(second.error(), HasSubstr("is in use by process " + std::to_string(manager->pid())));
}

TEST_F(SsdProcess, TheToolDescribesAndChecksAStore) {
  auto manager = StartWithSsd();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  ASSERT_EQ(client->Publish(Chain(1, 64)).value(), 64U);
  ASSERT_EQ(client->Publish(Chain(2, 64)).value(), 64U);
  ASSERT_TRUE(Becomes(*client, "orbitkv_saves_ok_total", 128));
  KillManager(*manager);
  // The next life seals what this one left open.
  manager = StartWithSsd();
  ASSERT_TRUE(manager);
  auto info = Tool({"store", "info", file_});
  EXPECT_EQ(info->WaitExit(), 0) << info->error();
  EXPECT_THAT(info->output(), HasSubstr("records 128 in sealed segments"));
  EXPECT_THAT(info->output(), HasSubstr("created"));
  KillManager(*manager);

  auto check = Tool({"store", "check", file_});
  EXPECT_EQ(check->WaitExit(), 0) << check->error();
  EXPECT_THAT(check->output(), HasSubstr("every sealed record matches its checksum"));
  {
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 4096 + 2000);  // in the first record's pages
    file.put('\x55');
    file.put('\x55');
  }
  auto damaged = Tool({"store", "check", file_});
  EXPECT_EQ(damaged->WaitExit(), 1);
  EXPECT_THAT(damaged->output(), HasSubstr("damaged records 1"));
  auto absent = Tool({"store", "check", file_ + ".none"});
  EXPECT_EQ(absent->WaitExit(), 2);
  EXPECT_THAT(absent->error(), HasSubstr(file_ + ".none"));
}

}  // namespace
}  // namespace orbitkv::integration
