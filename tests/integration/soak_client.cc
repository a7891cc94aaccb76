// An engine process with the real client that saves, looks up, loads, warms up, prepares, cancels and forgets at
// random, and looks at every byte that it is given.
//   soak_client SOCKET INSTANCE SEED LAYERS PAGE_BYTES CHAINS LONGEST THINK_US
// It knows CHAINS chains of LONGEST blocks; what is in a block follows from its hash and its shape. Between two things
// that it does it waits for THINK_US at most. Lines on standard input: "report", answered by its counts, and "stop",
// answered by "stopped" and its counts when every job has ended. A wrong byte, a job that never ends or a client that
// cannot be stopped ends the process with status 3 and a line that says so.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/client/cache_client.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/raw_client.h"

namespace orbitkv::integration {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
// Far beyond every deadline of the client.
constexpr std::uint64_t kStuckNs = 60'000 * kMs;
constexpr std::uint32_t kRanks[] = {0};

using Hashes = std::vector<state::BlockHash>;

struct Options {
  std::string socket;
  std::string instance;
  std::uint64_t seed = 0;
  std::uint32_t layers = 0;
  std::uint64_t page_bytes = 0;
  std::uint32_t chains = 0;
  std::uint32_t longest = 0;
  std::uint64_t think_us = 0;
};

[[noreturn]] void Wrong(const std::string& what) {
  fmt::print("wrong: {}\n", what);
  std::fflush(stdout);
  std::_Exit(3);
}

class Engine {
 public:
  explicit Engine(const Options& options) : options_(options), prng_(options.seed) {
    for (std::uint32_t i = 0; i < options.layers; ++i) memory_.emplace_back(2 * options.longest * options.page_bytes);
    client::ClientOptions settings;
    settings.socket_path = options.socket;
    settings.instance = options.instance;
    settings.computation_digest.fill(std::byte{7});
    settings.representation_digest.fill(std::byte{8});
    settings.min_backoff_ms = 1;
    settings.max_backoff_ms = 20;
    settings.query_deadline_ms = 1000;
    client_ = client::CacheClient::Create(settings).value();
    client::Layout layout;
    for (auto& layer : memory_) layout.pages.layers.push_back({layer.data(), options.page_bytes});
    layout.pages.page_bytes = options.page_bytes;
    layout.pages.block_count = 2 * options.longest;
    layout.block_tokens = 16;
    if (!client_->Start() || !client_->RegisterLayout(layout)) Wrong("the client does not start");
  }

  void Turn() {
    ++turns_;
    if (client_->state() == client::State::kDown) (void)client_->WaitUp(os::DeadlineAfter(50 * kMs));
    const std::uint64_t dice = prng_.Below(20);
    if (dice < 8) return Save();
    if (dice < 17) return Load();
    const Hashes hashes = Draw();
    const std::string name = NextName();
    if (dice == 17) return (void)client_->WarmUp({.request_id = name, .hashes = hashes, .load_wait_ns = 200 * kMs});
    Prepare(name, hashes);
  }

  std::string Report() const {
    std::uint64_t mismatched = 0;
    for (const auto& [name, value] : client_->counters()) {
      if (std::string(name) == "mismatched_blocks") mismatched = value;
    }
    return fmt::format("turns={} stored={} restored={} mismatched={}", turns_, stored_, restored_, mismatched);
  }

  void Stop() {
    if (!client_->Stop(os::DeadlineAfter(500 * kMs))) Wrong("the client does not stop");
    FinishSave();
  }

 private:
  // Low numbers more often than high ones: a tenth of the chains gets half of the requests.
  Hashes Draw() {
    const std::uint64_t at = prng_.Below(1000);
    const std::uint64_t chain = at * at * at * options_.chains / 1'000'000'000;
    return testing::Chain(static_cast<std::uint32_t>(chain) + 1,
                          static_cast<std::uint32_t>(1 + prng_.Below(options_.longest)));
  }
  std::string NextName() { return options_.instance + "-" + std::to_string(++names_); }
  std::byte* Page(std::uint32_t layer, std::uint32_t block) {
    return memory_[layer].data() + block * options_.page_bytes;
  }
  // Calls fn(offset, bytes) for each piece of what belongs into a page.
  template <typename Fn>
  void ForEachWord(const state::BlockHash& hash, std::uint32_t layer, const Fn& fn) const {
    Prng prng(hash.Prefix64() * 31 + layer * 1009 + options_.page_bytes * 17 + options_.layers);
    for (std::uint64_t at = 0; at < options_.page_bytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.Next();
      fn(at, word, std::min<std::uint64_t>(sizeof word, options_.page_bytes - at));
    }
  }

