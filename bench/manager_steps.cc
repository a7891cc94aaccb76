#include "manager_steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <vector>

#include "child.h"
#include "subjects.h"

#include "orbitkv/base/check.h"
#include "orbitkv/manager/commands.h"
#include "orbitkv/manager/core.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::bench {
namespace {

using manager::CommandRunner;

constexpr std::size_t kInserts = 1'000'000;
constexpr std::uint32_t kSlots = 400'000;  // so that most inserts evict
constexpr std::uint64_t kPageBytes = 64'000;
constexpr std::uint64_t kPool = std::uint64_t{kSlots} * 64 * 1024;
constexpr std::size_t kPrompt = 8192;  // blocks of one chain

std::uint64_t CpuNs() {
  timespec now{};
  ORBITKV_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// The Manager's deciding half with one engine, stepped as the dispatcher does. The pool's own memory is never touched.
class SteppedManager {
 public:
  SteppedManager() {
    manager::Config config;
    config.pool_bytes = kPool;
    config.max_slots = kSlots;
    auto core = manager::Core::Create(config, 7);
    ORBITKV_CHECK(core.has_value());
    core_ = std::move(*core);
    ORBITKV_CHECK(core_->pool().AddReserved(kPool).has_value());
    service::Service& service = core_->service();
    const SessionId session(1);
    ORBITKV_CHECK(service.OpenSession(session, service::Purpose::kControl, 1).has_value());
    service::Registration registration;
    registration.instance = "bench-steps";
    registration.role = service::Role::kBoth;
    registration.world_size = 1;
    registration.shard_count = 1;
    registration.computation[0] = std::byte{1};
    registration.representation.emplace();
    registration.groups = {{.block_tokens = 32, .page_count = 1, .page_bytes = kPageBytes}};
    ORBITKV_CHECK(!service.Register(session, registration, now_ns_).refused);
    runner_ = std::make_unique<CommandRunner>(service, session);
  }

  // Reserves and commits the blocks of a chain from `first` on.
  void Insert(std::span<const state::BlockHash> chain, std::size_t first, std::size_t count) {
    wire::ReserveHeader header{};
    header.first_depth = static_cast<std::uint32_t>(first);
    if (first > 0) header.parent = chain[first - 1];
    header.slot_bytes = static_cast<std::uint32_t>(kPageBytes + sizeof(std::uint64_t));
    const auto reserve = Run({.command = wire::Command::kPublishReserve,
                              .args = Args(wire::EncodeReserve(header, chain.subspan(first, count)))});
    const auto entries = wire::DecodeReserveAnswer(reserve.payload);
    ORBITKV_CHECK(entries.has_value() && entries->size() == count);
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < count; ++i) {
      ORBITKV_CHECK((*entries)[i].status == static_cast<std::uint32_t>(wire::ReserveStatus::kSlot));
      commits.push_back({1, (*entries)[i].generation, i, 0});
    }
    const auto commit = Run({.command = wire::Command::kPublishCommit,
                             .scalar0 = reserve.scalar0,
                             .args = Args(wire::EncodeCommit(commits))});
    ORBITKV_CHECK(commit.scalar0 == count);
  }
  // Processor time, in nanoseconds, of a look-up that must end with this status.
  double Query(std::uint64_t request_key, std::span<const state::BlockHash> hashes, wire::AnswerStatus status) {
    wire::QueryHeader header;
    header.request_key_lo = request_key;
    const auto args = Args(wire::EncodeQuery(header, hashes));
    // Copying the arguments of a large look-up pushes all else out of the caches, so a small one starts so too.
    EmptyCaches();
    manager::CommandAnswer answer;
    const std::uint64_t start = CpuNs();
    const auto progress = runner_->Start({.command = wire::Command::kQuerySubmit, .args = args}, now_ns_, answer);
    const auto elapsed = static_cast<double>(CpuNs() - start);
    ORBITKV_CHECK(progress == CommandRunner::Progress::kDone && answer.status == status);
    return elapsed;
  }
  // What a look-up of the whole chain pins goes when its lease expires, and what a restore of it pins at its end.
  void LeaseExpiresAndRestoreEnds(std::span<const state::BlockHash> chain, std::vector<double>& expiry_us,
                                  std::vector<double>& end_us) {
    const auto count = static_cast<std::uint32_t>(chain.size());
    wire::QueryHeader header;
    header.request_key_lo = ++request_;
    const auto found = Run({.command = wire::Command::kQuerySubmit, .args = Args(wire::EncodeQuery(header, chain))});
    ORBITKV_CHECK(static_cast<std::uint32_t>(found.scalar1) == count);
    const std::uint32_t rank = 0;
    (void)Run({.command = wire::Command::kRestoreBegin,
               .scalar0 = found.scalar0,
               .scalar1 = request_,
               .args = Args(wire::EncodeBegin(count, std::span(&rank, 1)))});
    (void)Run({.command = wire::Command::kRestorePlan, .scalar0 = request_, .args = {}});
    EmptyCaches();
    const std::size_t before = steps_us_.size();
    (void)Run({.command = wire::Command::kRestoreEnd,
               .scalar0 = request_,
               .scalar1 = static_cast<std::uint64_t>(wire::EndResult::kOk) << 32U,
               .args = {}});
    end_us.push_back(*std::max_element(steps_us_.begin() + static_cast<std::ptrdiff_t>(before), steps_us_.end()));

    header.request_key_lo = ++request_;
    (void)Run({.command = wire::Command::kQuerySubmit, .args = Args(wire::EncodeQuery(header, chain))});
    now_ns_ += service::Limits{}.lease_ns;
    EmptyCaches();
    double worst = 0;
    while (core_->service().NextDeadline().value_or(~0ULL) <= now_ns_) {
      const std::uint64_t start = CpuNs();
      core_->service().Tick(now_ns_);
      worst = std::max(worst, static_cast<double>(CpuNs() - start) / 1e3);
    }
    expiry_us.push_back(worst);
  }
  std::uint64_t evictions() const { return core_->cache().counters().evictions; }
  std::vector<double>& steps_us() { return steps_us_; }

 private:
  void EmptyCaches() {
    for (std::size_t at = 0; at < emptier_.size(); at += 8) emptier_[at] += 1;
  }
  // Payloads are decoded where they lie, from an 8-byte boundary.
  std::span<const std::byte> Args(std::vector<std::byte> bytes) {
    args_.assign((bytes.size() + 7) / 8, 0);
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(args_)).begin());
    return std::as_bytes(std::span(args_)).first(bytes.size());
  }
  template <typename Step>
  auto Timed(const Step& step) {
    const std::uint64_t start = CpuNs();
    const auto result = step();
    steps_us_.push_back(static_cast<double>(CpuNs() - start) / 1e3);
    return result;
  }
  manager::CommandAnswer Run(const manager::CommandRequest& request) {
    manager::CommandAnswer answer;
    bool more = Timed([&] { return runner_->Start(request, now_ns_, answer); }) == CommandRunner::Progress::kMore;
    while (more) {
      more = Timed([&] { return runner_->Continue(~0ULL, now_ns_, answer); }) == CommandRunner::Progress::kMore;
    }
    ORBITKV_CHECK(answer.status == wire::AnswerStatus::kOk);
    now_ns_ += 1'000'000;
    if (const auto deadline = core_->service().NextDeadline(); deadline && *deadline <= now_ns_) {
      Timed([&] {
        core_->service().Tick(now_ns_);
        return 0;
      });
    }
    return answer;
  }
  std::unique_ptr<manager::Core> core_;
  std::unique_ptr<CommandRunner> runner_;
  std::vector<std::uint64_t> args_;
  std::vector<std::uint64_t> emptier_ = std::vector<std::uint64_t>(8U << 20U);
  std::vector<double> steps_us_;
  std::uint64_t now_ns_ = 1'000'000'000;
  std::uint64_t request_ = 0;
};

