// A million inserts through a full pool, and look-ups in it. The work is checked; times are printed, never asserted.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/block_cache.h"

namespace orbitkv::cache {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ORBITKV_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ORBITKV_SANITIZED 1
#endif
#endif
#ifdef ORBITKV_SANITIZED
constexpr std::uint32_t kScale = 10;  // the same steps, fewer of them
#else
constexpr std::uint32_t kScale = 1;
#endif

constexpr std::uint32_t kSlots = 400'000 / kScale;
constexpr std::uint32_t kInserts = 1'000'000 / kScale;
constexpr std::uint32_t kChain = 256;  // blocks of one prompt
constexpr std::uint32_t kSlotBytes = 64 << 10U;
constexpr NamespaceRow kRow{1};

state::BlockHash HashOf(std::uint64_t number) {
  Prng prng(number);
  state::BlockHash hash;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = prng.Next();
    std::memcpy(hash.bytes.data() + i * 8, &word, sizeof(word));
  }
  return hash;
}

// Processor time of this thread: what others do on the machine does not count.
std::uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

class Times {
 public:
  explicit Times(std::size_t calls) { ns_.reserve(calls); }
  void Add(std::uint64_t from_ns) { ns_.push_back(static_cast<double>(NowNs() - from_ns)); }
  void Print(const char* name) {
    std::ranges::sort(ns_);
    std::printf("%-22s p50 %8.3f us, p99.9 %8.3f us, worst %9.1f us, %zu calls\n", name, ns_[ns_.size() / 2] / 1e3,
                ns_[ns_.size() * 999 / 1000] / 1e3, ns_.back() / 1e3, ns_.size());
  }

 private:
  std::vector<double> ns_;
};

// The table, pool and cache of these tests. Only the bookkeeping exists: the pool's own memory is never touched.
struct Large {
  Large() : memory(config.table_bytes() / 8), table(std::as_writable_bytes(std::span(memory))) {
    pool = std::move(*pool::Pool::Create(config, table));
    EXPECT_TRUE(pool->AddReserved(config.pool_bytes));
    cache = std::move(*BlockCache::Create({.max_blocks = kSlots + kSlots / 4, .hash_seed = 99}, *pool));
    const ComponentSpec spec{.slot_bytes = kSlotBytes};
    EXPECT_TRUE(cache->AddNamespace(kRow, std::span(&spec, 1)));
  }
  pool::PoolConfig config{.pool_bytes = std::uint64_t{kSlots} * kSlotBytes, .max_slots = kSlots};
  std::vector<std::uint64_t> memory;
  wire::SpanTable table;
  std::unique_ptr<pool::Pool> pool;
  std::unique_ptr<BlockCache> cache;
};

TEST(CacheSteps, AMillionInserts) {
  Large large;
  BlockCache& cache = *large.cache;
  Times clock(10'000);
  for (int i = 0; i < 10'000; ++i) clock.Add(NowNs());
  Times reserve(kInserts);
  Times commit(kInserts);
  for (std::uint32_t n = 0; n < kInserts; ++n) {
    CommitRequest request;
    request.row = kRow;
    request.hash = HashOf(n);
    request.depth = n % kChain;
    if (request.depth > 0) request.parent = HashOf(n - 1);
    auto from = NowNs();
    const ReserveOutcome reserved = cache.Reserve({kRow, request.hash, 0}, n);
    reserve.Add(from);
    ASSERT_EQ(reserved.status, ReserveStatus::kSlot);
    request.slot = reserved.slot.index;
    request.generation = reserved.slot.generation;
    from = NowNs();
    ASSERT_EQ(cache.Commit(request, n), CommitOutcome::kStored);
    commit.Add(from);
  }
  EXPECT_EQ(cache.gauges().complete, kSlots);
  EXPECT_EQ(cache.counters().evictions, kInserts - kSlots);

  std::vector<std::vector<state::BlockHash>> prompts;
  for (std::uint32_t first = (kInserts / kChain - kSlots / kChain / 2) * kChain; first + kChain <= kInserts;
       first += kChain) {
    auto& prompt = prompts.emplace_back();
    for (std::uint32_t i = 0; i < kChain; ++i) prompt.push_back(HashOf(first + i));
  }
  std::vector<BlockRef> refs;
  refs.reserve(kChain);
  Times match(prompts.size());
  Times whole(prompts.size());
  for (const auto& prompt : prompts) {
    refs.clear();
    const auto from = NowNs();
    const std::uint32_t found = cache.MatchPrefix(kRow, prompt, refs);
    match.Add(from);
    for (const BlockRef& ref : refs) ASSERT_TRUE(cache.PinFound(ref));
    cache.Touch(refs, kInserts);
    whole.Add(from);
    ASSERT_EQ(found, kChain);
    for (const BlockRef& ref : refs) cache.UnpinFound(ref);
  }
  Times hot(1000);
  for (int round = 0; round < 1000; ++round) {
    refs.clear();
    const auto from = NowNs();
    ASSERT_EQ(cache.MatchPrefix(kRow, prompts.back(), refs), kChain);
    hot.Add(from);
  }
  clock.Print("the clock itself");
  reserve.Print("Reserve");
  commit.Print("Commit");
  match.Print("Match 256, cold");
  whole.Print("Match+pin+touch, cold");
  hot.Print("Match 256, hot");
}

}  // namespace
}  // namespace orbitkv::cache
