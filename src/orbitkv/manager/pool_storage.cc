#include "orbitkv/manager/pool_storage.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <utility>

#include "orbitkv/base/log.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/memory_limits.h"
#include "orbitkv/os/named_memory.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/random.h"
#include "orbitkv/os/service_manager.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "pool";
constexpr std::uint64_t kLivenessBytes = 4096;
constexpr std::uint64_t kLockPollNs = 20'000'000;
// A process that holds the lock for so long and is not ending serves the directory.
constexpr std::uint64_t kLivingNs = 1'000'000'000;

std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

std::unexpected<StorageError> Explain(std::string what, const Error& error) {
  return std::unexpected(StorageError{fmt::format("{}: {}", what, ToString(error)), error.code == Code::kInvalid});
}

std::unexpected<StorageError> ExplainTables(const Error& error) {
  if (error.code != Code::kExhausted) return Explain("cannot make the tables", error);
  return std::unexpected(
      StorageError{"the tables find no memory; give smaller --max-slots and --max-blocks, or raise the limit", true});
}

std::string PathIn(const std::string& directory, const char* name) { return directory + "/" + name; }

// The tables go first: without them the rest is of no use to anybody.
enum File : std::size_t { kTablesFile, kPoolFile, kLivenessFile };
constexpr std::array<const char*, 3> kNames = {"tables", "pool", "liveness"};

Status RemoveNamed(const std::string& directory) {
  for (const char* name : kNames) {
    const Status removed = os::RemoveFile(PathIn(directory, name));
    if (!removed && removed.error().code != Code::kNotFound) return removed;
  }
  return {};
}

std::int32_t PidIn(const std::string& lock_path) {
  const auto text = os::ReadFile(lock_path, 64);
  std::int32_t pid = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), pid);
  return pid;
}

}  // namespace

std::expected<PoolStorage, StorageError> PoolStorage::Open(Options options) {
  PoolStorage storage;
  std::expected<void, StorageError> done;
  if (!options.directory.empty()) {
    done = storage.OpenDirectory(options);
  } else if (!options.notify_socket.empty()) {
    done = storage.OpenPassed(options);
  } else {
    done = storage.MakePrivate(options);
  }
  if (!done) return std::unexpected(done.error());
  return storage;
}

std::expected<void, StorageError> PoolStorage::LockDirectory(const Options& options) {
  const std::string path = PathIn(options.directory, "lock");
  const std::uint64_t began = os::MonotonicNs();
  for (;;) {
    auto locked = os::FileLock::TryAcquire(path);
    if (!locked) return Explain(fmt::format("cannot lock {}", path), locked.error());
    waited_ns_ = os::MonotonicNs() - began;
    if (*locked) {
      lock_ = std::move(**locked);
      // Huge pages cannot be written to as a file; then nobody is told the pid.
      static_cast<void>(lock_->Write(fmt::format("{}\n", os::OwnPid())));
      return {};
    }
    const std::int32_t pid = PidIn(path);
    const bool lives = pid > 0 && !os::ProcessEnding(pid);
    if ((lives && waited_ns_ >= std::min(kLivingNs, options.lock_wait_ns)) || waited_ns_ >= options.lock_wait_ns) {
      return std::unexpected(
          StorageError{fmt::format("another Manager (pid {}) uses the pool in {}; stop it or give another --pool-path",
                                   pid, options.directory),
                       false});
    }
    os::WaitReadable(-1, os::DeadlineAfter(kLockPollNs));
  }
}

std::expected<void, StorageError> PoolStorage::OpenDirectory(const Options& options) {
  if (const Status made = os::EnsureDirectory(options.directory, 0700); !made) {
    return Explain(fmt::format("cannot use --pool-path {}", options.directory), made.error());
  }
  const auto facts = os::MemoryFileSystemOf(options.directory);
  if (!facts) return Explain(fmt::format("cannot use --pool-path {}", options.directory), facts.error());
  if (facts->kind == os::MemoryFileSystem::Kind::kOther) {
    return std::unexpected(StorageError{fmt::format("--pool-path {} lies on no memory file system; give a directory on "
                                                    "tmpfs (such as /dev/shm) or hugetlbfs",
                                                    options.directory),
                                        true});
  }
  if (auto locked = LockDirectory(options); !locked) return locked;
  const bool huge = facts->kind == os::MemoryFileSystem::Kind::kHugetlbfs;
  named_ = true;
  std::array<os::UniqueFd, 3> found;
  bool all = true;
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto file = os::OpenNamedMemory(PathIn(options.directory, kNames.at(i)));
    if (!file) {
      return Explain(fmt::format("cannot use {}", PathIn(options.directory, kNames.at(i))), file.error());
    }
    if (*file) found.at(i) = std::move(**file);
    all &= found.at(i).valid();
  }
  if (all) {
    const std::string why = TakeOver({.pool = std::move(found[kPoolFile]),
                                      .tables = std::move(found[kTablesFile]),
                                      .liveness = std::move(found[kLivenessFile])},
                                     options, false, huge);
    if (why.empty()) return {};
    log::Warning(kTag, "given up directory={} reason=\"{}\"; beginning with an empty pool", options.directory, why);
  }
  return MakeNamed(options, huge, facts->page_bytes);
}

