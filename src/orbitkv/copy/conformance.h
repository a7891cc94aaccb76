// The suite that every copy engine passes. A test file instantiates it:
//
//     INSTANTIATE_TEST_SUITE_P(Host, CopyEngineConformance, testing::Values(EngineCase{"one_thread", make}));
//
// Owns: the test's memory. Threads: the test's; callbacks as in engine.h. Blocks: every wait has a deadline of a
// minute. Invariant: included by one file of a test program.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/copy/engine.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::copy {

// An engine and what makes its device move.
class EngineHarness {
 public:
  virtual ~EngineHarness() = default;
  virtual CopyEngine& engine() = 0;
  // Lets everything that was submitted come to its end; an engine with threads of its own needs no help.
  virtual void Run() {}
};

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<EngineHarness>(std::uint32_t max_jobs)> make;
};
inline std::ostream& operator<<(std::ostream& out, const EngineCase& engine_case) { return out << engine_case.name; }

inline std::uint64_t TestDeadline() { return os::MonotonicNs() + 60'000'000'000ULL; }

// Engine pages with a gap behind each, slots with a gap behind each, filled with a pattern; the gaps stay as they are.
class TestMemory {
 public:
  struct Shape {
    std::uint32_t layers;
    std::uint64_t page_bytes;
    std::uint32_t blocks;
  };
  static constexpr std::uint64_t kGapBytes = 192;

  TestMemory(Shape shape, std::uint64_t seed)
      : shape_(shape),
        stride_((shape.page_bytes + kGapBytes + 63) / 64 * 64),
        slot_stride_((SlotBytes(shape.layers, shape.page_bytes) + kGapBytes + 63) / 64 * 64),
        pages_(Filled(stride_ * shape.layers * shape.blocks, seed)),
        slots_(Filled(slot_stride_ * shape.blocks, seed + 1)),
        pages_before_(Copied(pages_, stride_ * shape.layers * shape.blocks)) {
    layout_.page_bytes = shape.page_bytes;
    layout_.block_count = shape.blocks;
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      layout_.layers.push_back({pages_.get() + stride_ * shape.blocks * layer, stride_});
    }
  }

  const PageLayout& layout() const { return layout_; }
  std::byte* slot(std::uint32_t index) { return slots_.get() + slot_stride_ * index; }
  bool PageUnchanged(std::uint32_t layer, std::uint32_t block) const {
    const std::byte* page = layout_.page(layer, block);
    return std::memcmp(page, pages_before_.get() + (page - pages_.get()), shape_.page_bytes) == 0;
  }
  bool GapsUnchanged() const {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::uint32_t block = 0; block < shape_.blocks; ++block) {
        const std::byte* gap = layout_.page(layer, block) + shape_.page_bytes;
        const std::byte* before = pages_before_.get() + (gap - pages_.get());
        if (std::memcmp(gap, before, stride_ - shape_.page_bytes) != 0) return false;
      }
    }
    return true;
  }

  static state::StateKey Identity(std::uint32_t block) {
    state::StateKey identity;
    identity.namespace_digest.fill(std::byte{0x11});
    identity.hash.bytes.fill(static_cast<std::byte>(block));
    identity.shard = 1;
    return identity;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory Filled(std::uint64_t bytes, std::uint64_t seed) {
    Memory memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
    Prng prng(seed);
    for (std::uint64_t at = 0; at < bytes; at += 8) {
      const std::uint64_t word = prng.Next();
      std::memcpy(memory.get() + at, &word, sizeof(word));
    }
    return memory;
  }
  static Memory Copied(const Memory& from, std::uint64_t bytes) {
    Memory memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
    std::memcpy(memory.get(), from.get(), bytes);
    return memory;
  }

  Shape shape_;
  std::uint64_t stride_;
  std::uint64_t slot_stride_;
  Memory pages_;
  Memory slots_;
  Memory pages_before_;
  PageLayout layout_;
};

