#include "orbitkv/manager/ssd_report.h"

#include <fmt/format.h>
#include <utility>

#include "orbitkv/orbite/engine.h"
#include "orbitkv/orbite/file/file_port.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/direct_file.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/state/digest.h"
#include "orbitkv/store/check.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint64_t kWaitNs = 1'000'000'000;
constexpr orbite::OwnerId kOwner{1};

std::string Age(std::uint64_t unix_s) {
  const std::uint64_t now_s = os::UnixSeconds();
  const std::uint64_t seconds = now_s > unix_s ? now_s - unix_s : 0;
  if (seconds < 120) return fmt::format("{} s ago", seconds);
  if (seconds < 7200) return fmt::format("{} min ago", seconds / 60);
  if (seconds < 172'800) return fmt::format("{} h ago", seconds / 3600);
  return fmt::format("{} d ago", seconds / 86'400);
}

std::string Text(const std::string& path, const store::StoreReport& report, bool checked) {
  const wire::Superblock& superblock = report.superblock;
  std::string text = fmt::format("store {}\n", path);
  text += fmt::format("format {}  id {}  created {}\n", superblock.version, state::ToHex(superblock.uuid),
                      Age(superblock.created_unix_s));
  text += fmt::format("bytes {}  segments {} of {} bytes  alignment {}\n", superblock.file_bytes,
                      superblock.segment_count, superblock.segment_bytes, superblock.align);
  text += fmt::format("segments sealed {}  unsealed {}  free {}  unreadable {}  damaged summaries {}\n",
                      report.sealed_segments, report.unsealed_segments, report.free_segments,
                      report.unreadable_segments, report.damaged_summaries);
  text += fmt::format("records {}{}  payload bytes {}\n", report.records, checked ? "" : " in sealed segments",
                      report.payload_bytes);
  if (report.records > 0) {
    text += fmt::format("oldest saved {}  newest saved {}\n", Age(report.oldest_unix_s), Age(report.newest_unix_s));
  }
  for (const auto& [digest, records] : report.records_by_namespace) {
    text += fmt::format("namespace {}  records {}\n", digest, records);
  }
  if (checked) {
    text += fmt::format("damaged records {}  torn records {}\n", report.damaged_records, report.torn_records);
    text += report.sound() ? "every sealed record matches its checksum\n"
                           : "damaged: what does not match is never served; it goes when its segment is reused\n";
  }
  return text;
}

Result<store::StoreReport> Go(const os::DirectFile& file, bool check) {
  ORBITKV_ASSIGN_OR_RETURN(const os::EventFd event, os::EventFd::Create());
  orbite::FilePortOptions options;
  options.fds = {file.fd()};
  options.event_fd = event.fd();
  ORBITKV_ASSIGN_OR_RETURN(const std::unique_ptr<orbite::Port> port, orbite::MakeFilePort(options, nullptr));
  orbite::Engine engine(*port);
  const orbite::RegionId region = engine.AddFile(0, file.bytes(), kOwner);
  const auto wait = [&event] {
    os::WaitReadable(event.fd(), os::DeadlineAfter(kWaitNs));
    event.Drain();
    return os::MonotonicNs();
  };
  std::uint64_t memory_bytes = 0;
  wire::Superblock superblock;
  {
    ORBITKV_ASSIGN_OR_RETURN(auto head, store::BlockingFile::Create(engine, region, wire::kStoreBlockBytes, wait));
    ORBITKV_ASSIGN_OR_RETURN(superblock, store::ReadSuperblock(head));
    memory_bytes = store::RecoveryMemoryBytes(superblock);
  }
  ORBITKV_ASSIGN_OR_RETURN(auto whole, store::BlockingFile::Create(engine, region, memory_bytes, wait));
  return check ? store::CheckStore(whole, superblock) : store::DescribeStore(whole, superblock);
}

}  // namespace

std::expected<SsdReport, std::string> ReportOnStore(const std::string& path, bool check) {
  const auto file = os::DirectFile::Open(path, os::DirectFile::Use::kReadOnly);
  if (!file) return std::unexpected(fmt::format("{}: {}", path, ToString(file.error())));
  const auto report = Go(*file, check);
  if (!report) return std::unexpected(fmt::format("{}: {}", path, ToString(report.error())));
  return SsdReport{Text(path, *report, check), report->sound()};
}

}  // namespace orbitkv::manager
