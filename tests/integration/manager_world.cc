#include "manager_world.h"

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace orbitkv::integration {

using testing::RawClient;
using testing::RawClientOptions;

void ManagerWorld::SetUp() {
  static int count = 0;
  directory_ = std::filesystem::temp_directory_path() /
               ("orbitkv_process_" + std::to_string(getpid()) + "_" + std::to_string(++count));
  std::filesystem::create_directories(directory_);
  socket_ = directory_ / "run" / "m.sock";
}

void ManagerWorld::TearDown() { std::filesystem::remove_all(directory_); }

std::vector<std::string> ManagerWorld::Command(const std::vector<std::string>& more) const {
  std::vector<std::string> command = {ORBITKV_MANAGER_PROGRAM, "--socket", socket_, "--pool-bytes", pool_};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

std::unique_ptr<Program> ManagerWorld::Launch(const std::vector<std::string>& more,
                                              const std::function<void()>& before_exec) {
  return std::make_unique<Program>(directory_, Command(more), before_exec);
}

std::unique_ptr<Program> ManagerWorld::StartManager(const std::vector<std::string>& more,
                                                    const std::function<void()>& before_exec) {
  auto manager = Launch(more, before_exec);
  const auto line = manager->WaitLine();
  EXPECT_TRUE(line) << manager->error();
  if (!line) return nullptr;
  EXPECT_EQ(*line, ReadyLine(*manager));
  return manager;
}

std::string ManagerWorld::ReadyLine(const Program& manager) const {
  const std::uint64_t bytes = std::stoull(pool_) << 20U;
  return "orbitkv-manager ready socket=" + socket_ + " pool_bytes=" + std::to_string(bytes) +
         " pid=" + std::to_string(manager.pid());
}

std::unique_ptr<Program> ManagerWorld::Tool(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {ORBITKV_TOOL_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return std::make_unique<Program>(directory_, command);
}

RawClientOptions ManagerWorld::Options(const std::string& instance) const {
  RawClientOptions options;
  options.socket = socket_;
  options.instance = instance;
  return options;
}

std::unique_ptr<RawClient> ManagerWorld::Open(const RawClientOptions& options) {
  auto client = RawClient::Open(options);
  EXPECT_TRUE(client) << ToString(client.error());
  return client ? std::move(*client) : nullptr;
}

double ManagerWorld::Figure(RawClient& client, const std::string& name) {
  const auto figures = client.Figures();
  EXPECT_TRUE(figures) << ToString(figures.error());
  return figures && figures->contains(name) ? figures->at(name) : -1;
}

bool ManagerWorld::Becomes(RawClient& client, const std::string& name, double value) {
  return Eventually([&] { return Figure(client, name) == value; });
}

pid_t ManagerWorld::Fork(const std::function<bool()>& work) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char ready = work() ? 'y' : 'n';
    if (::write(ends[1], &ready, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char ready = 'n';
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  ::close(ends[0]);
  EXPECT_EQ(ready, 'y') << "the forked client did not get as far as it should";
  return pid;
}

void ManagerWorld::Kill(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace orbitkv::integration
