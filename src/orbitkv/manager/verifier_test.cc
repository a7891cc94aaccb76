#include "orbitkv/manager/verifier.h"

#include <array>
#include <chrono>
#include <gtest/gtest.h>
#include <map>
#include <vector>

#include "orbitkv/copy/copy_hash.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint32_t kLayers = 3;
constexpr std::uint64_t kPageBytes = 2048;
constexpr std::uint64_t kOffset = 512;

class VerifierTest : public ::testing::Test {
 protected:
  VerifierTest() : pool_(16384) {
    job_.id = 7;
    job_.offset = kOffset;
    job_.slot_bytes = static_cast<std::uint32_t>(copy::SlotBytes(kLayers, kPageBytes));
    job_.shape = {kLayers, kPageBytes};
    job_.identity.group = 1;
    job_.identity.hash.bytes[0] = std::byte{9};
    std::array<std::uint64_t, kLayers> list{};
    for (std::size_t i = 0; i < kLayers * kPageBytes; ++i) pool_[kOffset + i] = static_cast<std::byte>(i * 7);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      list[layer] = copy::HashOnly(pool_.data() + kOffset + layer * kPageBytes, kPageBytes);
    }
    copy::WriteList(pool_.data() + kOffset, kPageBytes, list);
    job_.slot_checksum = copy::SlotChecksum(job_.identity, copy::PayloadBytes(kLayers, kPageBytes), list);
  }

  std::vector<std::byte> pool_;
  Verifier::Job job_;
};

TEST_F(VerifierTest, EveryByteAndTheIdentityCount) {
  EXPECT_TRUE(Verifier::Equal(pool_, job_));
  for (const std::size_t at : {std::size_t{0}, std::size_t{kPageBytes}, std::size_t{kLayers * kPageBytes}}) {
    pool_[kOffset + at] ^= std::byte{1};
    EXPECT_FALSE(Verifier::Equal(pool_, job_)) << at;
    pool_[kOffset + at] ^= std::byte{1};
  }
  job_.identity.shard = 1;
  EXPECT_FALSE(Verifier::Equal(pool_, job_));
}

TEST_F(VerifierTest, RangesOutsideThePoolAreDifferent) {
  for (const std::uint64_t offset : {std::uint64_t{16384}, ~std::uint64_t{0}, std::uint64_t{16384} - 100}) {
    job_.offset = offset;
    EXPECT_FALSE(Verifier::Equal(pool_, job_));
  }
  job_.offset = kOffset;
  job_.slot_bytes -= 1;
  EXPECT_FALSE(Verifier::Equal(pool_, job_));
}

TEST_F(VerifierTest, GivesOneVerdictPerJobAndTakesNoneAfterStop) {
  Mutex mutex;
  CondVar changed;
  std::map<std::uint64_t, bool> verdicts;
  Verifier verifier(pool_, [&](std::uint64_t id, bool equal) {
    MutexLock lock(mutex);
    EXPECT_TRUE(verdicts.emplace(id, equal).second);
    changed.NotifyAll();
  });
  ASSERT_TRUE(verifier.Start());
  ASSERT_TRUE(verifier.Submit(job_));
  job_.id = 8;
  job_.slot_checksum ^= 1;
  ASSERT_TRUE(verifier.Submit(job_));
  {
    MutexLock lock(mutex);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (verdicts.size() < 2 && std::chrono::steady_clock::now() < deadline) changed.WaitUntil(mutex, deadline);
  }
  verifier.Stop();
  EXPECT_EQ(verdicts, (std::map<std::uint64_t, bool>{{7, true}, {8, false}}));
  EXPECT_FALSE(verifier.Submit(job_));
}

TEST_F(VerifierTest, QueueIsBounded) {
  Verifier verifier(pool_, [](std::uint64_t, bool) {});
  for (std::size_t i = 0; i < Verifier::kMaxQueued; ++i) EXPECT_TRUE(verifier.Submit(job_));
  EXPECT_FALSE(verifier.Submit(job_));
}

}  // namespace
}  // namespace orbitkv::manager
