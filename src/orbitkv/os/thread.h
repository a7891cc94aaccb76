// A thread that is joined by its owner, and where threads run.
// Owns: the thread; the destructor joins, so whoever destroys it has told its function to end.
// Threads: Start and Join by the owner. Blocks: Join.
// Errors: kExhausted when no thread can be made; kIo when a cpu does not exist.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "orbitkv/base/result.h"

namespace orbitkv::os {

class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { Join(); }

  // name: at most 15 characters reach the kernel. All signals are blocked in the new thread.
  Status Start(const std::string& name, std::function<void()> function);
  void Join();
  bool running() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

// Ties the calling thread to one cpu.
Status PinThread(int cpu);
// Cpus that this process may use.
int CpuCount();
// How long the calling thread was ready to run and had no cpu, since it began, in nanoseconds; nothing where the kernel
// does not tell (/proc/thread-self/schedstat).
std::optional<std::uint64_t> CpuWaitNs();

}  // namespace orbitkv::os