std::expected<void, StorageError> PoolStorage::MakeNamed(const Options& options, bool huge, std::uint64_t page_bytes) {
  const std::uint64_t table_bytes = RoundUp(wire::TablesLayout(options.shape).total_bytes, page_bytes);
  const std::uint64_t liveness_bytes = RoundUp(kLivenessBytes, page_bytes);
  const std::uint64_t needed = options.pool_bytes + table_bytes + liveness_bytes;
  const auto too_small = [&](std::uint64_t bytes) {
    return std::unexpected(StorageError{
        fmt::format("--pool-path {} has room for {} bytes, the pool and its tables take {}; give a smaller "
                    "--pool-bytes or mount it larger",
                    options.directory, bytes, needed),
        true});
  };
  auto facts = os::MemoryFileSystemOf(options.directory);
  if (facts && facts->total_bytes != 0 && facts->total_bytes < needed) return too_small(facts->total_bytes);
  if (const Status removed = RemoveNamed(options.directory); !removed) {
    return Explain(fmt::format("cannot replace the pool in {}", options.directory), removed.error());
  }
  facts = os::MemoryFileSystemOf(options.directory);
  if (facts && facts->total_bytes != 0 && facts->free_bytes < needed) return too_small(facts->free_bytes);
  if (const Status made = MakeNamedFiles(options, huge, table_bytes, liveness_bytes); !made) {
    static_cast<void>(RemoveNamed(options.directory));
    return Explain(fmt::format("cannot make the pool in {}", options.directory), made.error());
  }
  return {};
}

Status PoolStorage::MakeNamedFiles(const Options& options, bool huge, std::uint64_t table_bytes,
                                   std::uint64_t liveness_bytes) {
  ORBITKV_ASSIGN_OR_RETURN(liveness_,
                           os::CreateNamedMemory(PathIn(options.directory, kNames[kLivenessFile]), liveness_bytes));
  ORBITKV_ASSIGN_OR_RETURN(os::UniqueFd pool_fd,
                           os::CreateNamedMemory(PathIn(options.directory, kNames[kPoolFile]), options.pool_bytes));
  ORBITKV_ASSIGN_OR_RETURN(tables_fd_,
                           os::CreateNamedMemory(PathIn(options.directory, kNames[kTablesFile]), table_bytes));
  ORBITKV_ASSIGN_OR_RETURN(pool_, PoolMemory::Of(std::move(pool_fd), options.pool_bytes, huge));
  return MakeTables(options);
}

std::expected<void, StorageError> PoolStorage::OpenPassed(Options& options) {
  const auto take = [&](const char* name) {
    const auto found = options.passed.find(name);
    return found == options.passed.end() ? os::UniqueFd() : std::move(found->second);
  };
  Files files{take(kPoolName), take(kTablesName), take(kLivenessName)};
  const bool any = files.pool.valid() || files.tables.valid() || files.liveness.valid();
  if (any) {
    const std::string why = TakeOver(std::move(files), options, true, false);
    if (why.empty()) return {};
    log::Warning(kTag, "given up what the service manager kept reason=\"{}\"; beginning with an empty pool", why);
    for (const char* name : {kPoolName, kTablesName, kLivenessName}) {
      static_cast<void>(
          os::NotifyServiceManager(options.notify_socket, fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name)));
    }
  }
  return MakeKept(options);
}