class CopyEngineConformance : public testing::TestWithParam<EngineCase> {
 protected:
  // Large enough that no engine copies a restore of it inside Submit.
  static constexpr TestMemory::Shape kShape{5, 24'640, 6};

  void Start(std::uint32_t max_jobs = 64) { harness_ = GetParam().make(max_jobs); }
  CopyEngine& engine() { return harness_->engine(); }

  // All blocks of the layout, block i to slot i.
  static CopyJob Job(Direction direction, TestMemory& pages, TestMemory& slots, Stores stores = Stores::kOrdinary) {
    CopyJob job;
    job.direction = direction;
    job.stores = stores;
    job.layout = &pages.layout();
    for (std::uint32_t i = 0; i < pages.layout().block_count; ++i) {
      job.blocks.push_back({i, slots.slot(i), TestMemory::Identity(i), 0});
    }
    return job;
  }

  JobResult RunJob(CopyJob&& job) {
    const Result<JobId> id = engine().Submit(std::move(job));
    EXPECT_TRUE(id) << ToString(id.error());
    if (!id) return {};
    harness_->Run();
    const Result<JobState> state = engine().Wait(*id, TestDeadline());
    EXPECT_TRUE(state) << ToString(state.error());
    Result<JobResult> result = engine().Take(*id);
    EXPECT_TRUE(result);
    if (!result) return {};
    EXPECT_EQ(result->state, *state);
    return std::move(*result);
  }

  // A restore of what a publish from source has just put into slots.
  CopyJob PublishedRestore(TestMemory& source, TestMemory& target, Stores stores = Stores::kOrdinary) {
    const JobResult published = RunJob(Job(Direction::kPublish, source, source, stores));
    EXPECT_EQ(published.state, JobState::kDrainedOk);
    CopyJob job = Job(Direction::kRestore, target, source, stores);
    for (std::size_t i = 0; i < job.blocks.size(); ++i) job.blocks[i].slot_checksum = published.slot_checksums.at(i);
    return job;
  }

  static bool SameBlock(const TestMemory& a, const TestMemory& b, std::uint32_t block) {
    for (std::uint32_t layer = 0; layer < a.layout().layer_count(); ++layer) {
      if (!SamePage(a, b, layer, block)) return false;
    }
    return true;
  }
  static bool SamePage(const TestMemory& a, const TestMemory& b, std::uint32_t layer, std::uint32_t block) {
    return std::memcmp(a.layout().page(layer, block), b.layout().page(layer, block), a.layout().page_bytes) == 0;
  }

  // A prepare hook that holds its job until Open.
  class Gate {
   public:
    std::function<Status()> hook() {
      return [open = open_.get_future().share()]() -> Status {
        if (open.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
          return Fail(Code::kTimedOut, "the test never opened its gate");
        }
        return {};
      };
    }
    void Open() { open_.set_value(); }

   private:
    std::promise<void> open_;
  };

  std::unique_ptr<EngineHarness> harness_;
};

TEST_P(CopyEngineConformance, PublishAndRestoreGiveTheBytesBack) {
  Start();
  for (const TestMemory::Shape shape :
       {TestMemory::Shape{1, 512, 1}, {1, 65'536, 5}, {7, 1'500, 9}, {3, 1'027, 2}, {30, 24'576, 3}, {2, 700'000, 2}}) {
    for (const Stores stores : {Stores::kOrdinary, Stores::kNonTemporal}) {
      TestMemory source(shape, 1);
      TestMemory target(shape, 2);
      CopyJob job = PublishedRestore(source, target, stores);
      // Blocks land where the plan says: the first slot in the last block.
      std::reverse(job.blocks.begin(), job.blocks.end());
      for (std::uint32_t i = 0; i < shape.blocks; ++i) job.blocks[i].block = shape.blocks - 1 - i;
      const JobResult result = RunJob(std::move(job));
      EXPECT_EQ(result.state, JobState::kDrainedOk);
      EXPECT_FALSE(result.error);
      for (std::uint32_t block = 0; block < shape.blocks; ++block) {
        EXPECT_TRUE(SameBlock(source, target, block)) << shape.layers << " layers of " << shape.page_bytes;
      }
      EXPECT_TRUE(source.GapsUnchanged());
      EXPECT_TRUE(target.GapsUnchanged());
    }
  }
}

TEST_P(CopyEngineConformance, PublishedSlotsHoldTheLibrarysChecksums) {
  Start();
  TestMemory memory(kShape, 1);
  const JobResult result = RunJob(Job(Direction::kPublish, memory, memory, Stores::kNonTemporal));
  ASSERT_EQ(result.slot_checksums.size(), kShape.blocks);
  for (std::uint32_t block = 0; block < kShape.blocks; ++block) {
    const std::span slot(memory.slot(block), SlotBytes(kShape.layers, kShape.page_bytes));
    EXPECT_TRUE(
        CheckSlot(slot, {kShape.layers, kShape.page_bytes}, TestMemory::Identity(block), result.slot_checksums[block]));
    for (std::uint32_t layer = 0; layer < kShape.layers; ++layer) EXPECT_TRUE(memory.PageUnchanged(layer, block));
  }
}

TEST_P(CopyEngineConformance, ADamagedPageFailsItsBlockOnly) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target);
  source.slot(4)[2 * kShape.page_bytes + 100] ^= std::byte{4};
  std::vector<std::uint32_t> layers;
  job.on_layer = [&](JobId, std::uint32_t layer) { layers.push_back(layer); };
  const JobResult result = RunJob(std::move(job));
  EXPECT_EQ(result.state, JobState::kDrainedFailed);
  EXPECT_EQ(result.mismatched, std::vector<std::uint32_t>{4});
  EXPECT_TRUE(result.unfinished.empty());
  EXPECT_EQ(result.error.value().code, Code::kCorrupt);
  // Once a block is known to be bad its other pages are left out, so that even the good layers may stay unreported.
  for (std::size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(layers[i], i);
  EXPECT_LE(layers.size(), 2U) << "layer 2 was not verified in every block";
  for (std::uint32_t block = 0; block < kShape.blocks; ++block) {
    EXPECT_EQ(SameBlock(source, target, block), block != 4) << block;
  }
}

TEST_P(CopyEngineConformance, AWrongListOrIdentityIsFoundBeforeAPageIsTouched) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target);
  source.slot(0)[ListOffset(kShape.layers, kShape.page_bytes) + 11] ^= std::byte{1};
  job.blocks[1].identity.hash.bytes[31] ^= std::byte{1};
  job.blocks[2].identity.namespace_digest[0] ^= std::byte{1};
  job.blocks[3].identity.group ^= 1U;
  job.blocks[4].slot_checksum ^= 1U;
  std::atomic<int> layers = 0;
  job.on_layer = [&](JobId, std::uint32_t) { ++layers; };
  const JobResult result = RunJob(std::move(job));
  EXPECT_EQ(result.state, JobState::kDrainedFailed);
  EXPECT_EQ(result.mismatched, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(layers, 0);
  for (std::uint32_t layer = 0; layer < kShape.layers; ++layer) {
    for (std::uint32_t block = 0; block < 5; ++block) EXPECT_TRUE(target.PageUnchanged(layer, block));
  }
  EXPECT_TRUE(SameBlock(source, target, 5));
}

TEST_P(CopyEngineConformance, LayersAreReportedInOrderWhenAllBlocksHaveThem) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target, Stores::kNonTemporal);
  std::uint32_t next = 0;
  std::uint32_t next_when_done = 0;
  bool ok = true;
  job.on_layer = [&](JobId id, std::uint32_t layer) {
    ok = ok && layer == next++ && engine().LayersDone(id).value() >= layer + 1;
    for (std::uint32_t block = 0; block < kShape.blocks; ++block) ok = ok && SamePage(source, target, layer, block);
  };
  job.on_done = [&](JobId, const JobResult&) { next_when_done = next; };
  const Result<JobId> id = engine().Submit(std::move(job));
  ASSERT_TRUE(id);
  harness_->Run();
  ASSERT_EQ(engine().Wait(*id, TestDeadline()).value(), JobState::kDrainedOk);
  EXPECT_TRUE(ok);
  EXPECT_EQ(next, kShape.layers);
  EXPECT_EQ(next_when_done, kShape.layers) << "on_done came before the last layer's event";
  EXPECT_EQ(engine().LayersDone(*id).value(), kShape.layers);
}

