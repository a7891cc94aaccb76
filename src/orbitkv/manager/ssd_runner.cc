#include "orbitkv/manager/ssd_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "orbitkv/orbite/file/file_port.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/random.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "ssd";
constexpr std::uint64_t kLockPollNs = 20'000'000;
constexpr std::uint64_t kRecoveryWaitNs = 1'000'000'000;
// Of a stop, for what was taken and has not begun.
constexpr std::uint64_t kStopNs = 5'000'000'000;

std::string Explain(const std::string& path, const Error& error) {
  switch (error.code) {
    case Code::kRefused:
      return error.a != 0
                 ? fmt::format("{} is in use by process {}; stop it or give another --ssd-path", path, error.a)
                 : fmt::format("{} is in use, by another process or given twice; give another --ssd-path", path);
    case Code::kExhausted: return fmt::format("{}: {}; give a smaller --ssd-bytes or make room", path, ToString(error));
    case Code::kNotFound:
      return fmt::format("{}: its directory does not exist; make it or give another --ssd-path", path);
    default: return fmt::format("{}: {}; give another --ssd-path", path, ToString(error));
  }
}

std::string ExplainStore(const std::string& path, const Error& error) {
  switch (error.code) {
    case Code::kUnsupported:
      return fmt::format("{}: {} [{}, {}]; remove it to start anew, or use the Manager that wrote it", path, error.text,
                         error.a, error.b);
    case Code::kRefused:
      return fmt::format("{} is a store of {} bytes; give --ssd-bytes {} or remove it", path, error.a, error.a);
    case Code::kInvalid:
      return fmt::format("{}: {} [{}, {}]; it is left as it is: remove it or give another --ssd-path", path, error.text,
                         error.a, error.b);
    default: return fmt::format("{}: {}; check the device, or remove the file to start anew", path, ToString(error));
  }
}

}  // namespace

std::string SsdRunner::OpenFile() {
  for (;;) {
    auto file = os::DirectFile::Open(
        options_.path, options_.bytes != 0 ? os::DirectFile::Use::kCreateIfAbsent : os::DirectFile::Use::kReadWrite);
    if (file) {
      file_.emplace(std::move(*file));
      break;
    }
    if (file.error().code == Code::kNotFound && options_.bytes == 0) {
      return fmt::format("{} does not exist; give its size with --ssd-bytes to have it made", options_.path);
    }
    // A process that was killed has its files until its memory is torn down.
    if (file.error().code != Code::kRefused || os::MonotonicNs() >= options_.deadline_ns) {
      return Explain(options_.path, file.error());
    }
    os::WaitReadable(-1, std::min(os::DeadlineAfter(kLockPollNs), options_.deadline_ns));
  }
  const std::uint64_t there = file_->bytes();
  const std::uint64_t wanted =
      options_.bytes != 0 ? options_.bytes / wire::kStoreBlockBytes * wire::kStoreBlockBytes : there;
  if (wanted == 0) return fmt::format("{} is empty; give its size with --ssd-bytes", options_.path);
  // A first start that was killed while it reserved the file leaves less of it, and nothing in it.
  const bool begun = !file_->block_device() && there < wanted && file_->IsBlank().value_or(false);
  if (!file_->block_device() && there != wanted && !begun) {
    return fmt::format("{} has {} bytes; give --ssd-bytes {} or remove it", options_.path, there, there);
  }
  if (const Status reserved = file_->Reserve(wanted); !reserved) return Explain(options_.path, reserved.error());
  if (!file_->direct()) {
    log::Warning(kTag, "path={} its file system refuses O_DIRECT: blocks also take room in the page cache",
                 options_.path);
  }
  return {};
}

