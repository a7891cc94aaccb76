// What a Manager is told at start: every setting with its default, unit and limits, read from a TOML file, ORBITKV_*
// environment variables and flags, in that order of growing precedence.
//
// One table names the settings; from the key "pool_bytes" follow the TOML key pool_bytes, the variable
// ORBITKV_POOL_BYTES and the flag --pool-bytes. Sizes are bytes or carry KiB, MiB, GiB or TiB.
//
// Owns: nothing. Threads: values; ParseCommandLine runs before any thread. Blocks: reads the configuration file.
// Errors: one line for people that names the setting, where it was given, and the remedy. An unknown TOML key or flag
// is
//         an error that names the nearest known one. An unknown ORBITKV_* variable may belong to another program: it is
//         an error only when it looks like a misspelt setting, otherwise a warning.
// Invariant: a Config that passed Validate() is used as it is; nobody corrects it later.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "orbitkv/base/log.h"

namespace orbitkv::manager {

enum class HugePages : std::uint8_t { kAuto, kOff };
// What is saved behind the pool: nothing, all that engines store, or what is used again.
enum class WritePolicy : std::uint8_t { kOff, kAll, kReuse };

struct Config {
  std::string socket;  // path of the bootstrap socket; its directory is made with mode 0700
  std::uint64_t pool_bytes = std::uint64_t{4} << 30;         // hard limit of the pool; rounded down to 2 MiB
  std::uint64_t keep_free_bytes = std::uint64_t{512} << 20;  // memory that the pool's growth leaves to others
  HugePages huge_pages = HugePages::kAuto;
  std::string pool_path;  // directory on tmpfs or hugetlbfs in which the pool outlives the Manager; empty for none
  std::uint32_t max_sessions = 128;
  std::uint32_t max_slots = 0;              // slots of all sizes; 0 = one per 64 KiB of the pool, at least 1024
  std::uint32_t max_blocks = 0;             // blocks in the index; 0 = as many as slots
  std::uint32_t spin_us = 20;               // the dispatcher looks at its rings for so long before it sleeps
  std::uint32_t lease_budget_percent = 50;  // of the pool, found and granted blocks of one instance
  std::uint32_t session_lease_budget_percent = 100;  // of the pool, found blocks of one session, within its instance's
  std::uint32_t load_budget_percent = 25;            // of the pool, being read from what lies behind it
  std::uint32_t publish_budget_percent = 25;         // of the pool, slots reserved by one session
  std::vector<std::string> ssd_paths{};              // files or block devices of SSD stores
  std::uint64_t ssd_bytes = 0;                       // of each; 0 = as large as it is
  WritePolicy ssd_write_policy = WritePolicy::kAll;
  std::string eviction_policy = "reuse";  // a name of cache/policies.h
  bool recompute = true;                  // what an engine computes sooner than it is loaded is not offered
  std::uint32_t lease_ms = 10'000;        // of a found lease, from its last renewal
  std::uint32_t lock_wait_ms = 30'000;    // for a killed Manager's lock to be free
  log::Level log_level = log::Level::kInfo;

  // One line for people, empty when the settings fit together.
  std::string Validate() const;
};

// The default socket path: $XDG_RUNTIME_DIR/orbitkv/manager.sock, or below /run.
std::string DefaultSocket(const std::function<std::optional<std::string>(std::string_view)>& get_env);

// "4GiB" -> 4294967296.
std::expected<std::uint64_t, std::string> ParseBytes(std::string_view text);

struct CommandLine {
  Config config;
  std::vector<std::string> warnings;  // for the log, once its level is set
  std::string print;                  // --help or --version: print this and end with status 0
};

// args without the program's name; environment as "NAME=value" strings.
std::expected<CommandLine, std::string> ParseCommandLine(std::span<const std::string> args,
                                                         std::span<const std::string> environment);

// The same from what main was given.
std::expected<CommandLine, std::string> ParseCommandLine(int argc, const char* const* argv, const char* const* envp);

}  // namespace orbitkv::manager
