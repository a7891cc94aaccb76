// A child process that a benchmark talks to, ended and reaped by the destructor; it also dies with its parent.
// Owns: the child's pid. Threads: one; Fork is called before this process has other threads.
// Blocks: the destructor, until the child is gone. Errors: a benchmark that cannot start its peer ends the program.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace orbitkv::bench {

class Child {
 public:
  // Runs function in a child tied to cpu (-1: any).
  static Child Fork(int cpu, const std::function<void()>& function);
  // Runs a program in a child tied to cpu and waits until it has printed a line that contains ready_text.
  static Child Exec(int cpu, const std::vector<std::string>& command, const std::string& ready_text);

  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  // Seconds of processor time the child has used so far.
  double CpuSeconds() const;
  // Memory the child holds: private and shared, without files.
  std::uint64_t MemoryKib() const;

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_ = 0;
};

}  // namespace orbitkv::bench
