#include "ssd_rates.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/manager/ssd_backing.h"
#include "orbitkv/orbite/engine.h"
#include "orbitkv/orbite/file/file_port.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/direct_file.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/store/index.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;
constexpr std::uint64_t kStoreBytes = 8 * kGiB;
constexpr std::uint64_t kMovedBytes = 2 * kGiB;  // of each timed pass
constexpr std::uint32_t kPages = 16;
constexpr std::uint64_t kPageBytes = 65'504;  // with the list a slot of just below 1 MiB
constexpr std::uint32_t kDepth = 16;
constexpr std::uint64_t kWaitNs = 60'000'000'000;
constexpr int kRounds = 3;

double Gbps(std::uint64_t bytes, std::uint64_t ns) { return static_cast<double>(bytes) / static_cast<double>(ns); }

// Blocks that go through one store, kDepth at once, from slots whose bytes are the same for all keys.
class StoreTraffic {
 public:
  explicit StoreTraffic(std::string path)
      : path_(std::move(path)),
        pool_fd_(os::CreateMemfd("ssd-bench", kDepth * kMiB).value()),
        pool_(os::Mapping::Map(pool_fd_.get(), kDepth * kMiB, os::Access::kReadWrite).value()) {
    Prng prng(1);
    for (std::uint64_t at = 0; at < pool_.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.Next();
      std::memcpy(pool_.data() + at, &word, sizeof word);
    }
    for (std::uint32_t page = 0; page < kPages; ++page) {
      hashes_.push_back(copy::HashOnly(pool_.data() + page * kPageBytes, kPageBytes));
    }
    for (std::uint32_t slot = 0; slot < kDepth; ++slot) {
      std::memmove(pool_.data() + slot * kMiB, pool_.data(), kPages * kPageBytes);
      copy::WriteList(pool_.data() + slot * kMiB, kPageBytes, hashes_);
      free_.push_back(slot);
    }
  }

  // Returns the seconds that finding the contents took.
  double Open() {
    backing_ =
        std::make_unique<manager::SsdBacking>(manager::SsdBacking::Options{.paths = {path_}, .bytes = kStoreBytes});
    const std::uint64_t began_ns = os::MonotonicNs();
    const auto opened = backing_->Open(0);
    if (!opened) std::fprintf(stderr, "orbitkv-bench: %s\n", opened.error().c_str());
    ORBITKV_CHECK(opened.has_value());
    const double seconds = static_cast<double>(os::MonotonicNs() - began_ns) / 1e9;
    const auto ended = [this](std::uint64_t id, bool ok) {
      const MutexLock lock(mutex_);
      ORBITKV_CHECK(ok);
      free_.push_back(static_cast<std::uint32_t>(id % kDepth));
      changed_.NotifyAll();
    };
    ORBITKV_CHECK(backing_
                      ->Start(pool_fd_.get(), pool_.size(),
                              {.loaded = [ended](std::uint64_t id, service::LoadResult result,
                                                 std::uint64_t) { ended(id, result == service::LoadResult::kOk); },
                               .saved =
                                   [ended](std::uint64_t id, service::SaveResult result) {
                                     ended(id, result == service::SaveResult::kSaved);
                                   }})
                      .has_value());
    return seconds;
  }
  void Close() { backing_.reset(); }

  // GB/s of payload; keys from first on.
  double Run(std::uint64_t first, std::uint64_t count, bool save) {
    const std::uint64_t began_ns = os::MonotonicNs();
    for (std::uint64_t number = first; number < first + count; ++number) {
      const std::uint64_t slot = TakeSlot();
      const std::uint64_t id = number * kDepth + slot;
      if (save) {
        service::SaveRequest request;
        request.id = id;
        request.key = KeyOf(number);
        request.record.checksum = copy::SlotChecksum({{}, request.key.hash, 0, 0}, kPages * kPageBytes, hashes_);
        request.shape = {kPages, kPageBytes};
        request.offset = slot * kMiB;
        backing_->Save(request);
      } else {
        service::LoadRequest request;
        request.id = id;
        request.key = KeyOf(number);
        request.shape = {kPages, kPageBytes};
        request.offset = slot * kMiB;
        backing_->Submit(request);
      }
    }
    std::vector<std::uint32_t> all;
    while (all.size() < kDepth) all.push_back(TakeSlot());
    const std::uint64_t ns = os::MonotonicNs() - began_ns;
    const MutexLock lock(mutex_);
    free_ = all;
    return Gbps(count * copy::SlotBytes(kPages, kPageBytes), ns);
  }

