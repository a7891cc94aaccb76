#include "orbitkv/os/fork_guard.h"

#include <atomic>
#include <pthread.h>

namespace orbitkv::os {
namespace {

std::atomic<std::uint32_t> generation{0};

void CountFork() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint32_t ForkGeneration() {
  static const int armed = ::pthread_atfork(nullptr, nullptr, CountFork);
  static_cast<void>(armed);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace orbitkv::os