  // ---- jobs
  bool Await(client::JobId job) {
    const std::uint64_t deadline_ns = os::DeadlineAfter(kStuckNs);
    for (;;) {
      if (const auto found = ended_.find(job.value()); found != ended_.end()) {
        const bool ok = found->second;
        ended_.erase(found);
        return ok;
      }
      if (os::MonotonicNs() >= deadline_ns) Wrong("a job does not end");
      (void)os::WaitReadable(client_->completion_fd(), os::DeadlineAfter(100 * kMs));
      const auto completions = client_->Poll();
      if (!completions) Wrong("completions cannot be polled");
      for (const client::Completion& completion : *completions) {
        ended_[completion.job.value()] = completion.ok;
        for (const std::uint8_t outcome : completion.outcomes) {
          stored_ += outcome == static_cast<std::uint8_t>(client::Outcome::kStored) ? 1 : 0;
        }
      }
    }
  }
  void FinishSave() {
    if (save_) (void)Await(*save_);
    save_.reset();
  }

  // ---- saves: they use the first half of the pages, loads the second one
  void Save() {
    if (save_ && prng_.Below(2) == 0) {
      const client::JobId jobs[] = {*save_};
      if (!client_->WaitSourcesFree(jobs, os::DeadlineAfter(kStuckNs)).value_or(false)) Wrong("pages are never free");
    } else {
      FinishSave();
    }
    const Hashes all = Draw();
    const auto first = static_cast<std::uint32_t>(prng_.Below(4) == 0 ? prng_.Below(all.size()) : 0);
    const std::span<const state::BlockHash> hashes = std::span(all).subspan(first);
    std::vector<std::uint32_t> ids;
    for (std::uint32_t block = 0; block < hashes.size(); ++block) {
      ids.push_back(block);
      for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
        std::byte* const page = Page(layer, block);
        ForEachWord(hashes[block], layer, [page](std::uint64_t at, std::uint64_t word, std::uint64_t bytes) {
          std::memcpy(page + at, &word, bytes);
        });
      }
    }
    if (save_) FinishSave();
    const auto job = client_->Publish({.hashes = hashes,
                                       .block_ids = ids,
                                       .first_depth = first,
                                       .parent = first == 0 ? state::BlockHash{} : all[first - 1]});
    if (!job) return;
    save_ = *job;
    if (prng_.Below(16) == 0) (void)client_->CancelPublish(*job);
    if (prng_.Below(2) == 0) FinishSave();
  }