TEST_P(CopyEngineConformance, DrainWaitsForEveryJobAndEachIsReportedOnce) {
  Start();
  constexpr std::uint32_t kJobs = 10;
  std::vector<std::unique_ptr<TestMemory>> memory;
  std::vector<std::atomic<int>> reports(kJobs);
  std::vector<std::atomic<std::uint64_t>> reported_ids(kJobs);
  std::vector<JobId> ids;
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    memory.push_back(std::make_unique<TestMemory>(kShape, i));
    CopyJob job = Job(Direction::kPublish, *memory.back(), *memory.back());
    job.on_done = [&, i](JobId id, const JobResult& result) {
      reported_ids[i] = result.state == JobState::kDrainedOk ? id.value() : 0;
      ++reports[i];
    };
    ids.push_back(engine().Submit(std::move(job)).value());
  }
  harness_->Run();
  ASSERT_TRUE(engine().Drain(TestDeadline()));
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    EXPECT_EQ(reports[i], 1);
    EXPECT_EQ(reported_ids[i], ids[i].value());
    EXPECT_EQ(engine().Poll(ids[i]).value(), JobState::kDrainedOk);
    EXPECT_TRUE(engine().Take(ids[i]));
    EXPECT_EQ(engine().Take(ids[i]).error().code, Code::kNotFound);
  }
}

