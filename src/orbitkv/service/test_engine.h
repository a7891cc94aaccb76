// For the tests of this folder: a Service with a real cache and pool, and engines that talk to it in whole steps.
// Owns: table memory, pool, cache and service, in that order. Threads: one. Blocks: no.
// Units: the clock starts at one second and moves only by Advance. Errors: a step that must work fails the test.
// Invariant: slots are named by what a writer would have put there; ExpectQuiet ends every session and finds nothing
//            left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/cache/policies.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/service/service.h"
#include "orbitkv/wire/pool_table.h"

namespace orbitkv::service {

inline constexpr std::uint64_t kSecond = 1'000'000'000;
inline constexpr std::uint64_t kMiB = 1U << 20U;

inline state::Digest DigestOfByte(std::uint8_t value) {
  state::Digest digest;
  digest.fill(std::byte{value});
  return digest;
}

// One to three cache groups of random kinds and sizes, over hash blocks of 16 tokens.
inline std::vector<state::GroupShape> RandomShapes(Prng& prng) {
  std::vector<state::GroupShape> shapes(1 + prng.Below(3));
  for (state::GroupShape& shape : shapes) {
    shape.block_tokens = 16 * (1 + static_cast<std::uint32_t>(prng.Below(3)));
    shape.page_count = 1;
    shape.page_bytes = 200 + 100 * prng.Below(8);
    shape.kind = static_cast<state::GroupKind>(1 + prng.Below(4));
    const bool spans = shape.kind == state::GroupKind::kSlidingWindow || shape.kind == state::GroupKind::kChunkedLocal;
    shape.span_tokens = spans ? 1 + static_cast<std::uint32_t>(prng.Below(150)) : 0;
    shape.hash_block_tokens = 16;
  }
  return shapes;
}

// A chain of block hashes; chains with different seeds share nothing.
inline std::vector<state::BlockHash> Chain(std::uint64_t seed, std::size_t count) {
  std::vector<state::BlockHash> hashes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t words[2] = {seed * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL + 1, (seed << 32U) + i};
    std::memcpy(hashes[i].bytes.data(), words, sizeof(words));
  }
  return hashes;
}

inline std::uint64_t ChecksumOf(const state::BlockHash& hash, std::uint32_t shard) {
  return hash.Prefix64() * 31 + shard;
}

struct WorldOptions {
  std::uint64_t pool_bytes = 64 * kMiB;
  std::uint64_t page_bytes = 1000;  // two pages and their list take 2016 bytes
  std::uint32_t max_blocks = 8192;
  Limits limits;
  cache::PolicyMaker policy = nullptr;  // LRU
};

class World {
 public:
  explicit World(WorldOptions options = {}) : options_(options) {
    pool::PoolConfig pool_config;
    pool_config.pool_bytes = options.pool_bytes;
    pool_config.max_slots = 2 * options.max_blocks;
    table_memory_.resize(pool_config.table_bytes() / sizeof(std::uint64_t));
    table_ = std::make_unique<wire::SpanTable>(std::as_writable_bytes(std::span(table_memory_)));
    pool_ = Take(pool::Pool::Create(pool_config, *table_));
    EXPECT_TRUE(pool_->AddReserved(options.pool_bytes).has_value());
    cache::CacheConfig cache_config;
    cache_config.max_blocks = options.max_blocks;
    cache_ = Take(cache::BlockCache::Create(cache_config, *pool_, options.policy));
    options_.limits.pool_bytes = options.pool_bytes;
    service_ = std::make_unique<Service>(options_.limits, *cache_);
  }

  Service& service() { return *service_; }
  cache::BlockCache& cache() { return *cache_; }
  std::uint64_t now() const { return now_ns_; }
  void Advance(std::uint64_t ns) {
    now_ns_ += ns;
    service_->Tick(now_ns_);
  }

  Registration Worker(const std::string& instance, std::uint32_t rank = 0, std::uint32_t world = 1,
                      std::uint32_t shard = 0, std::uint32_t shard_count = 1) const {
    Registration registration;
    registration.instance = instance;
    registration.role = Role::kWorker;
    registration.rank = Rank(rank);
    registration.world_size = world;
    registration.shard = shard;
    registration.shard_count = shard_count;
    registration.computation = DigestOfByte(1);
    registration.representation = DigestOfByte(2);
    registration.groups = {{.block_tokens = 32, .page_count = 2, .page_bytes = options_.page_bytes}};
    registration.name = "test";
    return registration;
  }
  Registration Scheduler(const std::string& instance, std::uint32_t world = 1, std::uint32_t shard_count = 1) const {
    Registration registration = Worker(instance, 0, world, 0, shard_count);
    registration.role = Role::kScheduler;
    registration.representation.reset();
    registration.groups.clear();
    return registration;
  }
  std::uint32_t slot_bytes() const { return static_cast<std::uint32_t>((2 * options_.page_bytes + 7) / 8 * 8 + 16); }