  // ---- loads
  std::optional<client::Answer> Ask(const client::Query& query) {
    const std::uint64_t deadline_ns = os::DeadlineAfter(kStuckNs);
    for (;;) {
      const auto answer = client_->Ask(query, 20 * kMs);
      if (!answer) Wrong("a look-up is refused");
      if (*answer && (*answer)->reason != client::AnswerReason::kLoading) return *answer;
      if (os::MonotonicNs() >= deadline_ns) Wrong("a look-up does not end");
      if (prng_.Below(20) != 0) continue;
      (void)client_->CancelQuery(query.request_id);
      return std::nullopt;
    }
  }
  void Load() {
    const Hashes hashes = Draw();
    const std::string name = NextName();
    constexpr std::uint64_t kWaits[] = {0, 20 * kMs, 500 * kMs};
    const auto incarnation = client_->incarnation();
    const auto answer = Ask({
        .request_id = name,
        .hashes = hashes,
        .mode = prng_.Below(8) == 0 ? client::QueryMode::kFullPrefix : client::QueryMode::kLeasedRead,
        .load_wait_ns = kWaits[prng_.Below(std::size(kWaits))],
        .load_wait_is_compute_time = prng_.Below(8) == 0,
    });
    if (answer) Take(*answer, hashes, incarnation);
  }
  void Prepare(const std::string& name, const Hashes& hashes) {
    const auto incarnation = client_->incarnation();
    const auto ticket =
        client_->Prepare({.request_id = name, .hashes = hashes, .load_wait_ns = 500 * kMs}, name + "-consumer");
    if (!ticket) return;
    const std::uint64_t dice = prng_.Below(6);
    if (dice == 0) return (void)client_->CancelPrepared(*ticket);
    if (dice == 1) return;  // nobody comes for it
    const std::string consumer = name + "-consumer";
    const client::ClaimRequest claim = {
        .consumer = consumer, .ticket = *ticket, .most_blocks = static_cast<std::uint32_t>(hashes.size())};
    const std::uint64_t deadline_ns = os::DeadlineAfter(kStuckNs);
    for (;;) {
      const auto answer = client_->Claim(claim, 20 * kMs);
      if (!answer) Wrong("a claim is refused");
      if (*answer && (*answer)->reason != client::AnswerReason::kLoading) return Take(**answer, hashes, incarnation);
      if (os::MonotonicNs() >= deadline_ns) Wrong("a claim does not end");
    }
  }
  // Uses what was found, or does not.
  void Take(const client::Answer& answer, const Hashes& hashes, std::optional<Incarnation> incarnation) {
    if (answer.found_blocks == 0) return;
    if (answer.found_blocks > hashes.size()) Wrong("more was found than was asked for");
    const std::uint64_t dice = prng_.Below(20);
    if (dice == 0) return (void)client_->ReleaseLease(answer.lease);
    if (dice == 1) return;  // until it expires
    const auto blocks =
        static_cast<std::uint32_t>(prng_.Below(4) == 0 ? 1 + prng_.Below(answer.found_blocks) : answer.found_blocks);
    const auto grant = client_->BeginRestore(answer.lease, blocks, kRanks);
    if (!grant || grant->is_none()) return;
    if (dice == 2) return (void)client_->ReleaseGrant(*grant);
    std::vector<std::uint32_t> ids;
    for (std::uint32_t block = 0; block < blocks; ++block) {
      ids.push_back(options_.longest + block);
      for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
        std::memset(Page(layer, options_.longest + block), 0xee, options_.page_bytes);
      }
    }
    const auto wanted = std::span(hashes).first(blocks);
    const auto job =
        client_->Restore({.grant = *grant, .hashes = wanted, .block_ids = ids, .incarnation = incarnation});
    if (!job || !Await(*job)) return (void)client_->ReleaseGrant(*grant);
    for (std::uint32_t block = 0; block < blocks; ++block) Verify(wanted[block], options_.longest + block);
    restored_ += blocks;
  }
  void Verify(const state::BlockHash& hash, std::uint32_t id) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      const std::byte* const page = Page(layer, id);
      ForEachWord(hash, layer, [&](std::uint64_t at, std::uint64_t word, std::uint64_t bytes) {
        if (std::memcmp(page + at, &word, bytes) == 0) return;
        Wrong(fmt::format("block {:016x} layer {} of {} bytes, byte {}", hash.Prefix64(), layer, options_.page_bytes,
                          at));
      });
    }
  }

  const Options options_;
  Prng prng_;
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<client::CacheClient> client_;
  std::map<std::uint64_t, bool> ended_;
  std::optional<client::JobId> save_;
  std::uint64_t names_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t restored_ = 0;
};

// What was told since the last call; "stop" when nobody can tell anything any more.
std::deque<std::string> Told(std::uint64_t wait_ns) {
  static std::string text;
  std::deque<std::string> lines;
  if (!os::WaitReadable(0, os::DeadlineAfter(wait_ns))) return lines;
  char buffer[256];
  const ssize_t got = ::read(0, buffer, sizeof buffer);
  if (got <= 0) return {"stop"};
  text.append(buffer, static_cast<std::size_t>(got));
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  return lines;
}

int Run(char** argv) {
  Options options;
  options.socket = argv[1];
  options.instance = argv[2];
  options.seed = std::stoull(argv[3]);
  options.layers = static_cast<std::uint32_t>(std::stoul(argv[4]));
  options.page_bytes = std::stoull(argv[5]);
  options.chains = static_cast<std::uint32_t>(std::stoul(argv[6]));
  options.longest = static_cast<std::uint32_t>(std::stoul(argv[7]));
  options.think_us = std::stoull(argv[8]);
  Engine engine(options);
  Prng prng(~options.seed);
  for (;;) {
    engine.Turn();
    for (const std::string& line : Told(prng.Below(options.think_us + 1) * 1000)) {
      const bool stop = line == "stop";
      if (stop) engine.Stop();
      fmt::print("{}{}\n", stop ? "stopped " : "", engine.Report());
      std::fflush(stdout);
      if (stop) return 0;
    }
  }
}

}  // namespace
}  // namespace orbitkv::integration

int main(int argc, char** argv) { return argc == 9 ? orbitkv::integration::Run(argv) : 2; }
