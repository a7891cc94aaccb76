// What the client's tests share: a socket in a directory of its own, pages with known bytes, a client with short
// deadlines, and waits that look at the state instead of sleeping.
// Owns: the directory, the pages. Threads: the test's. Blocks: the waits, ten seconds at most.
#pragma once

#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/client/cache_client.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/fake_manager.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::client {

using testing::FakeManager;

inline constexpr std::uint64_t kSecondNs = 1'000'000'000;

// The engine's pages: `layers` arrays of `blocks` pages.
class Pages {
 public:
  Pages(std::uint32_t layers, std::uint32_t blocks, std::uint64_t page_bytes)
      : blocks_(blocks), page_bytes_(page_bytes) {
    for (std::uint32_t i = 0; i < layers; ++i) memory_.emplace_back(blocks * page_bytes);
  }
  void Fill(std::uint64_t seed) {
    Prng prng(seed);
    for (auto& layer : memory_) {
      for (std::byte& b : layer) b = static_cast<std::byte>(prng.Next());
    }
  }
  void Clear() {
    for (auto& layer : memory_) std::ranges::fill(layer, std::byte{0});
  }
  client::Layout Layout() {
    client::Layout layout;
    for (auto& layer : memory_) layout.pages.layers.push_back({layer.data(), page_bytes_});
    layout.pages.page_bytes = page_bytes_;
    layout.pages.block_count = blocks_;
    layout.block_tokens = 16;
    return layout;
  }
  std::uint64_t page_bytes() const { return page_bytes_; }
  std::vector<std::byte> Block(std::uint32_t block) const {
    std::vector<std::byte> bytes;
    for (const auto& layer : memory_) {
      const auto page = std::span(layer).subspan(block * page_bytes_, page_bytes_);
      bytes.insert(bytes.end(), page.begin(), page.end());
    }
    return bytes;
  }

 private:
  std::uint32_t blocks_;
  std::uint64_t page_bytes_;
  std::vector<std::vector<std::byte>> memory_;
};

inline std::vector<state::BlockHash> Hashes(std::size_t count, std::uint64_t seed = 1) {
  Prng prng(seed);
  std::vector<state::BlockHash> hashes(count);
  for (auto& hash : hashes) {
    for (std::byte& b : hash.bytes) b = static_cast<std::byte>(prng.Next());
  }
  return hashes;
}

inline std::vector<std::uint32_t> Ids(std::uint32_t count, std::uint32_t first = 0) {
  std::vector<std::uint32_t> ids(count);
  for (std::uint32_t i = 0; i < count; ++i) ids[i] = first + i;
  return ids;
}

class ClientTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRankZero[] = {0};

  ClientTest() {
    options_.socket_path = directory_ / "manager.sock";
    options_.instance = "engine";
    options_.role = Role::kBoth;
    options_.computation_digest.fill(std::byte{1});
    options_.representation_digest.fill(std::byte{2});
    options_.name = "test";
    // Long enough for a machine under a sanitizer; tests of a missed deadline set their own.
    options_.query_deadline_ms = 20'000;
    options_.call_deadline_ms = 20'000;
    options_.load_deadline_ms = 20'000;
    options_.min_backoff_ms = 1;
    options_.max_backoff_ms = 10;
  }
  ~ClientTest() override {
    client_.reset();
    manager_.reset();
  }

  void StartManager(FakeManager::Options options = {}) {
    options.socket_path = options_.socket_path;
    manager_ = std::make_unique<FakeManager>(options);
    ASSERT_TRUE(manager_->Start());
  }
  void StartClient(std::unique_ptr<copy::CopyEngine> engine = nullptr) {
    client_ = CacheClient::Create(options_, std::move(engine)).value();
    ASSERT_TRUE(client_->Start());
  }
  void Connect(std::unique_ptr<copy::CopyEngine> engine = nullptr) {
    StartClient(std::move(engine));
    if (options_.moves_bytes()) {
      ASSERT_TRUE(client_->RegisterLayout(pages_.Layout()));
    }
    ASSERT_TRUE(client_->WaitUp(os::DeadlineAfter(10 * kSecondNs)).value());
  }

  // The completion of this job; other completions are kept for their own calls.
  std::optional<Completion> Finished(JobId job) {
    const std::uint64_t deadline = os::DeadlineAfter(10 * kSecondNs);
    for (;;) {
      std::vector<Completion> polled = client_->Poll().value();
      std::ranges::move(polled, std::back_inserter(completions_));
      for (auto it = completions_.begin(); it != completions_.end(); ++it) {
        if (it->job != job) continue;
        Completion found = std::move(*it);
        completions_.erase(it);
        return found;
      }
      if (!os::WaitReadable(client_->completion_fd(), deadline)) return std::nullopt;
    }
  }
  // Looks until the condition holds, ten seconds at most.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    const std::uint64_t deadline = os::DeadlineAfter(10 * kSecondNs);
    while (!condition()) {
      if (os::MonotonicNs() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool WaitForState(State state) {
    return Eventually([&] { return client_->state() == state; });
  }
  std::uint64_t Counter(const std::string& name) {
    for (const auto& [key, value] : client_->counters()) {
      if (key == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }
  Completion Publish(std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> ids) {
    const auto job = client_->Publish({.hashes = hashes, .block_ids = ids, .parent = {}});
    EXPECT_TRUE(job) << ToString(job.error());
    return Finished(job.value()).value();
  }
  Answer Ask(std::span<const state::BlockHash> hashes, std::string_view request = "request") {
    const auto answer = client_->Ask({.request_id = request, .hashes = hashes}, 10 * kSecondNs).value();
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(Answer());
  }
  GrantId Begin(const Answer& answer) {
    return client_->BeginRestore(answer.lease, answer.found_blocks, kRankZero).value();
  }
  Result<JobId> StartRestore(GrantId grant, std::span<const state::BlockHash> hashes,
                             std::span<const std::uint32_t> ids) {
    return client_->Restore({.grant = grant, .hashes = hashes, .block_ids = ids, .incarnation = std::nullopt});
  }
  static std::vector<std::uint8_t> Outcomes(std::size_t count, Outcome outcome) {
    return std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(outcome));
  }

  ClientOptions options_;
  Pages pages_{3, 32, 4096};
  const testing::TemporaryDirectory directory_;
  std::unique_ptr<FakeManager> manager_;
  std::unique_ptr<CacheClient> client_;
  std::vector<Completion> completions_;
};

}  // namespace orbitkv::client
