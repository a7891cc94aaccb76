// Requests and answers far larger than a slot of the descriptor arena, from one end to the other.
#include "manager_world.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;

constexpr std::uint32_t kBlocksPerReserve = 4096;
constexpr std::uint32_t kReserves = 25;
constexpr std::uint32_t kHashes = 100'000;

class LargeRequests : public integration::ManagerWorld {};

TEST_F(LargeRequests, FourThousandBlocksPerPublishAndAHundredThousandPerQuery) {
  pool_ = "256MiB";
  auto manager = StartManager({"--max-slots", "131072"});
  ASSERT_TRUE(manager);
  auto options = Options();
  options.layers = 1;
  options.page_bytes = 64;
  auto client = Open(options);
  ASSERT_TRUE(client);
  ASSERT_TRUE(Becomes(*client, "orbitkv_pool_reserved_bytes", 256 << 20));
  ASSERT_GT(kBlocksPerReserve * sizeof(state::BlockHash), wire::SessionGeometry{}.slot_bytes);
  const auto hashes = Chain(1, kReserves * kBlocksPerReserve);
  for (std::uint32_t i = 0; i < kReserves; ++i) {
    const auto stored =
        client->Publish(std::span(hashes).subspan(std::size_t{i} * kBlocksPerReserve, kBlocksPerReserve));
    ASSERT_TRUE(stored) << ToString(stored.error());
    ASSERT_EQ(*stored, kBlocksPerReserve);
  }
  EXPECT_EQ(Figure(*client, "orbitkv_blocks_resident"), kReserves * kBlocksPerReserve);
  // Finds all of them, fetches a plan of as many entries, and looks at every byte.
  const auto restored = client->Restore(1, std::span(hashes).first(kHashes), GrantId(1));
  ASSERT_TRUE(restored) << ToString(restored.error());
  EXPECT_EQ(*restored, kHashes);
  // A miss at the very end is found as well.
  auto longer = hashes;
  longer.back() = Chain(2, 1).front();
  EXPECT_EQ(client->Query(2, longer).value().found, kReserves * kBlocksPerReserve - 1);
}

}  // namespace
}  // namespace orbitkv::hostile