  SessionId Open() {
    const SessionId session(next_session_++);
    EXPECT_TRUE(service_->OpenSession(session, Purpose::kControl, TokenOf(session)).has_value());
    sessions_.push_back(session);
    return session;
  }
  static std::uint64_t TokenOf(SessionId session) { return session.value() + 1000; }
  SessionId Join(const Registration& registration) {
    const SessionId session = Open();
    const RegisterOutcome outcome = service_->Register(session, registration, now_ns_);
    EXPECT_FALSE(outcome.refused) << outcome.text;
    return session;
  }

  Result<QueryOutcome> TryQuery(SessionId session, std::uint64_t request, std::span<const state::BlockHash> hashes) {
    wire::QueryView view{};
    view.header.request_key_lo = request;
    view.header.hash_count = static_cast<std::uint32_t>(hashes.size());
    view.hashes = hashes;
    Result<QueryOutcome> outcome = service_->StartQuery(session, view, now_ns_);
    while (outcome && outcome->more) outcome = service_->ContinueQuery(session, now_ns_);
    return outcome;
  }
  QueryOutcome Query(SessionId session, std::uint64_t request, std::span<const state::BlockHash> hashes) {
    return Take(TryQuery(session, request, hashes));
  }
  std::uint32_t Found(SessionId session, std::uint64_t request, std::span<const state::BlockHash> hashes) {
    return Query(session, request, hashes).found_blocks;
  }

  Status Begin(SessionId session, LeaseId lease, std::uint32_t blocks, std::vector<std::uint32_t> ranks,
               std::uint64_t grant) {
    const wire::BeginView view{.header = {blocks, static_cast<std::uint32_t>(ranks.size())}, .ranks = ranks};
    return service_->RestoreBegin(session, lease, view, GrantId(grant), now_ns_);
  }
  PlanStatus Plan(SessionId session, std::uint64_t grant, std::uint32_t rank = 0) {
    return Take(service_->RestorePlan(session, GrantId(grant), Rank(rank), now_ns_, plan_));
  }
  const std::vector<wire::PlanEntry>& plan() const { return plan_; }
  Status End(SessionId session, std::uint64_t grant, std::uint32_t rank = 0,
             wire::EndResult result = wire::EndResult::kOk, const std::vector<std::uint32_t>& indices = {}) {
    std::vector<wire::EndEntry> mismatches;
    for (const std::uint32_t index : indices) mismatches.push_back({.index = index});
    return service_->RestoreEnd(session, GrantId(grant), Rank(rank), result, mismatches, now_ns_);
  }
  // Naming the slots that were planned.
  Status EndNaming(SessionId session, std::uint64_t grant, std::uint32_t rank,
                   std::span<const wire::EndEntry> mismatches) {
    return service_->RestoreEnd(session, GrantId(grant), Rank(rank), wire::EndResult::kMismatch, mismatches, now_ns_);
  }
  Status ReleaseGrant(SessionId session, std::uint64_t grant) {
    return service_->Release(session, wire::ReleaseKind::kGrant, grant, now_ns_);
  }
  Status ReleaseLease(SessionId session, LeaseId lease) {
    return service_->Release(session, wire::ReleaseKind::kLease, lease.value(), now_ns_);
  }

