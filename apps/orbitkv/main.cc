// orbitkv: asks a running Cache Manager how it is, looks into the file of an SSD store, and starts engines.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "orbitkv/channel/client_session.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/manager/ssd_report.h"
#include "orbitkv/manager/version.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/exec.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace {

constexpr std::uint64_t kDeadlineNs = 5'000'000'000;

int Fail(const std::string& socket, const std::string& why) {
  fmt::print(stderr, "orbitkv: no answer from a Manager at {}: {}; is orbitkv-manager running with this --socket?\n",
             socket, why);
  return 1;
}

int Status(const std::string& socket, bool json) {
  std::string refusal;
  orbitkv::channel::ConnectOptions options;
  options.socket_path = socket;
  options.purpose = orbitkv::wire::Purpose::kAdmin;
  options.name = fmt::format("orbitkv status {}", orbitkv::os::OwnPid());
  options.deadline_ns = orbitkv::os::DeadlineAfter(kDeadlineNs);
  options.message = &refusal;
  const auto session = orbitkv::channel::ClientSession::Connect(options);
  if (!session) return Fail(socket, refusal.empty() ? orbitkv::ToString(session.error()) : refusal);
  const auto reply =
      (*session)->Exchange(orbitkv::wire::FRAME_HEALTH, orbitkv::manager::EncodeHealthRequest(), options.deadline_ns);
  if (!reply) return Fail(socket, orbitkv::ToString(reply.error()));
  const auto health = orbitkv::manager::DecodeHealth(reply->payload);
  if (reply->refused || !health) return Fail(socket, "the answer is no health report");
  fmt::print("{}", json ? orbitkv::manager::HealthAsJson(*health) : orbitkv::manager::HealthAsText(*health));
  return 0;
}

int Store(const std::string& path, bool check) {
  const auto report = orbitkv::manager::ReportOnStore(path, check);
  if (!report) {
    fmt::print(stderr, "orbitkv: {}\n", report.error());
    return 2;
  }
  fmt::print("{}", report->text);
  return report->sound ? 0 : 1;
}

// Engines and what starts them are Python: the interpreter beside this program has both, or else the first one in PATH.
int Run(int argc, char** argv) {
  std::error_code unknown;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path() / "python3";
  const bool there = !unknown && std::filesystem::exists(beside, unknown);
  std::vector<std::string> command{there ? beside.string() : "python3", "-m", "orbitkv.run"};
  command.insert(command.end(), argv + 2, argv + argc);
  const auto failed = orbitkv::os::Exec(command);
  fmt::print(stderr, "orbitkv: {} cannot be started: {}\n", command.front(), orbitkv::ToString(failed.error()));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("OrbitKV command line tool.", "orbitkv");
  app.set_version_flag("--version", std::string("orbitkv ") + orbitkv::manager::kVersion);
  app.require_subcommand(1);
  app.add_subcommand("run",
                     "start a Manager if there is none, then an engine that uses it: orbitkv run -- vllm serve MODEL");
  if (argc > 1 && std::string_view(argv[1]) == "run") return Run(argc, argv);
  std::string socket = orbitkv::manager::DefaultSocket([](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
  bool json = false;
  CLI::App* status = app.add_subcommand("status", "print every counter, gauge and budget of a running Manager");
  status->add_option("--socket", socket, "the Manager's bootstrap socket")
      ->type_name("PATH")
      ->envname("ORBITKV_SOCKET");
  status->add_flag("--json", json, "as JSON");
  std::string file;
  CLI::App* store = app.add_subcommand("store", "look into the file or device of an SSD store");
  store->require_subcommand(1);
  CLI::App* info = store->add_subcommand("info", "print what is in it, and how old");
  CLI::App* check = store->add_subcommand("check", "read every record; exit status 1 when one is damaged");
  for (CLI::App* one : {info, check}) one->add_option("file", file, "the --ssd-path of a Manager")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    fmt::print(stderr, "orbitkv: {}; see orbitkv --help\n", error.what());
    return 2;
  }
  if (store->parsed()) return Store(file, check->parsed());
  return Status(socket, json);
}
