// Where the pool, its tables and the liveness file lie: in files of a directory, in the service manager's keeping, or
// nowhere for longer than this process.
//
// What an earlier Manager left is taken over when it fits the settings; otherwise it is given up, with a line that says
// why, and new memory is made, so that a process of the earlier life that still writes can do no harm.
// Owns: the descriptors, the lock on the directory, the mapping of the tables.
// Threads: the owner. Blocks: Open, while a killed Manager's lock is torn down, at most Options::lock_wait_ns.
// Units: bytes; pool_bytes is a multiple of 2 MiB.
// Errors: Open says in one line for people what is wrong and what to do; nothing of an earlier life is given up then.
// Invariant: the tables have a valid header for the given shape, and all of their memory is reserved.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "orbitkv/manager/config.h"
#include "orbitkv/manager/pool_memory.h"
#include "orbitkv/os/file.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/tables.h"

namespace orbitkv::manager {

struct StorageError {
  std::string text;
  bool bad_configuration = false;
};

class PoolStorage {
 public:
  struct Options {
    std::uint64_t pool_bytes = 0;
    HugePages huge_pages = HugePages::kAuto;
    std::string directory;                       // --pool-path; empty for none
    std::map<std::string, os::UniqueFd> passed;  // by the service manager, by name
    std::string notify_socket;                   // of the service manager; empty for none
    std::uint64_t lock_wait_ns = 0;
    wire::TablesShape shape;
  };
  // Names of what the service manager keeps.
  static constexpr const char* kPoolName = "orbitkv-pool";
  static constexpr const char* kTablesName = "orbitkv-tables";
  static constexpr const char* kLivenessName = "orbitkv-liveness";

  static std::expected<PoolStorage, StorageError> Open(Options options);

  PoolMemory& pool() { return *pool_; }
  std::span<std::byte> tables() const { return tables_.bytes(); }
  int liveness_fd() const { return liveness_.get(); }  // -1: nothing outlives this process
  bool outlives() const { return liveness_.valid(); }
  bool named() const { return named_; }  // files that cannot be sealed
  bool taken_over() const { return taken_over_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }  // of the pool, backed by memory already
  // How long Open waited for another Manager's lock.
  std::uint64_t waited_ns() const { return waited_ns_; }

 private:
  struct Files {
    os::UniqueFd pool;
    os::UniqueFd tables;
    os::UniqueFd liveness;
  };

  PoolStorage() = default;
  std::expected<void, StorageError> OpenDirectory(const Options& options);
  std::expected<void, StorageError> LockDirectory(const Options& options);
  std::expected<void, StorageError> MakeNamed(const Options& options, bool huge, std::uint64_t page_bytes);
  Status MakeNamedFiles(const Options& options, bool huge, std::uint64_t table_bytes, std::uint64_t liveness_bytes);
  std::expected<void, StorageError> OpenPassed(Options& options);
  std::expected<void, StorageError> MakeKept(const Options& options);
  std::expected<void, StorageError> MakePrivate(const Options& options);
  // Why the files of an earlier life are of no use; empty when they are taken over.
  std::string TakeOver(Files files, const Options& options, bool sealed, bool huge);
  Status MakeTables(const Options& options);

  std::optional<os::FileLock> lock_;
  std::optional<PoolMemory> pool_;
  os::UniqueFd tables_fd_;
  os::Mapping tables_;
  os::UniqueFd liveness_;
  bool named_ = false;
  bool taken_over_ = false;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t waited_ns_ = 0;
};

}  // namespace orbitkv::manager