  // parent: the block before the first one, at a depth above 0.
  Result<ReserveOutcome> TryReserve(SessionId session, std::span<const state::BlockHash> hashes,
                                    std::uint32_t shard = 0, std::uint32_t depth = 0,
                                    std::optional<state::BlockHash> parent = std::nullopt) {
    wire::ReserveView view{};
    view.header.shard = shard;
    view.header.first_depth = depth;
    if (parent) view.header.parent = *parent;
    view.header.slot_bytes = slot_bytes();
    view.header.block_count = static_cast<std::uint32_t>(hashes.size());
    view.hashes = hashes;
    Result<ReserveOutcome> outcome = service_->StartReserve(session, view, now_ns_, entries_);
    while (outcome && outcome->more) outcome = service_->ContinueReserve(session, now_ns_, entries_);
    return outcome;
  }
  ReservationId Reserve(SessionId session, std::span<const state::BlockHash> hashes, std::uint32_t shard = 0) {
    return Take(TryReserve(session, hashes, shard)).reservation;
  }
  const std::vector<wire::ReserveEntry>& entries() const { return entries_; }
  std::size_t CountEntries(wire::ReserveStatus status) const {
    return static_cast<std::size_t>(
        std::ranges::count(entries_, static_cast<std::uint32_t>(status), &wire::ReserveEntry::status));
  }
  // Commits every slot of the entries that were answered last, or of those given.
  std::uint32_t Commit(SessionId session, ReservationId reservation, std::span<const state::BlockHash> hashes,
                       std::uint32_t shard = 0,
                       const std::optional<std::vector<wire::ReserveEntry>>& given = std::nullopt) {
    const std::vector<wire::ReserveEntry> entries = given.value_or(entries_);
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      if (entries[i].status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) continue;
      commits.push_back({.slot_checksum = ChecksumOf(hashes[i], shard),
                         .generation = entries[i].generation,
                         .index = i,
                         .reserved = 0});
    }
    return Take(service_->PublishCommit(session, reservation, {.entries = commits}, now_ns_, outcomes_));
  }
  const std::vector<std::uint32_t>& outcomes() const { return outcomes_; }
  std::uint32_t Publish(SessionId session, std::span<const state::BlockHash> hashes, std::uint32_t shard = 0) {
    return Commit(session, Reserve(session, hashes, shard), hashes, shard);
  }

  void End(SessionId session) {
    service_->EndSession(session, now_ns_);
    std::erase(sessions_, session);
  }

  void EndAllSessions() {
    while (!sessions_.empty()) End(sessions_.back());
  }
  void ExpectQuiet() {
    EndAllSessions();
    for (const VerifyRequest& request : service_->TakeVerifyRequests()) {
      service_->VerifyDone(request.id, true, now_ns_);
    }
    const Gauges gauges = service_->gauges();
    EXPECT_EQ(gauges.sessions, 0U);
    EXPECT_EQ(gauges.sessions_detached, 0U);
    EXPECT_EQ(gauges.instances, 0U);
    EXPECT_EQ(gauges.running_queries, 0U);
    EXPECT_EQ(gauges.tickets, 0U);
    EXPECT_EQ(gauges.tickets_ready, 0U);
    EXPECT_EQ(gauges.tickets_in_line, 0U);
    EXPECT_EQ(gauges.warm_ups, 0U);
    EXPECT_EQ(gauges.tombstones, 0U);
    EXPECT_EQ(gauges.loads, 0U);
    EXPECT_EQ(gauges.load_bytes, 0U);
    EXPECT_EQ(gauges.saves, 0U);
    EXPECT_EQ(gauges.save_bytes, 0U);
    EXPECT_EQ(gauges.leases, 0U);
    EXPECT_EQ(gauges.leases_remembered, 0U);
    EXPECT_EQ(gauges.hashes, 0U);
    EXPECT_EQ(gauges.grants, 0U);
    EXPECT_EQ(gauges.armed_ranks, 0U);
    EXPECT_EQ(gauges.leased_bytes, 0U);
    EXPECT_EQ(gauges.running_reserves, 0U);
    EXPECT_EQ(gauges.reservations, 0U);
    EXPECT_EQ(gauges.reserved_slots, 0U);
    EXPECT_EQ(gauges.reserved_bytes, 0U);
    EXPECT_EQ(gauges.admissions, 0U);
    EXPECT_EQ(gauges.verifications, 0U);
    EXPECT_EQ(cache_->gauges().found_pins, 0U);
    EXPECT_EQ(cache_->gauges().granted_pins, 0U);
    EXPECT_EQ(cache_->gauges().reserved_slots, 0U);
    EXPECT_EQ(cache_->gauges().suspect, 0U);
    EXPECT_EQ(cache_->gauges().draining, 0U);
  }

  template <typename T>
  static T Take(Result<T> result) {
    EXPECT_TRUE(result.has_value()) << ToString(result.error());
    return std::move(*result);
  }

 private:
  WorldOptions options_;
  std::vector<std::uint64_t> table_memory_;
  std::unique_ptr<wire::SpanTable> table_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<cache::BlockCache> cache_;
  std::unique_ptr<Service> service_;
  std::uint64_t now_ns_ = kSecond;
  std::uint64_t next_session_ = 1;
  std::vector<SessionId> sessions_;
  std::vector<wire::PlanEntry> plan_;
  std::vector<wire::ReserveEntry> entries_;
  std::vector<std::uint32_t> outcomes_;
};

inline Code CodeOf(const auto& result) { return result.has_value() ? Code{} : result.error().code; }

}  // namespace orbitkv::service