void MeasureSteps(Report& report, std::size_t blocks_per_request) {
  SteppedManager manager;
  for (std::size_t done = 0; done < kInserts; done += kPrompt) {
    const auto chain = MakeHashes(1'000 + done, kPrompt);
    for (std::size_t first = 0; first < kPrompt; first += blocks_per_request) {
      manager.Insert(chain, first, blocks_per_request);
    }
  }
  ORBITKV_CHECK(manager.evictions() >= kInserts - kSlots);
  std::vector<double>& steps = manager.steps_us();
  const std::size_t count = steps.size();
  report.Add({"dispatcher.worst_step_us." + std::to_string(blocks_per_request), Quantile(steps, 1.0), "us", "target",
              1000, count});
}

// The longest turns that do not come from a request of their size.
void MeasureReleases(Report& report) {
  constexpr std::size_t kBlocks = 16'384;
  constexpr int kRounds = 20;
  SteppedManager manager;
  const auto chain = MakeHashes(77, kBlocks);
  for (std::size_t first = 0; first < kBlocks; first += 512) manager.Insert(chain, first, 512);
  std::vector<double> expiry_us;
  std::vector<double> end_us;
  for (int round = 0; round < kRounds; ++round) manager.LeaseExpiresAndRestoreEnds(chain, expiry_us, end_us);
  const std::string blocks = "." + std::to_string(kBlocks);
  report.Add({"dispatcher.lease_expiry_us" + blocks, Quantile(expiry_us, 0.5), "us", "target", 1000, kRounds});
  report.Add({"dispatcher.restore_end_us" + blocks, Quantile(end_us, 0.5), "us", "target", 1000, kRounds});
}

// A session that holds as many answers as it may is told to come back, however much it asks for.
void MeasureRejection(Report& report) {
  constexpr int kCalls = 300;
  SteppedManager manager;
  const auto hashes = MakeHashes(31, 100'000);
  const auto few = std::span(hashes).first(256);
  manager.Insert(few, 0, few.size());
  std::uint64_t request = 0;
  for (std::uint32_t i = 0; i < service::Limits{}.operations_per_session; ++i) {
    (void)manager.Query(++request, few, wire::AnswerStatus::kOk);
  }
  std::vector<double> large_ns;
  std::vector<double> small_ns;
  for (int call = 0; call < kCalls; ++call) {
    large_ns.push_back(manager.Query(++request, hashes, wire::AnswerStatus::kBusy));
    small_ns.push_back(manager.Query(++request, few, wire::AnswerStatus::kBusy));
  }
  report.Add({"query.rejected_100000_ns", Quantile(large_ns, 0.5), "ns", "a rejected look-up of 256 hashes",
              Quantile(small_ns, 0.5), large_ns.size()});
}

void MeasureMemory(const std::string& manager_program, const std::string& scratch, Report& report) {
  const std::string socket_path = scratch + "/steps.sock";
  const Child manager = Child::Exec(1,
                                    {manager_program, "--socket", socket_path, "--pool-bytes", "1GiB", "--max-slots",
                                     "1100000", "--log-level", "error"},
                                    "ready");
  BenchClient client(socket_path, "bench-memory", {.blocks = 4096, .page_bytes = 512});
  const std::uint64_t before_kib = manager.MemoryKib();
  for (std::size_t done = 0; done < kInserts; done += kPrompt) client.Publish(MakeHashes(5'000 + done, kPrompt));
  const auto grown_kib = static_cast<double>(manager.MemoryKib() - before_kib);
  report.Add({"manager.mib_per_million_blocks", grown_kib / 1024, "MiB", "", 0, 1});
}

}  // namespace

void MeasureManagerSteps(const std::string& manager_program, const std::string& scratch, Report& report) {
  ORBITKV_CHECK(os::PinThread(0).has_value());
  for (const std::size_t blocks : {std::size_t{512}, std::size_t{4096}}) MeasureSteps(report, blocks);
  MeasureReleases(report);
  MeasureRejection(report);
  MeasureMemory(manager_program, scratch, report);
}

}  // namespace orbitkv::bench
