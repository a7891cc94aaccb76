#include "program.h"

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <poll.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/pidfd.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::integration {
namespace {

constexpr int kStepMs = 5;

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void Exec(const std::vector<std::string>& command, const std::string& output, const std::string& error,
                       const std::function<void()>& before_exec) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int err = ::open(error.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(126);
  if (before_exec) before_exec();
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, int ended_fd) {
  const std::uint64_t deadline = os::DeadlineAfter(kPatienceNs);
  for (;;) {
    if (condition()) return true;
    if (os::MonotonicNs() >= deadline) return false;
    pollfd watched = {ended_fd, POLLIN, 0};
    if (::poll(&watched, 1, kStepMs) > 0) return condition();
  }
}

void StopChild(pid_t pid) {
  ::kill(pid, SIGSTOP);
  siginfo_t info = {};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT), 0);
}

Program::Program(const std::filesystem::path& directory, const std::vector<std::string>& command,
                 const std::function<void()>& before_exec) {
  static int count = 0;
  const std::string stem = std::filesystem::path(command.front()).filename().string() + std::to_string(++count);
  output_path_ = directory / (stem + ".out");
  error_path_ = directory / (stem + ".err");
  pid_ = ::fork();
  if (pid_ == 0) Exec(command, output_path_, error_path_, before_exec);
  auto pidfd = os::OpenPidfd(pid_);
  EXPECT_TRUE(pidfd) << "cannot watch " << command.front();
  if (pidfd) pidfd_ = std::move(*pidfd);
}

Program::~Program() {
  if (!running()) return;
  Signal(SIGKILL);
  Signal(SIGCONT);
  static_cast<void>(WaitExit());
}

void Program::Signal(int signal) const { ::kill(pid_, signal); }

void Program::Stop() const { StopChild(pid_); }

std::optional<int> Program::Reap(bool wait) {
  if (status_) return status_;
  int status = 0;
  if (::waitpid(pid_, &status, wait ? 0 : WNOHANG) != pid_) return std::nullopt;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

bool Program::running() { return pid_ > 0 && !Reap(false).has_value(); }

std::optional<int> Program::WaitExit() {
  if (status_) return status_;
  if (!os::WaitReadable(pidfd_.get(), os::DeadlineAfter(kPatienceNs))) return std::nullopt;
  return Reap(true);
}

std::optional<std::string> Program::WaitLine(std::size_t index) {
  std::string line;
  const auto there = [&] {
    std::istringstream lines(output());
    for (std::size_t i = 0; i <= index; ++i) {
      if (!std::getline(lines, line) || lines.eof()) return false;  // one without its newline is not complete
    }
    return true;
  };
  if (!Eventually(there, pidfd_.get())) return std::nullopt;
  return line;
}

bool Program::WaitError(const std::string& text) {
  return Eventually([&] { return error().find(text) != std::string::npos; }, pidfd_.get());
}

std::string Program::output() const { return ReadAll(output_path_); }
std::string Program::error() const { return ReadAll(error_path_); }

}  // namespace orbitkv::integration
