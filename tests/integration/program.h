// A program that a test started: its output, its signals, its end.
// Owns: the child process (killed and reaped by the destructor if it still runs) and the files of its output, below a
//       directory of the test.
// Threads: one. Blocks: the Wait calls, for kPatienceNs at most.
// Errors: gtest failures; a program that does not do what is waited for gives an empty optional or false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "orbitkv/os/unique_fd.h"

namespace orbitkv::integration {

inline constexpr std::uint64_t kPatienceNs = 60'000'000'000;

class Program {
 public:
  // command[0] is a path. before_exec runs in the child, which has only system calls to rely on.
  Program(const std::filesystem::path& directory, const std::vector<std::string>& command,
          const std::function<void()>& before_exec = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  // A line of standard output (from 0), once it is complete; none when the program ends without it.
  std::optional<std::string> WaitLine(std::size_t index = 0);
  // Until the text appears in standard error.
  bool WaitError(const std::string& text);
  void Signal(int signal) const;
  // SIGSTOP, until every thread has stopped.
  void Stop() const;
  // The exit status; 128 + signal when it was killed. none when it does not end.
  std::optional<int> WaitExit();
  bool running();
  std::string output() const;
  std::string error() const;

 private:
  std::optional<int> Reap(bool wait);

  std::filesystem::path output_path_;
  std::filesystem::path error_path_;
  pid_t pid_ = -1;
  os::UniqueFd pidfd_;
  std::optional<int> status_;
};

// SIGSTOP to a child, until every one of its threads has stopped.
void StopChild(pid_t pid);

// Asks until the condition holds, pausing between tries on a timer that ends at once when `ended` becomes readable.
bool Eventually(const std::function<bool()>& condition, int ended_fd = -1);

}  // namespace orbitkv::integration