TEST_P(CopyEngineConformance, ATimeoutChangesNothing) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target);
  Gate gate;
  job.prepare = gate.hook();
  const JobId id = engine().Submit(std::move(job)).value();
  EXPECT_EQ(engine().Wait(id, os::MonotonicNs()).error().code, Code::kTimedOut);
  EXPECT_EQ(engine().Drain(os::MonotonicNs()).error().code, Code::kTimedOut);
  EXPECT_FALSE(IsDrained(engine().Poll(id).value()));
  EXPECT_EQ(engine().Take(id).error().code, Code::kNotFound);
  gate.Open();
  harness_->Run();
  EXPECT_EQ(engine().Wait(id, TestDeadline()).value(), JobState::kDrainedOk);
  for (std::uint32_t block = 0; block < kShape.blocks; ++block) EXPECT_TRUE(SameBlock(source, target, block));
}

TEST_P(CopyEngineConformance, AFullQueueIsBusyAndLeavesTheJobWithTheCaller) {
  Start(2);
  TestMemory memory[3] = {{kShape, 1}, {kShape, 2}, {kShape, 3}};
  Gate gates[2];
  for (int i = 0; i < 2; ++i) {
    CopyJob job = Job(Direction::kPublish, memory[i], memory[i]);
    job.prepare = gates[i].hook();
    ASSERT_TRUE(engine().Submit(std::move(job)));
  }
  CopyJob third = Job(Direction::kPublish, memory[2], memory[2]);
  EXPECT_EQ(engine().Submit(std::move(third)).error().code, Code::kBusy);
  // NOLINTNEXTLINE(bugprone-use-after-move): that a refused job stays whole is what is tested.
  EXPECT_EQ(third.blocks.size(), kShape.blocks);
  for (Gate& gate : gates) gate.Open();
  harness_->Run();
  ASSERT_TRUE(engine().Drain(TestDeadline()));
  // NOLINTNEXTLINE(bugprone-use-after-move)
  EXPECT_EQ(RunJob(std::move(third)).state, JobState::kDrainedOk);
}

TEST_P(CopyEngineConformance, ACancelledJobDrainsWithoutCopying) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target);
  Gate gate;
  int reports = 0;
  job.prepare = gate.hook();
  job.on_done = [&](JobId, const JobResult&) { ++reports; };
  const JobId id = engine().Submit(std::move(job)).value();
  EXPECT_TRUE(engine().Cancel(id));
  EXPECT_EQ(engine().Wait(id, 0).error().code, Code::kTimedOut) << "cancelling is not draining";
  gate.Open();
  harness_->Run();
  EXPECT_EQ(engine().Wait(id, TestDeadline()).value(), JobState::kDrainedFailed);
  const JobResult result = engine().Take(id).value();
  EXPECT_EQ(result.unfinished.size(), kShape.blocks);
  EXPECT_TRUE(result.mismatched.empty());
  EXPECT_EQ(result.error.value().code, Code::kCancelled);
  EXPECT_EQ(reports, 1);
  for (std::uint32_t block = 0; block < kShape.blocks; ++block) EXPECT_TRUE(target.PageUnchanged(0, block));
  EXPECT_TRUE(engine().Cancel(id)) << "cancelling a drained job changes nothing";
  EXPECT_EQ(engine().Poll(id).value(), JobState::kDrainedFailed);
}

