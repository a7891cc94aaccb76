#include "subjects.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

class Ping final : public RoundTrip {
 public:
  explicit Ping(const std::string& socket_path) {
    channel::ConnectOptions options;
    options.socket_path = socket_path;
    options.name = "orbitkv-bench";
    options.deadline_ns = os::MonotonicNs() + 5'000'000'000;
    auto session = channel::ClientSession::Connect(options);
    ORBITKV_CHECK(session.has_value());
    session_ = std::move(*session);
  }
  void Call() override {
    channel::Request request;
    request.command = channel::Command::kPing;
    request.scalar0 = ++sequence_;
    request.deadline_ns = os::MonotonicNs() + 2'000'000'000;
    const auto id = session_->Post(request);
    ORBITKV_CHECK(id.has_value());
    ORBITKV_CHECK(session_->WaitInto(*id, request.deadline_ns, &answer_).has_value());
    ORBITKV_CHECK(answer_.ok() && answer_.scalar0 == sequence_);
  }

 private:
  std::unique_ptr<channel::ClientSession> session_;
  channel::Answer answer_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<RoundTrip> MakePing(const std::string& socket_path) { return std::make_unique<Ping>(socket_path); }

std::vector<state::BlockHash> MakeHashes(std::uint64_t seed, std::size_t count) {
  std::vector<state::BlockHash> hashes(count);
  Prng prng(seed);
  for (auto& hash : hashes) {
    for (auto& byte : hash.bytes) byte = static_cast<std::byte>(prng.Next());
  }
  return hashes;
}

BenchClient::BenchClient(const std::string& socket_path, const std::string& instance, Shape shape)
    : instance_(instance),
      page_bytes_(shape.page_bytes),
      pages_(shape.blocks * shape.page_bytes),
      layout_blocks_(shape.blocks) {
  for (std::uint32_t block = 0; block < shape.blocks; ++block) FirstWord(block) = block + 1;
  client::ClientOptions options;
  options.socket_path = socket_path;
  options.instance = instance;
  options.name = "orbitkv-bench";
  options.computation_digest[0] = std::byte{1};
  options.representation_digest[0] = std::byte{2};
  options.query_deadline_ms = shape.query_deadline_ms;
  auto client = client::CacheClient::Create(options);
  ORBITKV_CHECK(client.has_value());
  client_ = std::move(*client);
  client::Layout layout;
  layout.pages.layers = {{pages_.data(), shape.page_bytes}};
  layout.pages.page_bytes = shape.page_bytes;
  layout.pages.block_count = shape.blocks;
  layout.block_tokens = 32;
  ORBITKV_CHECK(client_->RegisterLayout(layout).has_value());
  ORBITKV_CHECK(client_->Start().has_value());
  ORBITKV_CHECK(client_->WaitUp(os::MonotonicNs() + 10 * kSecondNs).value_or(false));
}

void BenchClient::Publish(std::span<const state::BlockHash> hashes) {
  std::vector<std::uint32_t> ids(std::min<std::size_t>(hashes.size(), layout_blocks_));
  std::iota(ids.begin(), ids.end(), 0);
  for (std::size_t first = 0; first < hashes.size(); first += ids.size()) {
    const std::size_t count = std::min(ids.size(), hashes.size() - first);
    client::PublishRequest request;
    request.hashes = hashes.subspan(first, count);
    request.block_ids = std::span(ids).first(count);
    request.first_depth = static_cast<std::uint32_t>(first);
    if (first > 0) request.parent = hashes[first - 1];
    const auto job = client_->Publish(request);
    ORBITKV_CHECK(job.has_value());
    WaitJob(*job);
  }
}

void BenchClient::WaitJob(client::JobId job) {
  const std::uint64_t deadline = os::MonotonicNs() + 30 * kSecondNs;
  for (;;) {
    const auto completions = client_->Poll();
    ORBITKV_CHECK(completions.has_value());
    if (completions->empty()) {
      ORBITKV_CHECK(os::WaitReadable(client_->completion_fd(), deadline));
      continue;
    }
    ORBITKV_CHECK(completions->front().job == job && completions->front().ok);
    return;
  }
}

std::uint64_t& BenchClient::FirstWord(std::uint32_t block) {
  return *reinterpret_cast<std::uint64_t*>(pages_.data() + block * page_bytes_);
}

std::uint64_t BenchClient::Restore(std::span<const state::BlockHash> hashes) {
  constexpr std::uint32_t kRanks[] = {0};
  std::vector<std::uint32_t> ids(hashes.size());
  std::iota(ids.begin(), ids.end(), 0);
  for (const std::uint32_t block : ids) FirstWord(block) = 0;
  const std::string request_id = "restore-" + std::to_string(++sequence_);
  const std::uint64_t began_ns = os::MonotonicNs();
  const auto answer = client_->Ask({.request_id = request_id, .hashes = hashes}, 10 * kSecondNs);
  ORBITKV_CHECK(answer.has_value() && answer->has_value() && (*answer)->found_blocks == hashes.size());
  const auto grant = client_->BeginRestore((*answer)->lease, (*answer)->found_blocks, kRanks);
  ORBITKV_CHECK(grant.has_value() && !grant->is_none());
  const auto job =
      client_->Restore({.grant = *grant, .hashes = hashes, .block_ids = ids, .incarnation = client_->incarnation()});
  ORBITKV_CHECK(job.has_value());
  WaitJob(*job);
  const std::uint64_t elapsed_ns = os::MonotonicNs() - began_ns;
  for (const std::uint32_t block : ids) ORBITKV_CHECK(FirstWord(block) == block + 1);
  return elapsed_ns;
}

double BenchClient::Query(std::span<const state::BlockHash> hashes) {
  const std::uint64_t start = os::MonotonicNs();
  Step(hashes, 10 * kSecondNs);
  return static_cast<double>(answered_ns_ - start) / 1e3;
}

void BenchClient::Finish(std::span<const state::BlockHash> hashes) {
  if (under_way_) Step(hashes, 10 * kSecondNs);
}

void BenchClient::Step(std::span<const state::BlockHash> hashes, std::uint64_t wait_ns) {
  if (!under_way_) ++sequence_;
  const std::string request_id = "request-" + std::to_string(sequence_);
  const auto answer = client_->Ask({.request_id = request_id, .hashes = hashes}, wait_ns);
  answered_ns_ = os::MonotonicNs();
  ORBITKV_CHECK(answer.has_value() && (wait_ns == 0 || answer->has_value()));
  under_way_ = !answer->has_value();
  if (under_way_) return;
  ORBITKV_CHECK((*answer)->found_blocks == hashes.size());
  ORBITKV_CHECK(client_->ReleaseLease((*answer)->lease).has_value());
}

}  // namespace orbitkv::bench
