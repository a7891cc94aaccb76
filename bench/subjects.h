// Round trips of our own that benchmarks time: a Ping through a channel session, a look-up through the native client.
//
// Owns: each its session or client. Threads: one each, several may run at once. Blocks: Call, for the round trip.
// Units: bytes. Errors: end the program, as a wrong answer does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baselines.h"

#include "orbitkv/client/cache_client.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::bench {

std::unique_ptr<RoundTrip> MakePing(const std::string& socket_path);

// Random block hashes, the same for one seed.
std::vector<state::BlockHash> MakeHashes(std::uint64_t seed, std::size_t count);

// One engine's client with a layout of one layer; block i of the layout holds page i.
class BenchClient {
 public:
  struct Shape {
    std::uint32_t blocks = 256;  // of the layout
    std::uint64_t page_bytes = 4096;
    std::uint64_t query_deadline_ms = 1000;
  };
  // instance: engines of one name would be one engine. All of them share one namespace.
  BenchClient(const std::string& socket_path, const std::string& instance, Shape shape);

  // Publishes a chain in pieces of the layout's size and waits until all of it is stored.
  void Publish(std::span<const state::BlockHash> hashes);
  // Restores a chain that fits into the layout and was published from its start; every page must get back what was in
  // it. Returns the nanoseconds from the question to the last byte.
  std::uint64_t Restore(std::span<const state::BlockHash> hashes);
  // One look-up as a scheduler makes it: a request id of its own each time, all blocks found, the lease given back.
  // Returns the microseconds until the answer.
  double Query(std::span<const state::BlockHash> hashes);
  // The same in steps that do not wait: begins a look-up, moves the one that is under way, or ends it. Finish waits.
  void Advance(std::span<const state::BlockHash> hashes) { Step(hashes, 0); }
  void Finish(std::span<const state::BlockHash> hashes);

 private:
  void WaitJob(client::JobId job);
  std::uint64_t& FirstWord(std::uint32_t block);
  void Step(std::span<const state::BlockHash> hashes, std::uint64_t wait_ns);

  const std::string instance_;
  const std::uint64_t page_bytes_;
  std::vector<std::byte> pages_;  // each begins with a word of its own
  std::unique_ptr<client::CacheClient> client_;
  std::uint32_t layout_blocks_;
  std::uint64_t sequence_ = 0;
  bool under_way_ = false;
  std::uint64_t answered_ns_ = 0;
};

// A look-up of blocks that must all be stored.
class QueryTrip final : public RoundTrip {
 public:
  QueryTrip(const std::string& socket_path, const std::string& instance, std::vector<state::BlockHash> hashes)
      : client_(socket_path, instance, {}), hashes_(std::move(hashes)) {}
  void Call() override { client_.Query(hashes_); }
  BenchClient& client() { return client_; }

 private:
  BenchClient client_;
  const std::vector<state::BlockHash> hashes_;
};

}  // namespace orbitkv::bench
