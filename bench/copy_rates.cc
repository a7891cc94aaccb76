#include "copy_rates.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/host_engine.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::bench {
namespace {

using copy::Direction;
using copy::Stores;

constexpr int kThreads = 2;
constexpr int kRounds = 15;
constexpr std::uint64_t kWaitNs = 60'000'000'000;

struct Shape {
  const char* name;
  std::uint32_t blocks;
  std::uint32_t layers;
  std::uint64_t page_bytes;
  std::uint64_t payload_bytes() const { return std::uint64_t{blocks} * layers * page_bytes; }
};
constexpr std::array kShapes = {Shape{"30x24KiB", 128, 30, 24 * 1024}, Shape{"64KiB", 256, 1, 64 * 1024},
                                Shape{"1MiB", 256, 1, 1024 * 1024}};

// The plain copies run on threads that are woken and waited for as the engine's are.
class PlainCopier {
 public:
  PlainCopier() {
    for (int i = 0; i < kThreads; ++i) {
      threads_[i] = std::make_unique<os::Thread>();
      ORBITKV_CHECK(threads_[i]->Start("plain-copy", [this, i] { Run(i); }).has_value());
    }
  }
  ~PlainCopier() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    for (auto& thread : threads_) thread->Join();
  }
  // Calls part(i) on thread i and waits for all.
  void Call(std::function<void(int)> part) {
    const MutexLock lock(mutex_);
    part_ = std::move(part);
    ++turn_;
    running_ = kThreads;
    changed_.NotifyAll();
    while (running_ != 0) changed_.Wait(mutex_);
  }

