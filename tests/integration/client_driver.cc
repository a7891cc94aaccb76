// An engine process with the real client, moved by lines on standard input; each is answered by one line. Its device
// copies a page only when it is told to, so that whoever drives it can stop or kill it at any point of a copy.
//   client_driver SOCKET INSTANCE DEADLINE_MS
// One save and one load at most are under way: a save reads the blocks 0 to 3, a load writes the blocks 4 to 7. The
// bytes of a block follow from its hash.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/client/cache_client.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/fake_device.h"
#include "orbitkv/testing/raw_client.h"

namespace orbitkv::integration {
namespace {

constexpr std::uint32_t kBlocks = 4;
constexpr std::uint32_t kLayers = 3;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kPatienceNs = 60'000'000'000;
constexpr std::uint64_t kStepNs = 2'000'000;

class Driver {
 public:
  Driver(const std::string& socket, const std::string& instance, std::uint64_t deadline_ms) {
    for (std::uint32_t i = 0; i < kLayers; ++i) memory_.emplace_back(2 * kBlocks * kPageBytes);
    client::ClientOptions options;
    options.socket_path = socket;
    options.instance = instance;
    options.name = instance;
    options.computation_digest.fill(std::byte{7});
    options.representation_digest.fill(std::byte{8});
    options.query_deadline_ms = deadline_ms;
    options.call_deadline_ms = deadline_ms;
    options.load_deadline_ms = deadline_ms;
    options.connect_deadline_ms = deadline_ms;
    options.min_backoff_ms = 1;
    options.max_backoff_ms = 10;
    auto device = std::make_unique<doubles::FakeDeviceEngine>();
    device_ = device.get();
    client_ = client::CacheClient::Create(options, std::move(device)).value();
    ORBITKV_CHECK(client_->Start().has_value());
    client::Layout layout;
    for (auto& layer : memory_) layout.pages.layers.push_back({layer.data(), kPageBytes});
    layout.pages.page_bytes = kPageBytes;
    layout.pages.block_count = 2 * kBlocks;
    layout.block_tokens = 16;
    ORBITKV_CHECK(client_->RegisterLayout(layout).has_value());
  }

  std::string Do(const std::string& word, std::uint32_t number) {
    if (word == "up") return client_->WaitUp(os::DeadlineAfter(kPatienceNs)).value() ? "up" : "down";
    if (word == "save") return Save(number);
    if (word == "ask") return Ask(number);
    if (word == "answer") return AwaitAnswer();
    if (word == "begin") return Begin();
    if (word == "load") return Load();
    if (word == "await") return Await();
    if (word == "step") return Step(number);
    if (word == "finish") return Finish();
    if (word == "release") return Release();
    return "unknown";
  }

