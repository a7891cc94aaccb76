// The 64 bytes that carry one request or one answer through a ring of the session memfd, and their decoders.
// Owns: nothing. Threads: pure functions. Blocks: no.
// Units: deadlines are absolute CLOCK_MONOTONIC nanoseconds; offsets and lengths are bytes of the descriptor arena.
// Errors: kInvalid for a malformed descriptor, kStale for another epoch or an even generation; nothing else is touched.
// Invariant: a decoder is given a private copy, never bytes that the peer can still change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"

namespace orbitkv::wire {

inline constexpr std::uint32_t kDescriptorMagic = 0x44564b4fU;  // "OKVD"
// What this build speaks. A Manager serves the current and the previous version.
inline constexpr std::uint16_t kAbiMin = 1;
inline constexpr std::uint16_t kAbiMax = 3;
inline constexpr std::uint32_t kNoArena = 0xffffffffU;

// Chosen by the client; unique in its session.
using RequestId = StrongId<struct RequestIdTag, std::uint64_t>;

enum class Command : std::uint16_t {
  kPing = 1,
  kQuerySubmit = 2,
  kPublishReserve = 3,
  kPublishCommit = 4,
  kPublishAbort = 5,
  kRestoreBegin = 6,
  kRestorePlan = 7,
  kRestoreEnd = 8,
  kRelease = 9,
  // Since version 2.
  kQueryPoll = 10,
  kQueryClaim = 11,
  kQueryCancel = 12,
};
bool IsCommand(std::uint16_t op, std::uint16_t abi);
const char* CommandName(Command command);

// What `op` holds in an answer.
enum class AnswerStatus : std::uint16_t {
  kOk = 1,
  kMoreChunks = 2,  // this chunk of the arguments is taken, send the next
  kTimedOut = 3,    // not executed: the deadline had passed
  kInvalid = 4,
  kNotFound = 5,
  kBusy = 6,
  kRefused = 7,
  kStale = 8,
  kUnsupported = 9,
  kNotYet = 10,  // what it refers to has not arrived; ask again
  kGone = 11,    // what it refers to existed and has ended
  kCorrupt = 12,
  kExhausted = 13,
  kUnavailable = 14,
};
bool IsAnswerStatus(std::uint16_t op);
const char* StatusName(AnswerStatus status);
AnswerStatus StatusOf(Code code);
// nullopt for kOk and kMoreChunks.
std::optional<Code> CodeOf(AnswerStatus status);

// The low half of `flags`; the high half is the chunk number.
inline constexpr std::uint32_t kLastChunk = 1U << 0U;   // request: the arguments end here
inline constexpr std::uint32_t kFetch = 1U << 1U;       // request: send this chunk of the answer that has more
inline constexpr std::uint32_t kMoreAnswer = 1U << 2U;  // answer: another chunk is kept, fetch it
inline constexpr std::uint32_t kKnownFlags = kLastChunk | kFetch | kMoreAnswer;
inline constexpr std::uint32_t kMaxChunks = 1U << 16U;

struct Descriptor {
  std::uint32_t magic = kDescriptorMagic;
  std::uint16_t abi = 0;
  std::uint16_t op = 0;  // Command or AnswerStatus
  std::uint32_t flags = 0;
  std::uint32_t generation = 0;  // odd in a request, the next even one in its answer
  std::uint64_t request_id = 0;
  std::uint64_t session_epoch = 0;
  std::uint32_t arena_offset = kNoArena;
  std::uint32_t arena_length = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;

  std::uint32_t chunk() const { return flags >> 16U; }
};
static_assert(sizeof(Descriptor) == 64);
static_assert(offsetof(Descriptor, abi) == 4 && offsetof(Descriptor, op) == 6 && offsetof(Descriptor, flags) == 8);
static_assert(offsetof(Descriptor, generation) == 12 && offsetof(Descriptor, request_id) == 16);
static_assert(offsetof(Descriptor, session_epoch) == 24 && offsetof(Descriptor, arena_offset) == 32);
static_assert(offsetof(Descriptor, arena_length) == 36 && offsetof(Descriptor, deadline_ns) == 40);
static_assert(offsetof(Descriptor, scalar0) == 48 && offsetof(Descriptor, scalar1) == 56);

// What a session allows a descriptor to say.
struct DescriptorLimits {
  std::uint16_t abi = kAbiMax;
  std::uint64_t session_epoch = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t arena_bytes = 0;
};

// Both return the descriptor unchanged when every field is in range.
Result<Descriptor> DecodeRequest(const Descriptor& copied_once, const DescriptorLimits& limits);
Result<Descriptor> DecodeAnswer(const Descriptor& copied_once, const DescriptorLimits& limits);

}  // namespace orbitkv::wire
