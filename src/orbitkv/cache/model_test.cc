// Random operations on the block cache against a model of maps, with the invariants checked after every step.
//
// The model does not predict which block is evicted. It knows what was committed, what is pinned and what is doubted,
// and demands that only blocks that may go are gone, and that bytes are where they were committed.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/cache/test_cache.h"
#include "orbitkv/testing/effort.h"

namespace orbitkv::cache {
namespace {

constexpr std::uint64_t kUnits = 24;
constexpr std::uint32_t kRows = 4;
constexpr std::uint32_t kChains = 6;
constexpr std::uint32_t kDepths = 8;

struct Key {
  std::uint32_t row = 1;
  std::uint32_t chain = 0;
  std::uint32_t depth = 0;
  auto operator<=>(const Key&) const = default;
  NamespaceRow namespace_row() const { return NamespaceRow(row); }
  std::uint64_t number() const { return row * 10'000 + chain * 100 + depth; }
};

struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  auto operator<=>(const Range&) const = default;
};

struct Reserved {
  Key key;
  std::uint32_t component = 0;
  pool::Slot slot;
};

struct Held {
  Key key;
  BlockRef ref;
  std::vector<Range> plan;  // of a granted pin
};

struct Block {
  std::map<std::uint32_t, Range> committed;  // by component, the last one; may have been evicted since
  std::set<std::uint32_t> suspect;
  std::uint32_t groups = 0;  // complete after the last step
};

class Model final : public LeaseRevoker {
 public:
  explicit Model(std::uint64_t seed)
      : t_(kUnits, {.max_blocks = 120, .hash_seed = seed, .incomplete_after_ns = 40}, 500), prng_(seed) {
    t_.Add(NamespaceRow(1), {{.slot_bytes = kTestUnit}});
    t_.Add(NamespaceRow(2), {{.shard = 0, .slot_bytes = 1000}, {.shard = 1, .slot_bytes = 1000}});
    t_.Add(NamespaceRow(3), {{.group = 0, .slot_bytes = 2500}, {.group = 1, .slot_bytes = 700}});
    t_.Add(NamespaceRow(4),
           {{.group = 0, .slot_bytes = 1000},
            {.group = 1, .shard = 0, .slot_bytes = 600},
            {.group = 1, .shard = 1, .slot_bytes = 600}},
           {{.ratio = 1, .dense = true}, {.ratio = 2, .dense = false}});
    t_.cache->SetLeaseRevoker(this);
  }

  bool RevokeOne() override {
    if (found_.empty()) return false;
    t_.cache->UnpinFound(found_.front().ref);
    found_.erase(found_.begin());
    return true;
  }

  void Step() {
    t_.now += prng_.Below(4);
    switch (prng_.Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: Reserve(); break;
      case 5:
      case 6:
      case 7:
      case 8: Commit(); break;
      case 9: Abort(); break;
      case 10: PinFound(); break;
      case 11: PinGranted(); break;
      case 12:
      case 13: Unpin(); break;
      case 14: Doubt(); break;
      default: TouchAndTick();
    }
    Check();
  }

  void EndEverything() {
    while (!granted_.empty()) EndGrant(granted_.size() - 1);
    while (RevokeOne()) continue;
    while (!reserved_.empty()) Abort();
    for (auto& [key, block] : blocks_) {
      const auto suspect = block.suspect;
      for (const std::uint32_t component : suspect) {
        ASSERT_TRUE(t_.cache->ClearSuspect(refs_[key], component));
      }
      block.suspect.clear();
    }
    const CacheGauges& gauges = t_.cache->gauges();
    EXPECT_EQ(gauges.found_pins + gauges.granted_pins + gauges.reserved_slots + gauges.suspect + gauges.draining, 0U);
    EXPECT_EQ(t_.pool->gauges().slots_writing, 0U);
    Check();
    EvictEverything();
    EXPECT_EQ(gauges.entries, 0U) << "kept for what ended";
  }

  const CacheCounters& counters() const { return t_.cache->counters(); }
  std::uint64_t trace() const { return trace_; }

