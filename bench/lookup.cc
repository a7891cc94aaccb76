#include "lookup.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <unistd.h>
#include <vector>

#include "child.h"

#include "orbitkv/base/check.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/client/cache_client.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kBlocks = 256;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSecondNs = 1'000'000'000;

class Subject {
 public:
  explicit Subject(const std::string& socket_path) : pages_(kBlocks * kPageBytes), hashes_(kBlocks) {
    Prng prng(11);
    for (auto& hash : hashes_) {
      for (auto& byte : hash.bytes) byte = static_cast<std::byte>(prng.Next());
    }
    client::ClientOptions options;
    options.socket_path = socket_path;
    options.instance = "bench-lookup";
    options.name = "orbitkv-bench";
    options.computation_digest[0] = std::byte{1};
    options.representation_digest[0] = std::byte{2};
    auto client = client::CacheClient::Create(options);
    ORBITKV_CHECK(client.has_value());
    client_ = std::move(*client);
    client::Layout layout;
    layout.pages.layers = {{pages_.data(), kPageBytes}};
    layout.pages.page_bytes = kPageBytes;
    layout.pages.block_count = kBlocks;
    layout.block_tokens = 32;
    ORBITKV_CHECK(client_->RegisterLayout(layout).has_value());
    ORBITKV_CHECK(client_->Start().has_value());
    ORBITKV_CHECK(client_->WaitUp(os::MonotonicNs() + 5 * kSecondNs).value_or(false));
    PublishAll();
  }

  // One look-up as a scheduler makes it: a request id of its own each time, the lease given back.
  double Microseconds() {
    const std::string request_id = "request-" + std::to_string(++sequence_);
    const std::uint64_t start = os::MonotonicNs();
    const auto answer = client_->Ask({.request_id = request_id, .hashes = hashes_}, kSecondNs);
    const double elapsed = static_cast<double>(os::MonotonicNs() - start) / 1e3;
    ORBITKV_CHECK(answer.has_value() && answer->has_value() && (*answer)->found_blocks == kBlocks);
    ORBITKV_CHECK(client_->ReleaseLease((*answer)->lease).has_value());
    return elapsed;
  }

 private:
  void PublishAll() {
    std::vector<std::uint32_t> ids(kBlocks);
    std::iota(ids.begin(), ids.end(), 0);
    client::PublishRequest request;
    request.hashes = hashes_;
    request.block_ids = ids;
    const auto job = client_->Publish(request);
    ORBITKV_CHECK(job.has_value());
    const std::uint64_t deadline = os::MonotonicNs() + 10 * kSecondNs;
    for (;;) {
      const auto completions = client_->Poll();
      ORBITKV_CHECK(completions.has_value());
      if (completions->empty()) {
        ORBITKV_CHECK(os::WaitReadable(client_->completion_fd(), deadline));
        continue;
      }
      ORBITKV_CHECK(completions->front().ok);
      return;
    }
  }

  std::vector<std::byte> pages_;
  std::vector<state::BlockHash> hashes_;
  std::unique_ptr<client::CacheClient> client_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

void MeasureLookup(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/manager.sock";
  const Child manager = Child::Exec(
      1, {manager_program, "--socket", socket_path, "--pool-bytes", "256MiB", "--log-level", "error"}, "ready");
  ORBITKV_CHECK(os::PinThread(0).has_value());
  Subject subject(socket_path);
  std::vector<double> hot;
  std::vector<double> asleep;
  for (int call = -200; call < 10'000; ++call) {
    const double sample = subject.Microseconds();
    if (call >= 0) hot.push_back(sample);
  }
  for (int call = 0; call < 2000; ++call) {
    usleep(300);
    asleep.push_back(subject.Microseconds());
  }
  report.Add({"query.256_hot_p50_us", Quantile(hot, 0.5), "us", "target", 20, hot.size()});
  report.Add({"query.256_asleep_p50_us", Quantile(asleep, 0.5), "us", "", 0, asleep.size()});
}

}  // namespace orbitkv::bench