 private:
  void Run(int index) {
    ORBITKV_CHECK(os::PinThread(index).has_value());
    std::uint64_t seen = 0;
    for (;;) {
      std::function<void(int)> part;
      {
        const MutexLock lock(mutex_);
        while (turn_ == seen && !stopping_) changed_.Wait(mutex_);
        if (stopping_) return;
        seen = turn_;
        part = part_;
      }
      part(index);
      copy::StoreFence();
      const MutexLock lock(mutex_);
      if (--running_ == 0) changed_.NotifyAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::function<void(int)> part_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t turn_ ORBITKV_GUARDED_BY(mutex_) = 0;
  int running_ ORBITKV_GUARDED_BY(mutex_) = 0;
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;
  std::array<std::unique_ptr<os::Thread>, kThreads> threads_;
};

// The memory of one shape: pages that are published, pages that are restored, the pool between them.
class Rig {
 public:
  explicit Rig(const Shape& shape)
      : shape_(shape),
        slot_stride_((copy::SlotBytes(shape.layers, shape.page_bytes) + 4095) / 4096 * 4096),
        source_memory_(Pages()),
        target_memory_(Pages()),
        source_(Layout(source_memory_)),
        target_(Layout(target_memory_)) {
    auto file = os::CreateMemfd("orbitkv-bench-pool", slot_stride_ * shape.blocks);
    ORBITKV_CHECK(file.has_value());
    file_ = std::move(*file);
    pool_ = MapPool();
    Prng prng(1);
    for (std::uint64_t at = 0; at < source_memory_.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.Next();
      std::memcpy(source_memory_.data() + at, &word, sizeof(word));
    }
    std::memset(target_memory_.data(), 1, target_memory_.size());
    std::memset(pool_.data(), 1, pool_.size());
    // An engine's blocks are anywhere in its memory.
    for (std::uint32_t i = 0; i < shape.blocks; ++i) order_.push_back(i);
    for (std::uint32_t i = shape.blocks - 1; i > 0; --i) std::swap(order_[i], order_[prng.Below(i + 1)]);
  }

  os::Mapping MapPool() const {
    auto mapping = os::Mapping::Map(file_.get(), slot_stride_ * shape_.blocks, os::Access::kReadWrite);
    ORBITKV_CHECK(mapping.has_value());
    return std::move(*mapping);
  }
  std::byte* populated_pool() const { return pool_.data(); }
  // Faults a slot of a fresh mapping in, as the client does before it writes it.
  void Populate(os::Mapping& fresh, const std::byte* slot) const {
    const auto offset = static_cast<std::uint64_t>(slot - fresh.data());
    ORBITKV_CHECK(fresh.Populate(offset, slot_stride_, os::Access::kRead).has_value());
  }

  copy::CopyJob Job(Direction direction, Stores stores, std::byte* pool) const {
    copy::CopyJob job;
    job.direction = direction;
    job.stores = stores;
    job.layout = direction == Direction::kPublish ? &source_ : &target_;
    for (std::uint32_t i = 0; i < shape_.blocks; ++i) {
      const std::uint64_t checksum = slot_checksums_.empty() ? 0 : slot_checksums_[i];
      job.blocks.push_back({order_[i], pool + slot_stride_ * i, state::StateKey{}, checksum});
    }
    return job;
  }
  void KeepChecksums(std::vector<std::uint64_t> checksums) { slot_checksums_ = std::move(checksums); }

  // One thread's half of the same pages in the engine's order, without checksums.
  void PlainCopy(Direction direction, Stores stores, std::byte* pool, int part) const {
    const std::uint64_t pages = std::uint64_t{shape_.blocks} * shape_.layers;
    const std::uint64_t end = pages * static_cast<std::uint64_t>(part + 1) / kThreads;
    for (std::uint64_t page = pages * static_cast<std::uint64_t>(part) / kThreads; page < end; ++page) {
      const bool publish = direction == Direction::kPublish;
      const auto layer = static_cast<std::uint32_t>(publish ? page % shape_.layers : page / shape_.blocks);
      const auto index = static_cast<std::uint32_t>(publish ? page / shape_.layers : page % shape_.blocks);
      std::byte* in_slot = pool + slot_stride_ * index + layer * shape_.page_bytes;
      std::byte* in_engine = (publish ? source_ : target_).page(layer, order_[index]);
      copy::Copy(publish ? in_slot : in_engine, publish ? in_engine : in_slot, shape_.page_bytes, stores);
    }
  }

  // Before a run: a wrong word in every page that the run must write.
  void Spoil(Direction direction) const {
    ForEachPage(direction, [](std::byte* written, const std::byte*) { std::memset(written, 0xee, 8); });
  }
  void Verify(Direction direction) const {
    ForEachPage(direction, [this](const std::byte* written, const std::byte* source) {
      ORBITKV_CHECK(std::memcmp(written, source, shape_.page_bytes) == 0);
    });
  }

 private:
  os::Mapping Pages() const {
    auto mapping = os::Mapping::Anonymous(shape_.payload_bytes());
    ORBITKV_CHECK(mapping.has_value());
    return std::move(*mapping);
  }
  copy::PageLayout Layout(const os::Mapping& memory) const {
    copy::PageLayout layout;
    layout.page_bytes = shape_.page_bytes;
    layout.block_count = shape_.blocks;
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      layout.layers.push_back({memory.data() + layer * shape_.page_bytes * shape_.blocks, shape_.page_bytes});
    }
    return layout;
  }
  template <typename Fn>
  void ForEachPage(Direction direction, const Fn& fn) const {
    for (std::uint32_t i = 0; i < shape_.blocks; ++i) {
      for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
        std::byte* in_slot = pool_.data() + slot_stride_ * i + layer * shape_.page_bytes;
        std::byte* source = source_.page(layer, order_[i]);
        fn(direction == Direction::kPublish ? in_slot : target_.page(layer, order_[i]), source);
      }
    }
  }

  const Shape shape_;
  const std::uint64_t slot_stride_;
  os::UniqueFd file_;
  os::Mapping source_memory_;
  os::Mapping target_memory_;
  os::Mapping pool_;
  copy::PageLayout source_;
  copy::PageLayout target_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint64_t> slot_checksums_;
};

enum Subject : std::uint8_t {
  kPublish,
  kRestoreOrdinary,
  kRestoreNt,
  kPlainPublishOrdinary,
  kPlainPublishNt,
  kPlainRestoreOrdinary,
  kPlainRestoreNt,
  kSubjects
};

class Measurement {
 public:
  explicit Measurement(const Shape& shape) : shape_(shape), rig_(shape) {
    copy::HostEngineOptions options;
    options.threads = kThreads;
    options.cpus = {0, 1};
    auto engine = copy::HostCopyEngine::Create(options);
    ORBITKV_CHECK(engine.has_value());
    engine_ = std::move(*engine);
  }

