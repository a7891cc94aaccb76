// orbitkv-manager: the Cache Manager of one host.
#include <cstdio>
#include <fmt/format.h>

#include "orbitkv/base/log.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/manager/manager.h"
#include "orbitkv/os/signal_fd.h"

namespace {

constexpr int kBadConfiguration = 2;

int Fail(const std::string& text, int status) {
  fmt::print(stderr, "orbitkv-manager: {}\n", text);
  return status;
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
  const auto manager = orbitkv::manager::Manager::Start(line->config);
  if (!manager) return Fail(manager.error().text, manager.error().bad_configuration ? kBadConfiguration : 1);
  fmt::print("{}\n", (*manager)->ReadyLine());
  std::fflush(stdout);

  const int signal = signals->Wait();
  (*manager)->Stop();
  orbitkv::log::Info("manager", "stopped signal={}", signal);
  return 0;
}