 private:
  Key RandomKey() {
    // Rows come in phases, so that slabs change hands.
    phase_ = prng_.Below(200) == 0 ? static_cast<std::uint32_t>(prng_.Below(kRows)) : phase_;
    const bool other = prng_.Below(5) == 0;
    return Key{.row = 1 + (other ? static_cast<std::uint32_t>(prng_.Below(kRows)) : phase_),
               .chain = static_cast<std::uint32_t>(prng_.Below(kChains)),
               .depth = static_cast<std::uint32_t>(prng_.Below(kDepths))};
  }
  std::optional<BlockRef> Served(const Key& key) {
    return t_.cache->Find(key.namespace_row(), TestCache::Hash(key.number()));
  }
  std::uint32_t Components(const Key& key) const { return t_.cache->ComponentCount(key.namespace_row()); }
  BlockUse Groups(const Key& key) const { return t_.Use(key.number(), key.namespace_row()); }
  static std::uint32_t GroupOf(const Key& key, std::uint32_t component) {
    return key.row < 3 ? 0 : std::min(component, 1U);
  }
  static std::uint32_t Ratio(const Key& key, std::uint32_t component) { return key.row == 4 && component > 0 ? 2 : 1; }
  bool Complete(const Key& key, std::uint32_t component) const {
    return ((Groups(key).groups >> GroupOf(key, component)) & 1U) != 0;
  }

  void Reserve() {
    const Key key = RandomKey();
    const auto component = static_cast<std::uint32_t>(prng_.Below(Components(key)));
    const bool complete = Complete(key, component);
    const auto outcome = t_.cache->Reserve(
        TestCache::ReserveOf(key.number(), key.depth, component, key.namespace_row(), Ratio(key, component)), t_.now);
    Trace(static_cast<std::uint64_t>(outcome.status));
    if (complete) {
      ASSERT_EQ(outcome.status, ReserveStatus::kHaveIt);
    }
    if (outcome.status != ReserveStatus::kSlot) return;
    Trace(outcome.slot.offset);
    ASSERT_TRUE(generations_.insert(outcome.slot.generation).second);
    ASSERT_FALSE(blocks_[key].suspect.contains(component));
    reserved_.push_back({key, component, outcome.slot});
  }

  void EvictEverything() {
    for (std::uint32_t row = 1; row <= kRows; ++row) {
      for (std::uint32_t component = 0; component < t_.cache->ComponentCount(NamespaceRow(row)); ++component) {
        std::vector<pool::Slot> slots;
        for (std::uint64_t number = 1'000'000;; ++number) {
          const auto outcome = t_.cache->Reserve({NamespaceRow(row), TestCache::Hash(number), component}, t_.now);
          if (outcome.status != ReserveStatus::kSlot) break;
          slots.push_back(outcome.slot);
        }
        for (const pool::Slot& slot : slots) ASSERT_TRUE(t_.cache->AbortReserved(slot.index, slot.generation));
      }
    }
  }

  void Commit() {
    if (reserved_.empty()) return;
    const Reserved one = TakeRandom(reserved_);
    const std::uint32_t ratio = Ratio(one.key, one.component);
    CommitRequest request =
        t_.Request(one.key.number(), one.key.depth, one.slot, one.component, one.key.namespace_row(), ratio);
    const bool complete = Complete(one.key, one.component);
    Block& block = blocks_[one.key];
    const CommitOutcome outcome = t_.cache->Commit(request, t_.now);
    Trace(static_cast<std::uint64_t>(outcome));
    if ((one.key.depth + 1) % ratio != 0) {
      ASSERT_EQ(outcome, CommitOutcome::kLost);
    } else if (complete || block.suspect.contains(one.component)) {
      ASSERT_EQ(outcome, complete ? CommitOutcome::kAlreadyThere : CommitOutcome::kLost);
    }
    if (outcome != CommitOutcome::kStored) return;
    block.committed[one.component] = Range{one.slot.offset, one.slot.slot_bytes, one.slot.generation};
  }