std::expected<void, StorageError> PoolStorage::MakeKept(const Options& options) {
  auto pool = PoolMemory::Create(options.pool_bytes, options.huge_pages);
  if (!pool) return Explain("cannot make the pool", pool.error());
  pool_ = std::move(*pool);
  const auto make = [](const char* name, std::uint64_t bytes, os::UniqueFd& fd) -> Status {
    ORBITKV_ASSIGN_OR_RETURN(fd, os::CreateMemfd(name, bytes));
    return os::SealSize(fd.get());
  };
  Status made = make(kTablesName, wire::TablesLayout(options.shape).total_bytes, tables_fd_);
  if (made) made = make(kLivenessName, kLivenessBytes, liveness_);
  if (made) made = MakeTables(options);
  if (!made) return ExplainTables(made.error());
  const std::array<std::pair<const char*, int>, 3> kept = {
      {{kPoolName, pool_->fd()}, {kTablesName, tables_fd_.get()}, {kLivenessName, liveness_.get()}}};
  for (const auto& [name, fd] : kept) {
    const std::array<int, 1> fds = {fd};
    const Status told =
        os::NotifyServiceManager(options.notify_socket, fmt::format("FDSTORE=1\nFDNAME={}\nFDPOLL=0", name), fds);
    if (!told) log::Warning(kTag, "the service manager keeps nothing: {}", ToString(told.error()));
  }
  return {};
}

std::expected<void, StorageError> PoolStorage::MakePrivate(const Options& options) {
  auto pool = PoolMemory::Create(options.pool_bytes, options.huge_pages);
  if (!pool) return Explain("cannot make the pool", pool.error());
  pool_ = std::move(*pool);
  if (const Status made = MakeTables(options); !made) return ExplainTables(made.error());
  return {};
}

// In the file, where there is one, whose memory is reserved first: a full file system is an error here and no signal.
Status PoolStorage::MakeTables(const Options& options) {
  wire::TablesHeader header{.shape = options.shape};
  std::array<std::uint64_t, 2> id{};
  ORBITKV_TRY(os::RandomBytes(std::as_writable_bytes(std::span(id))));
  header.pool_id_hi = id[0];
  header.pool_id_lo = id[1];
  const std::uint64_t bytes = wire::TablesLayout(options.shape).total_bytes;
  if (tables_fd_.valid()) {
    ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t file_bytes, os::FileBytes(tables_fd_.get()));
    ORBITKV_TRY(os::Reserve(tables_fd_.get(), 0, file_bytes));
    ORBITKV_ASSIGN_OR_RETURN(tables_, os::Mapping::Map(tables_fd_.get(), file_bytes, os::Access::kReadWrite));
  } else {
    ORBITKV_ASSIGN_OR_RETURN(tables_, os::Mapping::Anonymous(bytes));
  }
  wire::SpanTable table(tables_.bytes());
  return wire::StoreTablesHeader(table, header);
}

std::string PoolStorage::TakeOver(Files files, const Options& options, bool sealed, bool huge) {
  if (!files.pool.valid() || !files.tables.valid() || !files.liveness.valid()) return "one of its files is missing";
  const std::uint64_t wanted = wire::TablesLayout(options.shape).total_bytes;
  const auto table_bytes = os::FileBytes(files.tables.get());
  if (!table_bytes || *table_bytes < wire::kTablesAlign) return "the tables are too short";
  auto mapped = os::Mapping::Map(files.tables.get(), *table_bytes, os::Access::kReadWrite);
  if (!mapped) return ToString(mapped.error());
  const auto header = wire::LoadTablesHeader(mapped->bytes());
  if (!header) return ToString(header.error());
  if (const Status same = wire::CheckTables(*header, options.shape); !same) return ToString(same.error());
  if (*table_bytes < wanted) return fmt::format("the tables have {} bytes instead of {}", *table_bytes, wanted);
  const auto pool_bytes = os::FileBytes(files.pool.get());
  if (!pool_bytes || *pool_bytes != options.pool_bytes) {
    return fmt::format("the pool's file has {} bytes instead of {}", pool_bytes.value_or(0), options.pool_bytes);
  }
  for (const int fd : {files.pool.get(), files.tables.get()}) {
    if (sealed && !os::HasSizeSeals(fd).value_or(false)) return "its memory can be resized";
  }
  const auto reserved = os::AllocatedBytes(files.pool.get());
  if (!reserved) return ToString(reserved.error());
  // Of a file that was cut and grew again, the tables' memory may be missing.
  if (const Status whole = os::Reserve(files.tables.get(), 0, *table_bytes); !whole) return ToString(whole.error());
  const bool of_huge_pages = huge || os::IsHuge(files.pool.get());
  auto pool = PoolMemory::Of(std::move(files.pool), options.pool_bytes, of_huge_pages);
  if (!pool) return ToString(pool.error());
  pool_ = std::move(*pool);
  tables_fd_ = std::move(files.tables);
  tables_ = std::move(*mapped);
  liveness_ = std::move(files.liveness);
  reserved_bytes_ = std::min({*reserved, options.pool_bytes, wire::LoadReservedBytes(tables_.bytes())});
  taken_over_ = true;
  return {};
}

}  // namespace orbitkv::manager
