// The bytes that a client and the Manager share: one memfd per session with both rings and the descriptor arena, and
// one read-only page of the Manager.
//
//   session memfd:  header page | request ring | answer ring | arena (slot_count slots of slot_bytes)
//
// Each ring has one producer and one consumer. Cursors count descriptors since the session began and wrap at 2^32; each
// has a cache line of its own. A side never reads its own cursor back from here.
// Owns: nothing. Threads: the atomics are for both processes. Blocks: no. Units: bytes.
// Errors: Validate says kInvalid for a geometry that no session may have.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/wire/descriptor.h"

namespace orbitkv::wire {

inline constexpr std::uint32_t kSessionMagic = 0x53564b4fU;  // "OKVS"
inline constexpr std::uint32_t kManagerMagic = 0x4d564b4fU;  // "OKVM"
inline constexpr std::uint32_t kPageBytes = 4096;
// Entries of the request ring that only never-lost commands (RestoreEnd, PublishAbort, Release) may use, and slots.
inline constexpr std::uint32_t kReservedEntries = 16;
inline constexpr std::uint32_t kReservedSlots = 2;
// Of one request, all chunks together.
inline constexpr std::size_t kMaxArgumentBytes = 40U << 20U;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

struct SessionHeader {
  std::uint32_t magic;
  std::uint16_t abi;
  std::uint16_t reserved;
  std::uint32_t ring_entries;
  std::uint32_t slot_count;
  std::uint32_t slot_bytes;
  std::uint32_t reserved2;
  std::uint64_t session_epoch;
  alignas(64) std::atomic<std::uint32_t> client_asleep;  // futex word: 1 while a client thread may sleep
  alignas(64) std::atomic<std::uint32_t> request_head;   // written by the client
  alignas(64) std::atomic<std::uint32_t> request_tail;   // written by the Manager
  alignas(64) std::atomic<std::uint32_t> answer_head;    // written by the Manager
  alignas(64) std::atomic<std::uint32_t> answer_tail;    // written by the client
  // Futex word: the Manager adds one, then wakes, when operations of the session are over and a poll will say so.
  alignas(64) std::atomic<std::uint32_t> completions;
};
static_assert(offsetof(SessionHeader, session_epoch) == 24 && offsetof(SessionHeader, client_asleep) == 64);
static_assert(offsetof(SessionHeader, request_head) == 128 && offsetof(SessionHeader, request_tail) == 192);
static_assert(offsetof(SessionHeader, answer_head) == 256 && offsetof(SessionHeader, answer_tail) == 320);
static_assert(offsetof(SessionHeader, completions) == 384);
static_assert(sizeof(SessionHeader) <= kPageBytes);

struct ManagerPage {
  std::uint32_t magic;
  std::uint16_t abi;  // the highest that the Manager speaks
  std::uint16_t reserved;
  std::uint64_t incarnation_hi;
  std::uint64_t incarnation_lo;
  alignas(64) std::atomic<std::uint32_t> dispatcher_asleep;  // 1: whoever posts rings the session's doorbell
};
static_assert(offsetof(ManagerPage, incarnation_hi) == 8 && offsetof(ManagerPage, dispatcher_asleep) == 64);
static_assert(sizeof(ManagerPage) <= kPageBytes);

struct SessionGeometry {
  std::uint32_t ring_entries = 64;
  std::uint32_t slot_count = 16;
  std::uint32_t slot_bytes = 64U << 10U;

  Status Validate() const {
    const bool power_of_two = ring_entries != 0 && (ring_entries & (ring_entries - 1)) == 0;
    if (!power_of_two || ring_entries < 2 * kReservedEntries || ring_entries > 4096) {
      return Fail(Code::kInvalid, "ring entries must be a power of two from 32 to 4096", ring_entries);
    }
    if (slot_count <= kReservedSlots || slot_count > 64) {
      return Fail(Code::kInvalid, "arena slots must be from 3 to 64", slot_count);
    }
    if (slot_bytes < kPageBytes || slot_bytes % kPageBytes != 0 || slot_bytes > (16U << 20U)) {
      return Fail(Code::kInvalid, "arena slots must be whole pages of at most 16 MiB", slot_bytes);
    }
    return {};
  }
  std::uint64_t ring_bytes() const { return std::uint64_t{ring_entries} * sizeof(Descriptor); }
  std::uint64_t request_ring_offset() const { return kPageBytes; }
  std::uint64_t answer_ring_offset() const { return kPageBytes + ring_bytes(); }
  std::uint64_t arena_offset() const {
    const std::uint64_t end = kPageBytes + 2 * ring_bytes();
    return (end + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  std::uint32_t arena_bytes() const { return slot_count * slot_bytes; }
  std::uint64_t total_bytes() const { return arena_offset() + arena_bytes(); }
};

}  // namespace orbitkv::wire