  void Abort() {
    if (reserved_.empty()) return;
    const Reserved one = TakeRandom(reserved_);
    ASSERT_TRUE(t_.cache->AbortReserved(one.slot.index, one.slot.generation));
    ASSERT_FALSE(t_.cache->AbortReserved(one.slot.index, one.slot.generation));
  }

  void PinFound() {
    const Key key = RandomKey();
    const BlockUse use = Groups(key);
    if (use.groups == 0 || found_.size() > 6) return;
    ASSERT_TRUE(t_.cache->PinFound(use));
    found_.push_back({key, use.ref, {}});
  }

  void PinGranted() {
    const Key key = RandomKey();
    const BlockUse use = Groups(key);
    if (use.groups == 0 || granted_.size() > 4) return;
    ASSERT_TRUE(t_.cache->PinGranted(use));
    Held held{key, use.ref, {}};
    for (std::uint32_t component = 0; component < Components(key); ++component) {
      if (Complete(key, component)) held.plan.push_back(blocks_[key].committed.at(component));
    }
    granted_.push_back(held);
  }

  void Unpin() {
    if (prng_.Below(2) == 0) {
      if (!granted_.empty()) EndGrant(prng_.Below(granted_.size()));
    } else if (!found_.empty()) {
      t_.cache->UnpinFound(TakeRandom(found_).ref);
    }
  }

