// orbitkv-manager: the Cache Manager of one host.
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <optional>
#include <string>

#include "orbitkv/base/log.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/manager.h"
#include "orbitkv/os/service_manager.h"
#include "orbitkv/os/signal_fd.h"

namespace {

constexpr int kBadConfiguration = 2;

int Fail(const std::string& text, int status) {
  fmt::print(stderr, "orbitkv-manager: {}\n", text);
  return status;
}

// What systemd, or who else speaks its protocol, has passed and takes.
orbitkv::manager::Keeper TakeKeeper() {
  const auto get_env = [](std::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string(name).c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
  return {.notify_socket = get_env("NOTIFY_SOCKET").value_or(""), .passed = orbitkv::os::TakePassedFds(get_env)};
}

}  // namespace

int main(int argc, char** argv, char** envp) {
  const auto line = orbitkv::manager::ParseCommandLine(argc, argv, envp);
  if (!line) return Fail(line.error(), kBadConfiguration);
  if (!line->print.empty()) {
    fmt::print("{}", line->print);
    return 0;
  }
  orbitkv::log::SetLevel(line->config.log_level);
  for (const std::string& warning : line->warnings) orbitkv::log::Warning("config", "{}", warning);

  const auto signals = orbitkv::os::ShutdownSignals::Create();
  if (!signals) return Fail(orbitkv::ToString(signals.error()), 1);
  const auto manager = orbitkv::manager::Manager::Start(line->config, nullptr, TakeKeeper());
  if (!manager) return Fail(manager.error().text, manager.error().bad_configuration ? kBadConfiguration : 1);
  fmt::print("{}\n", (*manager)->ReadyLine());
  std::fflush(stdout);

  const int signal = signals->Wait();
  (*manager)->Stop();
  orbitkv::log::Info("manager", "stopped signal={}", signal);
  return 0;
}