std::string SsdRunner::OpenStore() {
  auto event = os::EventFd::Create();
  if (!event) return Explain(options_.path, event.error());
  event_ = std::move(*event);
  orbite::FilePortOptions port_options;
  port_options.fds = {file_->fd()};
  port_options.event_fd = event_.fd();
  port_options.operations = options_.log.reads + options_.log.writes;
  auto port = options_.ring ? orbite::MakeFilePort(port_options, &uses_ring_) : orbite::MakeThreadPort(port_options);
  if (!port) return Explain(options_.path, port.error());
  port_ = options_.around ? options_.around(std::move(*port), event_.fd()) : std::move(*port);

  store::StoreConfig config;
  config.file_bytes = options_.bytes != 0 ? options_.bytes / wire::kStoreBlockBytes * wire::kStoreBlockBytes
                                          : file_->bytes() / wire::kStoreBlockBytes * wire::kStoreBlockBytes;
  config.align = file_->align();
  config.log = options_.log;
  std::array<std::byte, sizeof config.uuid + sizeof config.seed + sizeof config.skip> random{};
  if (const Status got = os::RandomBytes(random); !got) return Explain(options_.path, got.error());
  std::copy_n(random.begin(), config.uuid.size(), config.uuid.begin());
  std::memcpy(&config.seed, random.data() + config.uuid.size(), sizeof config.seed);
  std::memcpy(&config.skip, random.data() + config.uuid.size() + sizeof config.seed, sizeof config.skip);
  const std::uint64_t began_ns = os::MonotonicNs();
  auto opened = store::Store::Open(
      *port_, config,
      [this] {
        os::WaitReadable(event_.fd(), os::DeadlineAfter(kRecoveryWaitNs));
        event_.Drain();
        return os::MonotonicNs();
      },
      os::UnixSeconds());
  if (!opened) return ExplainStore(options_.path, opened.error());
  store_ = std::move(*opened);
  recovery_ns_ = os::MonotonicNs() - began_ns;
  return {};
}

std::expected<std::unique_ptr<SsdRunner>, std::string> SsdRunner::Open(const Options& options) {
  auto runner = std::unique_ptr<SsdRunner>(new SsdRunner(options));
  if (std::string problem = runner->OpenFile(); !problem.empty()) return std::unexpected(std::move(problem));
  if (std::string problem = runner->OpenStore(); !problem.empty()) return std::unexpected(std::move(problem));
  const store::RecoveryReport& report = runner->recovered();
  log::Info(kTag,
            "opened path={} bytes={} io_uring={} new={} records={} segments_scanned={} records_torn={} "
            "summaries_damaged={} segments_unreadable={} recovery_ms={}",
            options.path, runner->gauges().file_bytes, runner->uses_ring_, report.formatted, report.records,
            report.scanned_segments, report.torn_records, report.damaged_summaries, report.unreadable_segments,
            runner->recovery_ns_ / 1'000'000);
  return runner;
}

Status SsdRunner::Start(std::span<std::byte> pool, Report report) {
  store_->log().AttachPool(pool);
  report_ = std::move(report);
  return thread_.Start("okv-ssd", [this] { Run(); });
}

void SsdRunner::Stop() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  if (event_.valid()) event_.Signal();
  thread_.Join();
}

void SsdRunner::Load(const store::LoadJob& job) {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    first = loads_.empty() && saves_.empty();
    loads_.push_back(job);
  }
  if (first) event_.Signal();
}

void SsdRunner::Save(const store::SaveJob& job) {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    first = loads_.empty() && saves_.empty();
    saves_.push_back(job);
  }
  if (first) event_.Signal();
}

void SsdRunner::Run() {
  while (!Turn()) os::WaitReadable(event_.fd(), store_->log().next_due_ns());
}

bool SsdRunner::Turn() {
  event_.Drain();
  std::vector<store::LoadJob> loads;
  std::vector<store::SaveJob> saves;
  bool stop = false;
  {
    const MutexLock lock(mutex_);
    loads.swap(loads_);
    saves.swap(saves_);
    stop = stop_;
  }
  store::Log& log = store_->log();
  for (const store::LoadJob& job : loads) log.Load(job);
  for (const store::SaveJob& job : saves) log.Save(job);
  const std::uint64_t now_ns = os::MonotonicNs();
  if (stop) log.Finish(now_ns, kStopNs);
  store_->Step(now_ns, os::UnixSeconds());
  if (stop) log.Flush(now_ns);
  for (const store::LogEnd& end : log.TakeEnds()) report_(end);
  TellFaults(log.counters());
  return stop && log.idle();
}

void SsdRunner::TellFaults(const store::LogCounters& counters) {
  const auto bad = [](const store::LogCounters& c) {
    return c.read_errors + c.write_errors + c.loads_wrong + c.slow + c.pauses;
  };
  if (bad(counters) == bad(told_) || !faults_.Allow(std::chrono::steady_clock::now())) return;
  const auto& error = store_->log().last_error();
  log::Warning(kTag, "faults path={} read_errors={} write_errors={} wrong_records={} slow={} pauses={} last=\"{}\"",
               options_.path, counters.read_errors, counters.write_errors, counters.loads_wrong, counters.slow,
               counters.pauses, error ? ToString(*error) : "");
  told_ = counters;
}

}  // namespace orbitkv::manager