  void EndGrant(std::size_t at) {
    t_.cache->UnpinGranted(granted_[at].ref);
    granted_.erase(granted_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  // A component is doubted; a doubt is settled one way or the other.
  void Doubt() {
    const Key key = RandomKey();
    Block& block = blocks_[key];
    const auto component = static_cast<std::uint32_t>(prng_.Below(Components(key)));
    if (block.suspect.contains(component)) {
      block.suspect.erase(component);
      if (prng_.Below(2) == 0) {
        ASSERT_TRUE(t_.cache->ClearSuspect(refs_[key], component));
      } else {
        ASSERT_TRUE(t_.cache->Drop(refs_[key], component, DropReason::kWithdrawn));
        block.committed.erase(component);
      }
    } else if (Complete(key, component)) {
      refs_[key] = Groups(key).ref;
      block.suspect.insert(component);
      ASSERT_TRUE(t_.cache->MarkSuspect(refs_[key], component));
    }
  }

  void TouchAndTick() {
    const Key key = RandomKey();
    if (const auto ref = Served(key)) t_.cache->Touch(std::span(&*ref, 1), t_.now);
    t_.cache->Tick(t_.now);
  }

  void Check() {
    std::set<Range> ranges;
    std::uint64_t served_count = 0;
    for (auto& [key, block] : blocks_) {
      const BlockUse use = Groups(key);
      const bool served = Served(key).has_value();
      served_count += served ? 1 : 0;
      ASSERT_EQ(served, (use.groups & 1U) != 0 && (key.row != 3 || use.groups == 3));
      ASSERT_NO_FATAL_FAILURE(CheckPresent(key, block, use, ranges));
      if ((block.groups & ~use.groups) != 0 && block.suspect.empty()) {
        ASSERT_FALSE(Pins(granted_, key)) << "a granted block is gone";
        ASSERT_FALSE(Pins(found_, key)) << "a leased block is gone";
        ASSERT_GT(counters().evictions, evictions_before_) << "a block went without an eviction";
      }
      block.groups = use.groups;
      for (const std::uint32_t component : block.suspect) {
        ASSERT_FALSE(Complete(key, component));
        const auto plan = t_.cache->PlanSuspect(refs_[key], component);
        ASSERT_TRUE(plan);
        ASSERT_EQ(plan->generation, block.committed.at(component).generation);
        ranges.insert(block.committed.at(component));
      }
    }
    for (const Reserved& one : reserved_) {
      ASSERT_TRUE(ranges.insert({one.slot.offset, one.slot.slot_bytes, one.slot.generation}).second);
    }
    for (const Held& held : granted_) ranges.insert(held.plan.begin(), held.plan.end());
    evictions_before_ = counters().evictions;
    std::uint64_t end = 0;
    for (const Range& range : ranges) {
      ASSERT_GE(range.offset, end) << "two owners of one byte";
      end = range.offset + range.bytes;
    }
    ASSERT_LE(end, t_.pool_config.pool_bytes);
    ASSERT_EQ(t_.cache->gauges().complete, served_count);
    ASSERT_EQ(t_.pool->gauges().slots_writing, reserved_.size());
    ASSERT_LE(t_.pool->gauges().used_bytes, t_.pool_config.pool_bytes);
    ASSERT_LE(t_.cache->gauges().entries, 120U);
  }

  // Of a complete group every component is where it was committed.
  void CheckPresent(const Key& key, const Block& block, const BlockUse& use, std::set<Range>& ranges) {
    for (std::uint32_t component = 0; component < Components(key); ++component) {
      if (((use.groups >> GroupOf(key, component)) & 1U) == 0) continue;
      ASSERT_FALSE(block.suspect.contains(component));
      ASSERT_TRUE(block.committed.contains(component)) << "complete, but never committed";
      const Range& range = block.committed.at(component);
      const auto plan = t_.cache->Plan(use.ref, component);
      ASSERT_TRUE(plan);
      ASSERT_EQ(plan->offset, range.offset);
      ASSERT_EQ(plan->generation, range.generation);
      ASSERT_EQ(plan->checksum, key.number() * 3 + component);
      ASSERT_TRUE(ranges.insert(range).second) << "one slot in two blocks";
    }
  }

  static bool Pins(const std::vector<Held>& pins, const Key& key) {
    for (const Held& held : pins) {
      if (held.key == key) return true;
    }
    return false;
  }

  template <typename T>
  T TakeRandom(std::vector<T>& from) {
    const std::size_t at = prng_.Below(from.size());
    const T taken = from[at];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
    return taken;
  }

  void Trace(std::uint64_t value) { trace_ = (trace_ ^ value) * 0x9e3779b97f4a7c15ULL + 1; }

  TestCache t_;
  Prng prng_;
  std::uint32_t phase_ = 0;
  std::map<Key, Block> blocks_;
  std::map<Key, BlockRef> refs_;  // of blocks with a doubt
  std::vector<Reserved> reserved_;
  std::vector<Held> found_;
  std::vector<Held> granted_;
  std::set<std::uint64_t> generations_;
  std::uint64_t evictions_before_ = 0;
  std::uint64_t trace_ = 0;
};

class CacheModel : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(CacheModel, InvariantsHoldAtEveryStep) {
  Model model(GetParam());
  for (int step = 0; step < 10000; ++step) {
    model.Step();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << GetParam() << ", step " << step;
  }
  // The run reached what it is about.
  EXPECT_GT(model.counters().evictions, 100U);
  EXPECT_GT(model.counters().inserts, 300U);
  EXPECT_GT(model.counters().already_there, 10U);
  EXPECT_GT(model.counters().revoked, 0U);
  EXPECT_GT(model.counters().incomplete, 3U);
  EXPECT_GT(model.counters().reclaimed_slabs, 0U);
  model.EndEverything();
}

TEST(CacheModelDeterminism, SameSeedSameDecisions) {
  Model one(5);
  Model two(5);
  Model other(6);
  for (int step = 0; step < 1500; ++step) {
    one.Step();
    two.Step();
    other.Step();
  }
  EXPECT_EQ(one.trace(), two.trace());
  EXPECT_NE(one.trace(), other.trace());
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheModel, ::testing::Values(1, 2, 3, 20250702, 4'000'000'007ULL));

// What one of these seeds reaches is left to chance; the cases above are the ones that go everywhere.
TEST(CacheModelSweep, InvariantsHoldForManySeeds) {
  const std::uint64_t first = testing::Seed(1000);
  for (std::uint64_t seed = first; seed < first + testing::Effort(1, 2000); ++seed) {
    Model model(seed);
    for (int step = 0; step < 6000; ++step) {
      model.Step();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ", step " << step;
    }
    model.EndEverything();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace orbitkv::cache