  void Run(Report& report, bool cold) {
    std::array<std::vector<double>, kSubjects> samples;
    for (int round = -1; round < kRounds; ++round) {
      for (int subject = 0; subject < kSubjects; ++subject) {
        const double gbps = Sample(static_cast<Subject>(subject), cold);
        if (round >= 0) samples[static_cast<std::size_t>(subject)].push_back(gbps);
      }
    }
    std::array<double, kSubjects> median{};
    for (std::size_t i = 0; i < kSubjects; ++i) median[i] = Quantile(samples[i], 0.5);
    const std::string end = cold ? ".cold" : "";
    const bool nt_is_best = median[kPlainPublishNt] >= median[kPlainPublishOrdinary];
    const auto add = [&](const std::string& name, Subject subject, const char* baseline, Subject baseline_subject) {
      report.Add(
          {name + end, median[subject], "GB/s", baseline, median[baseline_subject], static_cast<std::size_t>(kRounds)});
    };
    const std::string name = shape_.name;
    add("publish.gbps." + name, kPublish, nt_is_best ? "plain non-temporal copy" : "memcpy",
        nt_is_best ? kPlainPublishNt : kPlainPublishOrdinary);
    add("restore.gbps." + name + ".ordinary", kRestoreOrdinary, "memcpy", kPlainRestoreOrdinary);
    add("restore.gbps." + name + ".nt", kRestoreNt, "plain non-temporal copy", kPlainRestoreNt);
  }

 private:
  double Sample(Subject subject, bool cold) {
    const bool publish = subject == kPublish || subject == kPlainPublishOrdinary || subject == kPlainPublishNt;
    const Direction direction = publish ? Direction::kPublish : Direction::kRestore;
    const bool nt =
        subject == kPublish || subject == kRestoreNt || subject == kPlainPublishNt || subject == kPlainRestoreNt;
    const Stores stores = nt ? Stores::kNonTemporal : Stores::kOrdinary;
    rig_.Spoil(direction);
    os::Mapping fresh;
    if (cold) fresh = rig_.MapPool();
    std::byte* pool = cold ? fresh.data() : rig_.populated_pool();
    std::uint64_t elapsed_ns = 0;
    if (subject < kPlainPublishOrdinary) {
      copy::CopyJob job = rig_.Job(direction, stores, pool);
      if (cold && publish) job.before_block = [&](const copy::BlockCopy& block) { rig_.Populate(fresh, block.slot); };
      elapsed_ns = Engine(std::move(job));
    } else {
      elapsed_ns = Plain(direction, stores, pool);
    }
    rig_.Verify(direction);
    return static_cast<double>(shape_.payload_bytes()) / static_cast<double>(elapsed_ns);
  }

  std::uint64_t Engine(copy::CopyJob job) {
    const Direction direction = job.direction;
    const std::uint64_t start = os::MonotonicNs();
    const auto id = engine_->Submit(std::move(job));
    ORBITKV_CHECK(id.has_value());
    const auto state = engine_->Wait(*id, start + kWaitNs);
    const std::uint64_t elapsed_ns = os::MonotonicNs() - start;
    ORBITKV_CHECK(state.has_value() && *state == copy::JobState::kDrainedOk);
    auto result = engine_->Take(*id);
    ORBITKV_CHECK(result.has_value());
    if (direction == Direction::kPublish) rig_.KeepChecksums(std::move(result->slot_checksums));
    return elapsed_ns;
  }

  std::uint64_t Plain(Direction direction, Stores stores, std::byte* pool) {
    const std::uint64_t start = os::MonotonicNs();
    plain_.Call([&](int part) { rig_.PlainCopy(direction, stores, pool, part); });
    return os::MonotonicNs() - start;
  }

  const Shape shape_;
  Rig rig_;
  std::unique_ptr<copy::HostCopyEngine> engine_;
  PlainCopier plain_;
};

}  // namespace

void MeasureCopyRates(Report& report) {
  for (const Shape& shape : kShapes) {
    Measurement measurement(shape);
    measurement.Run(report, false);
    measurement.Run(report, true);
  }
}

}  // namespace orbitkv::bench
