// Sleep and wake on a word of shared memory, between threads and between processes.
// Threads: any. Blocks: FutexWait, until a wake, a changed word or the deadline. Units: absolute CLOCK_MONOTONIC ns.
// Invariant: the word may be written by anybody at any time; callers loop on their own condition.
#pragma once

#include <atomic>
#include <cstdint>

namespace orbitkv::os {

// False when the deadline passed; true for a wake, a word that is not `expected`, or a signal.
bool FutexWait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::uint64_t deadline_ns);
void FutexWake(const std::atomic<std::uint32_t>* word, int count);

}  // namespace orbitkv::os
