// The waiting protocol between who posts and who may sleep, for both directions and for threads of one process.
//
//   sleeper:  flag = 1; fence; look at everything once more; sleep if there is nothing
//   poster:   publish (release); fence; read the flag; wake if it is 1
//
// Without the two seq_cst fences, store and load of either side may pass each other: the sleeper sees no work, the
// poster sees no sleeper, and the wake-up is lost. With both, one of them sees the other. Release and acquire alone do
// not give that, and no sanitizer sees it; hence the fence is a parameter that tests replace to prove that they would
// notice. Owns: nothing. Threads: any. Blocks: no; sleeping itself is the caller's.
#pragma once

#include <atomic>
#include <cstdint>

namespace orbitkv::channel {

struct FullFence {
  void operator()() const { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

// The sleeper, before its last look.
template <typename Fence = FullFence>
void AnnounceSleep(std::atomic<std::uint32_t>& flag) {
  flag.store(1, std::memory_order_relaxed);
  Fence{}();
}

// The poster, after it has published.
template <typename Fence = FullFence>
bool SleeperAnnounced(const std::atomic<std::uint32_t>& flag) {
  Fence{}();
  return flag.load(std::memory_order_relaxed) != 0;
}

inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace orbitkv::channel
