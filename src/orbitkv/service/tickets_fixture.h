// Look-ups that wait for a backing source: the fixture of their tests, and what makes its pool tight.
// Test code only.
#pragma once

#include <gtest/gtest.h>

#include "orbitkv/service/test_engine.h"
#include "orbitkv/testing/ram_source.h"

namespace orbitkv::service {

using Fault = ::orbitkv::testing::RamSource::Fault;
using wire::QueryMode;
using wire::TicketState;

inline constexpr std::uint64_t kMs = 1'000'000;

struct Ask {
  std::uint64_t request = 1;
  QueryMode mode = QueryMode::kLeasedRead;
  std::uint64_t wait_ns = 10 * kSecond;
  std::uint64_t consumer = 0;
  std::vector<wire::HashView> views{};
  std::uint32_t prefix = 0;
};

class TicketTest : public ::testing::Test {
 protected:
  explicit TicketTest(WorldOptions options = {}) : world_(options) {
    world_.service().SetSource(&source_);
    session_ = world_.Join(world_.Worker("one"));
    digest_ = world_.service().Register(session_, world_.Worker("one"), world_.now()).namespace_digest;
    source_.set_delay([this](const ComponentKey&) { return delay_ns_; });
  }

  ComponentKey KeyOf(const state::BlockHash& hash) const { return {{digest_, hash, 0, 0}, world_.slot_bytes()}; }
  void Save(std::span<const state::BlockHash> chain, std::size_t first = 0) {
    for (std::size_t i = first; i < chain.size(); ++i) {
      SourceRecord record{.depth = static_cast<std::uint32_t>(i), .checksum = ChecksumOf(chain[i], 0)};
      if (i > 0) record.parent = chain[i - 1];
      source_.Put(KeyOf(chain[i]), record);
    }
  }
  Result<QueryOutcome> Submit(SessionId session, std::uint64_t operation, std::uint32_t revision,
                              std::span<const state::BlockHash> hashes, const Ask& ask = {}) {
    wire::QueryView view;
    view.header.request_key_lo = ask.request;
    view.header.mode = ask.mode;
    view.header.wait_ns = ask.wait_ns;
    view.header.consumer_key_lo = ask.consumer;
    view.header.prefix_blocks = ask.prefix;
    view.hashes = hashes;
    view.views = ask.views;
    auto outcome = world_.service().StartQuery(session, view, world_.now(), {operation, revision});
    while (outcome && outcome->more) outcome = world_.service().ContinueQuery(session, world_.now());
    return outcome;
  }
  // True when the look-up became a ticket.
  bool Loads(std::uint64_t operation, std::span<const state::BlockHash> hashes, const Ask& ask = {}) {
    const auto outcome = Submit(session_, operation, 1, hashes, ask);
    EXPECT_TRUE(outcome.has_value()) << ToString(outcome.error());
    return outcome && outcome->loading;
  }
  wire::PollEntry Poll(std::uint64_t operation, std::uint32_t revision = 1) {
    return Poll(session_, operation, revision);
  }
  wire::PollEntry Poll(SessionId session, std::uint64_t operation, std::uint32_t revision = 1) {
    const wire::PollRequest request{.operation = operation, .revision = revision};
    std::vector<wire::PollEntry> entries;
    EXPECT_TRUE(
        world_.service().PollQueries(session, std::span(&request, 1), world_.now(), entries, boundaries_).has_value());
    EXPECT_EQ(entries.size(), 1U);
    return entries.at(0);
  }
  TicketState State(std::uint64_t operation, std::uint32_t revision = 1) {
    return static_cast<TicketState>(Poll(operation, revision).state);
  }
  Result<QueryOutcome> Claim(SessionId session, std::uint64_t consumer, std::uint32_t revision,
                             std::uint64_t operation = 0) {
    return world_.service().ClaimQuery(
        session, {.consumer_key_lo = consumer, .operation = operation, .revision = revision}, world_.now());
  }
  // Work, reads that are due, until nothing is left to do at this time.
  void Settle() {
    bool again = true;
    while (again) {
      again = world_.service().Work(world_.now());
      for (const LoadRequest& request : world_.service().TakeLoads()) source_.Submit(request, world_.now());
      for (const auto& done : source_.Step(world_.now())) {
        world_.service().LoadDone(done.id, done.result, done.checksum, world_.now());
        again = true;
      }
    }
  }
  void After(std::uint64_t ns) {
    world_.Advance(ns);
    Settle();
  }
  Gauges gauges() const { return const_cast<World&>(world_).service().gauges(); }
  const Counters& counters() { return world_.service().counters(); }
  std::uint64_t pins() { return world_.cache().gauges().found_pins; }
  void ExpectQuiet() {
    // Reads drain after everybody has gone.
    world_.EndAllSessions();
    delay_ns_ = 0;
    After(100 * kSecond);
    world_.ExpectQuiet();
  }

  World world_;
  ::orbitkv::testing::RamSource source_;
  SessionId session_;
  state::Digest digest_{};
  std::uint64_t delay_ns_ = kMs;
  std::vector<std::uint32_t> boundaries_;
};

// A pool with room for 16 slots of reads in flight, 6 of them for warm-ups.
inline WorldOptions TightOptions() {
  WorldOptions options;
  options.pool_bytes = 64 * kMiB;
  options.page_bytes = 512 * 1024 - 64;
  options.max_blocks = 256;
  options.limits.load_percent = 25;
  options.limits.warm_up_percent = 10;
  options.limits.lease_percent_per_instance = 90;
  options.limits.reserved_percent_per_session = 100;
  options.limits.operations_per_session = 8;
  options.limits.operations_total = 12;
  options.limits.tombstones = 3;
  options.limits.warm_ups = 2;
  return options;
}

}  // namespace orbitkv::service