TEST_P(CopyEngineConformance, StopFinishesWhatWasAccepted) {
  Start();
  TestMemory memory[3] = {{kShape, 1}, {kShape, 2}, {kShape, 3}};
  std::vector<JobId> ids;
  for (TestMemory& m : memory) ids.push_back(engine().Submit(Job(Direction::kPublish, m, m)).value());
  engine().Stop();
  for (const JobId id : ids) EXPECT_EQ(engine().Poll(id).value(), JobState::kDrainedOk);
  EXPECT_EQ(engine().Submit(Job(Direction::kPublish, memory[0], memory[0])).error().code, Code::kCancelled);
  engine().Stop();
}

TEST_P(CopyEngineConformance, AFailedPrepareFailsTheJobUntouched) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  CopyJob job = PublishedRestore(source, target);
  job.prepare = [] { return Status(Fail(Code::kExhausted, "no memory behind the mapping")); };
  const JobResult result = RunJob(std::move(job));
  EXPECT_EQ(result.state, JobState::kDrainedFailed);
  EXPECT_EQ(result.error.value().code, Code::kExhausted);
  EXPECT_EQ(result.unfinished.size(), kShape.blocks);
  for (std::uint32_t block = 0; block < kShape.blocks; ++block) EXPECT_TRUE(target.PageUnchanged(0, block));
}

TEST_P(CopyEngineConformance, BeforeBlockRunsOnceForEachBlock) {
  Start();
  TestMemory source(kShape, 1);
  TestMemory target(kShape, 2);
  for (const Direction direction : {Direction::kPublish, Direction::kRestore}) {
    const bool publish = direction == Direction::kPublish;
    CopyJob job = publish ? Job(direction, source, source) : PublishedRestore(source, target);
    std::vector<std::atomic<int>> calls(kShape.blocks);
    job.before_block = [&](const BlockCopy& block) {
      EXPECT_EQ(block.slot, source.slot(block.block));
      ++calls.at(block.block);
    };
    EXPECT_EQ(RunJob(std::move(job)).state, JobState::kDrainedOk);
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST_P(CopyEngineConformance, BadJobsAndUnknownIdsAreRefused) {
  Start();
  TestMemory memory(kShape, 1);
  const auto refused = [&](auto change) {
    CopyJob job = Job(Direction::kPublish, memory, memory);
    change(job);
    const Result<JobId> id = engine().Submit(std::move(job));
    return !id && id.error().code == Code::kInvalid;
  };
  EXPECT_TRUE(refused([](CopyJob& job) { job.layout = nullptr; }));
  EXPECT_TRUE(refused([](CopyJob& job) { job.blocks.clear(); }));
  EXPECT_TRUE(refused([](CopyJob& job) { job.blocks[1].block = kShape.blocks; }));
  EXPECT_TRUE(refused([](CopyJob& job) { job.blocks[1].slot = nullptr; }));
  const PageLayout empty;
  EXPECT_TRUE(refused([&](CopyJob& job) { job.layout = &empty; }));
  for (const JobId id : {JobId{}, JobId{12345}}) {
    EXPECT_EQ(engine().Poll(id).error().code, Code::kStale);
    EXPECT_EQ(engine().Wait(id, 0).error().code, Code::kStale);
    EXPECT_EQ(engine().Take(id).error().code, Code::kStale);
    EXPECT_EQ(engine().Cancel(id).error().code, Code::kStale);
    EXPECT_EQ(engine().LayersDone(id).error().code, Code::kStale);
  }
}

inline std::string EngineCaseName(const testing::TestParamInfo<EngineCase>& info) { return info.param.name; }

}  // namespace orbitkv::copy
