#include "orbitkv/manager/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <toml++/toml.h>

#include "orbitkv/cache/policies.h"
#include "orbitkv/manager/version.h"
#include "orbitkv/os/file.h"

namespace orbitkv::manager {
namespace {

constexpr std::uint64_t kUnitBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{64} << 40;
constexpr std::size_t kMaxSocketPath = 107;  // sockaddr_un holds 108 bytes with the final zero
constexpr std::uint64_t kMinSsdBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMaxFileBytes = 1U << 20U;

// Applies one value and says what is wrong with it, or nothing.
using Apply = std::string (*)(Config&, std::string_view);

struct Setting {
  std::string_view key;
  std::string_view value_name;
  std::string_view help;
  Apply apply;
};

template <std::uint32_t Config::* field>
std::string ApplyNumber(Config& config, std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return fmt::format("'{}' is no whole number from 0 to {}", text, std::numeric_limits<std::uint32_t>::max());
  }
  config.*field = value;
  return {};
}

template <std::uint64_t Config::* field>
std::string ApplyBytes(Config& config, std::string_view text) {
  const auto value = ParseBytes(text);
  if (!value) return value.error();
  config.*field = *value;
  return {};
}

std::string ApplySocket(Config& config, std::string_view text) {
  config.socket = std::string(text);
  return {};
}

// Several are separated by ':' or, where a flag was given more than once, by line ends.
std::string ApplySsdPaths(Config& config, std::string_view text) {
  config.ssd_paths.clear();
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(":\n");
    config.ssd_paths.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return {};
}

std::string ApplyPoolPath(Config& config, std::string_view text) {
  config.pool_path = std::string(text);
  return {};
}

std::string ApplyHugePages(Config& config, std::string_view text) {
  if (text != "auto" && text != "off") return fmt::format("'{}' is neither auto nor off", text);
  config.huge_pages = text == "auto" ? HugePages::kAuto : HugePages::kOff;
  return {};
}

std::string ApplyWritePolicy(Config& config, std::string_view text) {
  if (text != "off" && text != "all" && text != "reuse") return fmt::format("'{}' is none of off, all, reuse", text);
  config.ssd_write_policy = text == "off" ? WritePolicy::kOff : text == "all" ? WritePolicy::kAll : WritePolicy::kReuse;
  return {};
}

std::string ApplyEvictionPolicy(Config& config, std::string_view text) {
  std::vector<std::string_view> names;
  for (const cache::NamedPolicy& policy : cache::Policies()) names.push_back(policy.name);
  if (cache::FindPolicy(text) == nullptr) return fmt::format("'{}' is none of {}", text, fmt::join(names, ", "));
  config.eviction_policy = text == "default" ? cache::kDefaultPolicy : text;
  return {};
}

std::string ApplyRecompute(Config& config, std::string_view text) {
  if (text != "on" && text != "off") return fmt::format("'{}' is neither on nor off", text);
  config.recompute = text == "on";
  return {};
}

std::string ApplyLogLevel(Config& config, std::string_view text) {
  constexpr std::array<std::pair<std::string_view, log::Level>, 5> kLevels = {{{"debug", log::Level::kDebug},
                                                                               {"info", log::Level::kInfo},
                                                                               {"warning", log::Level::kWarning},
                                                                               {"error", log::Level::kError},
                                                                               {"off", log::Level::kOff}}};
  for (const auto& [name, level] : kLevels) {
    if (text == name) {
      config.log_level = level;
      return {};
    }
  }
  return fmt::format("'{}' is none of debug, info, warning, error, off", text);
}

constexpr std::array kSettings = {
    Setting{"socket", "PATH", "bootstrap socket (default $XDG_RUNTIME_DIR/orbitkv/manager.sock)", ApplySocket},
    Setting{"pool_bytes", "SIZE", "size of the pool, a hard limit (default 4GiB)", ApplyBytes<&Config::pool_bytes>},
    Setting{"keep_free_bytes", "SIZE", "memory that the pool leaves free (default 512MiB)",
            ApplyBytes<&Config::keep_free_bytes>},
    Setting{"huge_pages", "auto|off", "use reserved 2 MiB pages where there are enough (default auto)", ApplyHugePages},
    Setting{"pool_path", "DIR", "directory on tmpfs or hugetlbfs for a pool that outlives the Manager", ApplyPoolPath},
    Setting{"max_sessions", "N", "sessions of engine processes (default 128)", ApplyNumber<&Config::max_sessions>},
    Setting{"max_slots", "N", "slots in the pool (default one per 64 KiB)", ApplyNumber<&Config::max_slots>},
    Setting{"max_blocks", "N", "blocks in the index (default as many as slots)", ApplyNumber<&Config::max_blocks>},
    Setting{"spin_us", "N", "microseconds to look for work before sleeping (default 20)",
            ApplyNumber<&Config::spin_us>},
    Setting{"lease_budget_percent", "N", "of the pool, leased to one instance (default 50)",
            ApplyNumber<&Config::lease_budget_percent>},
    Setting{"session_lease_budget_percent", "N", "of the pool, found by one session (default 100)",
            ApplyNumber<&Config::session_lease_budget_percent>},
    Setting{"load_budget_percent", "N", "of the pool, being read from behind it at once (default 25)",
            ApplyNumber<&Config::load_budget_percent>},
    Setting{"publish_budget_percent", "N", "of the pool, reserved by one session (default 25)",
            ApplyNumber<&Config::publish_budget_percent>},
    Setting{"ssd_path", "PATH", "file or block device for blocks that leave the pool; several: repeat, or ':'",
            ApplySsdPaths},
    Setting{"ssd_bytes", "SIZE", "of each of them, a hard limit (default as large as it is)",
            ApplyBytes<&Config::ssd_bytes>},
    Setting{"ssd_write_policy", "off|all|reuse", "which blocks are saved behind the pool (default all)",
            ApplyWritePolicy},
    Setting{"eviction_policy", "NAME", "reuse, lru, slru, s3-fifo, w-tinylfu or arc (default reuse)",
            ApplyEvictionPolicy},
    Setting{"recompute", "on|off", "do not load what an engine computes sooner (default on)", ApplyRecompute},
    Setting{"lease_ms", "N", "life of a found lease after its last renewal (default 10000)",
            ApplyNumber<&Config::lease_ms>},
    Setting{"lock_wait_ms", "N", "wait for a killed Manager to free its lock (default 30000)",
            ApplyNumber<&Config::lock_wait_ms>},
    Setting{"log_level", "LEVEL", "debug, info, warning, error or off (default info)", ApplyLogLevel},
};

std::string FlagOf(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string VariableOf(std::string_view key) {
  std::string name = "ORBITKV_" + std::string(key);
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return name;
}

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The known name closest to a wrong one, with its distance.
std::pair<std::string, std::size_t> Nearest(std::string_view wrong, const std::vector<std::string>& known) {
  std::pair<std::string, std::size_t> best{"", std::numeric_limits<std::size_t>::max()};
  for (const std::string& name : known) {
    const std::size_t distance = EditDistance(wrong, name);
    if (distance < best.second) best = {name, distance};
  }
  return best;
}

std::vector<std::string> Names(std::string (*of)(std::string_view)) {
  std::vector<std::string> names;
  for (const Setting& setting : kSettings) names.push_back(of(setting.key));
  return names;
}

std::string Wrong(std::string_view where, std::string_view problem) { return fmt::format("{}: {}", where, problem); }

std::string TomlText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
  return {};
}

std::string ApplyFile(Config& config, const std::string& path) {
  const auto content = os::ReadFile(path, kMaxFileBytes);
  if (!content) return fmt::format("{}: {}; give a readable --config", path, ToString(content.error()));
  toml::table table;
  try {
    table = toml::parse(*content, path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return line == 0 ? fmt::format("{}: {}", path, error.description())
                     : fmt::format("{}:{}: {}", path, line, error.description());
  }
  for (const auto& [key, node] : table) {
    const auto setting = std::ranges::find(kSettings, std::string_view(key), &Setting::key);
    if (setting == kSettings.end()) {
      const auto [nearest, distance] =
          Nearest(key.str(), Names([](std::string_view name) { return std::string(name); }));
      return fmt::format("{}:{}: unknown key '{}'; the nearest known key is '{}'", path, node.source().begin.line,
                         key.str(), nearest);
    }
    const std::string text = TomlText(node);
    const std::string where = fmt::format("{}:{}: {}", path, node.source().begin.line, key.str());
    if (text.empty()) return Wrong(where, "write a string or a whole number");
    const std::string problem = setting->apply(config, text);
    if (!problem.empty()) return Wrong(where, problem);
  }
  return {};
}

std::string ApplyEnvironment(CommandLine& line, std::span<const std::string> environment) {
  constexpr std::string_view kPrefix = "ORBITKV_";
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (!entry.starts_with(kPrefix) || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const auto setting =
        std::ranges::find_if(kSettings, [&](const Setting& candidate) { return VariableOf(candidate.key) == name; });
    if (setting == kSettings.end()) {
      const auto [nearest, distance] = Nearest(name, Names(VariableOf));
      if (distance <= 2)
        return fmt::format("unknown environment variable {}; the nearest known one is {}", name, nearest);
      line.warnings.push_back(fmt::format("environment variable {} is no setting of the Manager", name));
      continue;
    }
    const std::string problem = setting->apply(line.config, std::string_view(entry).substr(equals + 1));
    if (!problem.empty()) return Wrong(name, problem);
  }
  return {};
}

struct Flags {
  CLI::App app{"OrbitKV Cache Manager: keeps completed KV blocks of the engines on this host.", "orbitkv-manager"};
  std::string config_path;
  bool version = false;
  bool help = false;
  std::array<std::string, kSettings.size()> values;

  Flags() {
    app.set_help_flag();
    app.allow_extras();
    app.add_flag("--help,-h", help, "print this and end");
    app.add_flag("--version", version, "print the version and end");
    app.add_option("--config", config_path, "TOML file with the settings below; keys with _ for -")->type_name("FILE");
    for (std::size_t i = 0; i < kSettings.size(); ++i) {
      app.add_option(FlagOf(kSettings[i].key), values[i], std::string(kSettings[i].help))
          ->type_name(std::string(kSettings[i].value_name))
          ->multi_option_policy(kSettings[i].key == "ssd_path" ? CLI::MultiOptionPolicy::Join
                                                               : CLI::MultiOptionPolicy::Throw);
    }
    app.footer("Each setting is also a key of the TOML file and a variable ORBITKV_<KEY>; flags win, then variables.");
  }
};

std::string UnknownFlag(const std::string& flag) {
  const std::string name = flag.substr(0, flag.find('='));
  if (!name.starts_with('-')) return fmt::format("unexpected argument '{}'; see --help", flag);
  std::vector<std::string> known = Names(FlagOf);
  for (const char* other : {"--config", "--help", "--version"}) known.emplace_back(other);
  return fmt::format("unknown flag {}; the nearest known flag is {}", name, Nearest(name, known).first);
}

// What was given may hold any byte; what is said about it is one line.
std::string OneLine(std::string text) {
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return text;
}

std::expected<CommandLine, std::string> Parse(std::span<const std::string> args,
                                              std::span<const std::string> environment);

}  // namespace

std::expected<std::uint64_t, std::string> ParseBytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, unsigned>, 5> kUnits = {
      {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc{}) {
    for (const auto& [name, shift] : kUnits) {
      if (unit != name) continue;
      if (number > std::numeric_limits<std::uint64_t>::max() >> shift) break;
      return number << shift;
    }
  }
  return std::unexpected(fmt::format("'{}' is no size; write bytes or a number with KiB, MiB, GiB or TiB", text));
}

std::string DefaultSocket(const std::function<std::optional<std::string>(std::string_view)>& get_env) {
  const std::optional<std::string> runtime = get_env("XDG_RUNTIME_DIR");
  return (runtime && !runtime->empty() ? *runtime : std::string("/run")) + "/orbitkv/manager.sock";
}

std::string Config::Validate() const {
  const auto outside = [](std::string_view key, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
    return value >= low && value <= high ? std::string{}
                                         : fmt::format("{} = {} is outside {} to {}", key, value, low, high);
  };
  if (socket.empty() || socket.front() != '/') {
    return fmt::format("socket '{}' is no absolute path; give one like /run/orbitkv/manager.sock", socket);
  }
  if (socket.size() > kMaxSocketPath) {
    return fmt::format("socket path of {} bytes is longer than the {} that a socket address holds; use a shorter one",
                       socket.size(), kMaxSocketPath);
  }
  for (const std::string& path : ssd_paths) {
    if (path.empty() || path.front() != '/') {
      return fmt::format("ssd_path '{}' is no absolute path; give one like /var/lib/orbitkv/store", path);
    }
    if (std::ranges::count(ssd_paths, path) > 1) return fmt::format("ssd_path '{}' is given twice", path);
  }
  if (ssd_paths.empty() && ssd_bytes != 0) return "ssd_bytes is given without an ssd_path";
  if (ssd_bytes != 0 && (ssd_bytes < kMinSsdBytes || ssd_bytes > kMaxPoolBytes)) {
    return fmt::format("ssd_bytes = {} is outside {} to {}", ssd_bytes, kMinSsdBytes, kMaxPoolBytes);
  }
  for (const std::string& problem :
       {outside("pool_bytes", pool_bytes, kUnitBytes, kMaxPoolBytes), outside("max_sessions", max_sessions, 1, 4096),
        outside("max_slots", max_slots, 0, 1U << 28U), outside("max_blocks", max_blocks, 0, 1U << 28U),
        outside("spin_us", spin_us, 0, 1000), outside("lease_budget_percent", lease_budget_percent, 1, 100),
        outside("session_lease_budget_percent", session_lease_budget_percent, 1, 100),
        outside("load_budget_percent", load_budget_percent, 1, 100),
        outside("publish_budget_percent", publish_budget_percent, 1, 100), outside("lease_ms", lease_ms, 1, 600'000),
        outside("lock_wait_ms", lock_wait_ms, 0, 600'000)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::expected<CommandLine, std::string> ParseCommandLine(std::span<const std::string> args,
                                                         std::span<const std::string> environment) {
  auto line = Parse(args, environment);
  if (!line) return std::unexpected(OneLine(std::move(line.error())));
  for (std::string& warning : line->warnings) warning = OneLine(std::move(warning));
  return line;
}

namespace {

std::expected<CommandLine, std::string> Parse(std::span<const std::string> args,
                                              std::span<const std::string> environment) {
  const auto flags = std::make_unique<Flags>();
  // CLI11 takes the arguments last one first.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    flags->app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return std::unexpected(fmt::format("{}; see --help", error.what()));
  }
  CommandLine line;
  if (flags->help || flags->version) {
    line.print = flags->help ? flags->app.help() : fmt::format("orbitkv-manager {}\n", kVersion);
    return line;
  }
  if (const auto extras = flags->app.remaining(); !extras.empty()) return std::unexpected(UnknownFlag(extras.front()));
  line.config.socket = DefaultSocket([&](std::string_view name) -> std::optional<std::string> {
    for (const std::string& entry : environment) {
      if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
        return entry.substr(name.size() + 1);
      }
    }
    return std::nullopt;
  });
  if (!flags->config_path.empty()) {
    if (std::string problem = ApplyFile(line.config, flags->config_path); !problem.empty()) {
      return std::unexpected(std::move(problem));
    }
  }
  if (std::string problem = ApplyEnvironment(line, environment); !problem.empty()) {
    return std::unexpected(std::move(problem));
  }
  for (std::size_t i = 0; i < kSettings.size(); ++i) {
    const std::string flag = FlagOf(kSettings[i].key);
    if (flags->app.count(flag) == 0) continue;
    const std::string problem = kSettings[i].apply(line.config, flags->values[i]);
    if (!problem.empty()) return std::unexpected(Wrong(flag, problem));
  }
  if (std::string problem = line.config.Validate(); !problem.empty()) return std::unexpected(std::move(problem));
  line.config.pool_bytes -= line.config.pool_bytes % kUnitBytes;
  return line;
}

}  // namespace

std::expected<CommandLine, std::string> ParseCommandLine(int argc, const char* const* argv, const char* const* envp) {
  std::vector<std::string> environment;
  for (; envp != nullptr && *envp != nullptr; ++envp) environment.emplace_back(*envp);
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  return ParseCommandLine(args, environment);
}

}  // namespace orbitkv::manager
