#include "orbitkv/os/fork_guard.h"

#include <array>
#include <atomic>
#include <pthread.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

std::atomic<std::uint32_t> generation{0};

std::array<std::atomic<int>, kMostClosedInChild> closed_in_child{};  // descriptor + 1; 0 is a free place

void CountFork() { generation.fetch_add(1, std::memory_order_relaxed); }

void CloseAll() {
  for (std::atomic<int>& place : closed_in_child) {
    if (const int fd = place.exchange(0, std::memory_order_relaxed); fd != 0) ::close(fd - 1);
  }
}

bool Replace(int from, int to) {
  for (std::atomic<int>& place : closed_in_child) {
    int expected = from;
    if (place.compare_exchange_strong(expected, to, std::memory_order_relaxed)) return true;
  }
  return false;
}

}  // namespace

void CloseInChild(int fd) {
  static const int armed = ::pthread_atfork(nullptr, nullptr, CloseAll);
  static_cast<void>(armed);
  static_cast<void>(Replace(0, fd + 1));
}

void KeepInChild(int fd) { static_cast<void>(Replace(fd + 1, 0)); }

std::uint32_t ForkGeneration() {
  static const int armed = ::pthread_atfork(nullptr, nullptr, CountFork);
  static_cast<void>(armed);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace orbitkv::os
