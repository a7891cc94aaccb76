#include "orbitkv/os/fork_guard.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <pthread.h>

namespace orbitkv::os {
namespace {

std::atomic<bool> forked{false};
std::once_flag armed;

}  // namespace

void ArmForkGuard() {
  std::call_once(armed,
                 [] { ::pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); }); });
}

bool Forked() { return forked.load(std::memory_order_relaxed); }

}  // namespace orbitkv::os