 private:
  static service::ComponentKey KeyOf(std::uint64_t number) {
    service::ComponentKey key;
    Prng prng(number);
    for (std::byte& byte : key.hash.bytes) byte = static_cast<std::byte>(prng.Next());
    key.slot_bytes = static_cast<std::uint32_t>(copy::SlotBytes(kPages, kPageBytes));
    return key;
  }
  std::uint32_t TakeSlot() {
    const MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kWaitNs);
    while (free_.empty()) {
      ORBITKV_CHECK(std::chrono::steady_clock::now() < deadline);
      changed_.WaitUntil(mutex_, deadline);
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  const std::string path_;
  os::UniqueFd pool_fd_;
  os::Mapping pool_;
  std::vector<std::uint64_t> hashes_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::uint32_t> free_;
  std::unique_ptr<manager::SsdBacking> backing_;
};

// The same sizes and depth without a store: what this device gives to this process.
double BareGbps(const std::string& path, bool write) {
  auto file = os::DirectFile::Open(path, os::DirectFile::Use::kCreateIfAbsent).value();
  ORBITKV_CHECK(file.Reserve(kMovedBytes).has_value());
  const os::EventFd event = os::EventFd::Create().value();
  const auto port =
      orbite::MakeFilePort({.fds = {file.fd()}, .event_fd = event.fd(), .operations = kDepth}, nullptr).value();
  orbite::Engine engine(*port);
  const os::Mapping memory = os::Mapping::Anonymous(kDepth * kMiB).value();
  std::memset(memory.data(), 5, memory.size());
  const orbite::RegionId near = engine.AddMemory(memory.bytes(), orbite::OwnerId(1));
  const orbite::RegionId far = engine.AddFile(0, kMovedBytes, orbite::OwnerId(1));
  std::vector<orbite::Completion> completions;
  const std::uint64_t began_ns = os::MonotonicNs();
  std::uint64_t next = 0;
  std::uint64_t done = 0;
  std::vector<std::uint64_t> free;
  for (std::uint64_t i = 0; i < kDepth; ++i) free.push_back(i);
  while (done < kMovedBytes / kMiB) {
    while (!free.empty() && next < kMovedBytes / kMiB) {
      const orbite::Place memory_place{near, free.back() * kMiB};
      const orbite::Place file_place{far, next * kMiB};
      const orbite::Range range =
          write ? orbite::Range{memory_place, file_place, kMiB} : orbite::Range{file_place, memory_place, kMiB};
      ORBITKV_CHECK(engine.Submit({free.back(), {range}, {}, ~0ULL}, 0).has_value());
      free.pop_back();
      ++next;
    }
    os::WaitReadable(event.fd(), os::DeadlineAfter(kWaitNs));
    event.Drain();
    completions.clear();
    engine.Poll(0, completions);
    for (const orbite::Completion& completion : completions) {
      ORBITKV_CHECK(completion.status.has_value());
      free.push_back(completion.id);
      ++done;
    }
  }
  return Gbps(kMovedBytes, os::MonotonicNs() - began_ns);
}

// None when fio is not installed.
std::optional<double> FioGbps(const std::string& path, bool write) {
  const std::string command = fmt::format(
      "fio --name=orbitkv --filename={} --rw={} --bs=1M --size={} --iodepth={} --ioengine=io_uring --direct=1 "
      "--overwrite=1 --output-format=json 2>/dev/null",
      path, write ? "write" : "randread", kMovedBytes, kDepth);
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  ::pclose(pipe);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.contains("jobs")) return std::nullopt;
  return json["jobs"][0][write ? "write" : "read"]["bw_bytes"].get<double>() / 1e9;
}

double IndexBytesPerBlock() {
  constexpr std::uint32_t kBlocks = 1'000'000;
  const auto index = store::Index::Create(kBlocks, 1).value();
  Prng prng(2);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    state::StateKey key;
    const std::uint64_t word = prng.Next();
    std::memcpy(key.hash.bytes.data(), &word, sizeof word);
    ORBITKV_CHECK(index->Put(key, {}, {i % 1000, i / 1000}).has_value());
  }
  // Beside the index proper each segment lists its entries.
  return static_cast<double>(index->bytes()) / kBlocks + sizeof(store::EntryId);
}

}  // namespace

void MeasureSsdRates(const std::string& scratch, Report& report) {
  const std::string store = scratch + "/ssd-store";
  const std::string plain = scratch + "/ssd-plain";
  StoreTraffic traffic(store);
  traffic.Open();
  const std::uint64_t fitting = kStoreBytes / kMiB;
  // Once over everything, so that no later write is the first one to its place, as with the baseline's file.
  traffic.Run(0, fitting, true);
  BareGbps(plain, true);
  const bool fio = FioGbps(plain, true).has_value();
  const auto baseline = [&](bool write) { return fio ? FioGbps(plain, write).value_or(0) : BareGbps(plain, write); };
  std::vector<double> ours_write;
  std::vector<double> ours_read;
  std::vector<double> base_write;
  std::vector<double> base_read;
  std::uint64_t next = fitting;
  for (int round = 0; round < kRounds; ++round) {
    base_write.push_back(baseline(true));
    ours_write.push_back(traffic.Run(next, kMovedBytes / kMiB, true));
    base_read.push_back(baseline(false));
    ours_read.push_back(traffic.Run(next, kMovedBytes / kMiB, false));
    next += kMovedBytes / kMiB;
  }
  traffic.Close();
  std::vector<double> recovery;
  for (int round = 0; round < kRounds; ++round) {
    recovery.push_back(traffic.Open() * 100 * static_cast<double>(kGiB) / static_cast<double>(kStoreBytes));
    traffic.Close();
  }
  const std::string name = fio ? "fio, 1 MiB, depth 16" : "bare io_uring, 1 MiB, depth 16";
  const auto add = [&](const char* row, std::vector<double>& ours, std::vector<double>& base) {
    report.Add({row, Quantile(ours, 0.5), "GB/s", name, Quantile(base, 0.5), ours.size()});
  };
  add("ssd.write_gbps", ours_write, base_write);
  add("ssd.read_gbps", ours_read, base_read);
  report.Add({"ssd.recovery_s_per_100gib", Quantile(recovery, 0.5), "s", "the limit", 2.0, recovery.size()});
  report.Add({"ssd.index_bytes_per_block", IndexBytesPerBlock(), "bytes", "", 0, 1});
  std::filesystem::remove(store);
  std::filesystem::remove(plain);
}

}  // namespace orbitkv::bench