 private:
  std::vector<std::byte> BytesOf(const state::BlockHash& hash) const {
    std::uint64_t seed = 0;
    for (std::size_t i = 0; i < sizeof seed; ++i) seed = seed << 8U | std::to_integer<std::uint64_t>(hash.bytes.at(i));
    Prng prng(seed);
    std::vector<std::byte> bytes(kLayers * kPageBytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(prng.Next());
    return bytes;
  }
  std::byte* Page(std::uint32_t layer, std::uint32_t block) { return memory_[layer].data() + block * kPageBytes; }
  static std::vector<std::uint32_t> Ids(std::uint32_t first, std::size_t count) {
    std::vector<std::uint32_t> ids(count);
    for (std::uint32_t i = 0; i < count; ++i) ids[i] = first + i;
    return ids;
  }

  std::string Save(std::uint32_t chain) {
    const auto hashes = testing::Chain(chain, kBlocks);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      const auto bytes = BytesOf(hashes[block]);
      for (std::uint32_t i = 0; i < kLayers; ++i) {
        std::ranges::copy(std::span(bytes).subspan(i * kPageBytes, kPageBytes), Page(i, block));
      }
    }
    const auto job = client_->Publish({.hashes = hashes, .block_ids = Ids(0, kBlocks), .parent = {}});
    jobs_ += job ? 1 : 0;
    return job ? "ok" : job.error().text;
  }
  Result<std::optional<client::Answer>> AskOnce(std::uint64_t wait_ns) {
    return client_->Ask({.request_id = "request", .hashes = hashes_}, wait_ns);
  }
  std::string Ask(std::uint32_t chain) {
    hashes_ = testing::Chain(chain, kBlocks);
    answer_ = AskOnce(0).value();
    return "ok";
  }
  std::string AwaitAnswer() {
    while (!answer_) answer_ = AskOnce(100 * kStepNs).value();
    lease_ = answer_->lease;
    return "found " + std::to_string(answer_->found_blocks);
  }
  std::string Begin() {
    const std::uint32_t ranks[] = {0};
    grant_ = client_->BeginRestore(lease_, answer_->found_blocks, ranks).value();
    lease_ = {};
    return grant_.is_none() ? "not begun" : "ok";
  }
  std::string Load() {
    loaded_ = std::span(hashes_).first(answer_->found_blocks);
    for (auto& layer : memory_) std::fill_n(layer.begin() + kBlocks * kPageBytes, kBlocks * kPageBytes, std::byte{0});
    const auto job = client_->Restore({.grant = grant_,
                                       .hashes = loaded_,
                                       .block_ids = Ids(kBlocks, loaded_.size()),
                                       .incarnation = client_->incarnation()});
    jobs_ += job ? 1 : 0;
    return job ? "ok" : job.error().text;
  }
  // Until the device has a job; a job that ends without one never gets there.
  std::string Await() {
    const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
    while (device_->idle() && os::MonotonicNs() < deadline) {
      (void)os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(kStepNs));
    }
    return device_->idle() ? "idle" : "ok";
  }
  std::string Step(std::uint32_t steps) {
    for (std::uint32_t i = 0; i < steps; ++i) {
      if (!device_->Step()) return "idle";
    }
    return "ok";
  }
  // Every job's end, in the order of their ends.
  std::string Finish() {
    std::string ends;
    const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
    while (jobs_ > 0 && os::MonotonicNs() < deadline) {
      device_->RunUntilIdle();
      (void)os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(kStepNs));
      const auto polled = client_->Poll();
      for (const client::Completion& done : *polled) {
        --jobs_;
        const bool load = done.kind == client::JobKind::kRestore;
        ends += ends.empty() ? "" : ", ";
        ends += load ? "load " : "save ";
        ends += !done.ok ? "failed" : !load || Right() ? "ok" : "WRONG";
      }
    }
    return jobs_ == 0 ? ends : "a job without an end";
  }
  bool Right() {
    for (std::uint32_t block = 0; block < loaded_.size(); ++block) {
      const auto bytes = BytesOf(loaded_[block]);
      for (std::uint32_t i = 0; i < kLayers; ++i) {
        const auto page = std::span(bytes).subspan(i * kPageBytes, kPageBytes);
        if (!std::ranges::equal(page, std::span(Page(i, kBlocks + block), kPageBytes))) return false;
      }
    }
    return true;
  }
  // What an engine does for a request that has ended.
  std::string Release() {
    if (!answer_) (void)client_->CancelQuery("request");
    (void)client_->ReleaseLease(lease_);
    (void)client_->ReleaseGrant(grant_);
    lease_ = {};
    grant_ = {};
    return "ok";
  }

  std::vector<std::vector<std::byte>> memory_;
  doubles::FakeDeviceEngine* device_ = nullptr;  // the client's
  std::unique_ptr<client::CacheClient> client_;
  std::vector<state::BlockHash> hashes_;  // of the last question
  std::span<const state::BlockHash> loaded_;
  std::optional<client::Answer> answer_;
  client::LeaseHandle lease_;
  GrantId grant_;
  int jobs_ = 0;  // without an end so far
};

}  // namespace
}  // namespace orbitkv::integration

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  orbitkv::integration::Driver driver(argv[1], argv[2], std::stoull(argv[3]));
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string word;
    std::uint32_t number = 0;
    words >> word >> number;
    std::cout << driver.Do(word, number) << std::endl;
  }
  return 0;
}
