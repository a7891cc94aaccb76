#include "child.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::bench {
namespace {

void PrepareChild(int cpu) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (cpu >= 0) ORBITKV_CHECK(os::PinThread(cpu).has_value());
}

}  // namespace

Child Child::Fork(int cpu, const std::function<void()>& function) {
  const pid_t pid = fork();
  ORBITKV_CHECK(pid >= 0);
  if (pid == 0) {
    PrepareChild(cpu);
    function();
    _exit(0);
  }
  return Child(pid);
}

Child Child::Exec(int cpu, const std::vector<std::string>& command, const std::string& ready_text) {
  std::array<int, 2> pipe_fds{};
  ORBITKV_CHECK(pipe(pipe_fds.data()) == 0);
  const pid_t pid = fork();
  ORBITKV_CHECK(pid >= 0);
  if (pid == 0) {
    PrepareChild(cpu);
    dup2(pipe_fds[1], STDOUT_FILENO);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    std::perror(arguments[0]);
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string output;
  std::array<char, 512> buffer{};
  while (output.find(ready_text) == std::string::npos) {
    const ssize_t count = read(pipe_fds[0], buffer.data(), buffer.size());
    if (count <= 0) {
      std::fprintf(stderr, "orbitkv-bench: %s ended before it was ready\n", command[0].c_str());
      std::exit(1);
    }
    output.append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(pipe_fds[0]);
  return Child(pid);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}

Child::~Child() {
  if (pid_ == 0) return;
  kill(pid_, SIGTERM);
  for (int tries = 0; tries < 500; ++tries) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    usleep(10'000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

double Child::CpuSeconds() const {
  std::ifstream stat("/proc/" + std::to_string(pid_) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  // Fields 14 and 15 (utime, stime in clock ticks); the name in parentheses may hold spaces.
  text = text.substr(text.rfind(')') + 2);
  unsigned long user = 0;
  unsigned long system = 0;
  std::sscanf(text.c_str(), "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::uint64_t Child::MemoryKib() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  std::uint64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    std::uint64_t part = 0;
    if (std::sscanf(line.c_str(), "RssAnon: %lu", &part) == 1 ||
        std::sscanf(line.c_str(), "RssShmem: %lu", &part) == 1) {
      kib += part;
    }
  }
  return kib;
}

}  // namespace orbitkv::bench
