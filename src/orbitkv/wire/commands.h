// Argument and answer payloads of the channel's commands, as they lie in the descriptor arena, and their decoders.
//
// All integers are little-endian; every struct is plain bytes without padding. A payload is one header struct followed
// by an array whose length the header names. The two scalars of the descriptor carry what is in every call:
//
//   command         request scalar0     scalar1                answer scalar0    scalar1
//   Ping            echoed              -                      scalar0           Manager's clock, ns
//   QuerySubmit     operation id or 0   revision               lease id or 0     found blocks | MissReason << 32
//   QueryPoll       -                   -                      entry count       -
//   QueryClaim      -                   -                      as QuerySubmit
//   QueryCancel     operation id        revision               -                 -
//   PublishReserve  -                   -                      reservation id    -
//   PublishCommit   reservation id      -                      blocks stored     -
//   PublishAbort    reservation id      -                      -                 -
//   RestoreBegin    lease id            grant id               -                 -
//   RestorePlan     grant id            rank                   block count       -
//   RestoreEnd      grant id            rank | EndResult << 32 -                 -
//   Release         ReleaseKind         lease or grant id      -                 -
//
// A session of ABI version 1 has neither operations nor these last three commands; its QuerySubmit ignores both
// scalars. Structs named V1 are what it sends and gets. query.h has the payloads of look-ups.
//
// Owns: nothing; a decoded view points into the payload, which the caller has copied out of shared memory.
// Threads: pure functions. Blocks: no.
// Errors: kInvalid when a count does not fit the payload, a field is out of range or bytes are left over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::wire {

// Limits on one request, whatever the arena: what the Manager is willing to hold for one command.
inline constexpr std::uint32_t kMaxBlocksPerReserve = 4096;
inline constexpr std::uint32_t kMaxRanks = 1024;

// ---- PublishReserve -------------------------------------------------------------------------------------------------
struct ReserveHeader {
  state::BlockHash parent;  // the group's block before the first one; ignored at depth 0
  std::uint32_t group;
  std::uint32_t shard;
  std::uint32_t first_depth;    // blocks of the group before the first one
  std::uint32_t prompt_tokens;  // of the request, for the eviction policy
  std::uint32_t answer_tokens;
  std::uint32_t slot_bytes;  // pages and checksum list of one block
  std::uint32_t block_count;
  std::uint32_t reserved;
};
static_assert(sizeof(ReserveHeader) == 64);

struct ReserveView {
  ReserveHeader header;
  std::span<const state::BlockHash> hashes;
};

enum class ReserveStatus : std::uint32_t {
  kHaveIt = 1,
  kSlot = 2,
  kNotNow = 3,  // every later block of the request gets it too
};

struct ReserveEntry {
  std::uint64_t offset;      // in the pool's memfd
  std::uint64_t generation;  // of the slot; never repeats
  std::uint32_t slot_bytes;
  std::uint32_t status;  // ReserveStatus
};
static_assert(sizeof(ReserveEntry) == 24);

// ---- PublishCommit --------------------------------------------------------------------------------------------------
struct CommitHeader {
  std::uint32_t count;
  std::uint32_t reserved;
};
static_assert(sizeof(CommitHeader) == 8);

struct CommitEntry {
  std::uint64_t slot_checksum;
  std::uint64_t generation;  // as in the ReserveEntry
  std::uint32_t index;       // of the block in the reservation
  std::uint32_t reserved;
};
static_assert(sizeof(CommitEntry) == 24);

struct CommitView {
  std::span<const CommitEntry> entries;
};

enum class CommitOutcome : std::uint32_t {
  kStored = 1,
  kAlreadyThere = 2,  // another writer's commit came first; its block is readable
  kLost = 3,          // the reservation or the slot is no longer this session's
};

// ---- RestoreBegin ---------------------------------------------------------------------------------------------------
struct BeginHeader {
  std::uint32_t boundary_blocks;  // blocks taken, counted from the query's prefix; at most what was found
  std::uint32_t rank_count;       // followed by that many u32 ranks
};
static_assert(sizeof(BeginHeader) == 8);

struct BeginView {
  BeginHeader header;
  std::span<const std::uint32_t> ranks;
};

// ---- RestorePlan ----------------------------------------------------------------------------------------------------
// Group by group, each in prefix order.
struct PlanEntry {
  std::uint64_t offset = 0;  // in the pool's memfd
  std::uint64_t generation = 0;
  std::uint64_t slot_checksum = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t slab = 0;
  std::uint32_t group = 0;
  // The last hash block inside it, counted from the query's prefix; of a selected read, the index in its selection.
  std::uint32_t block = 0;
};
static_assert(sizeof(PlanEntry) == 40);

struct PlanEntryV1 {
  std::uint64_t offset = 0;
  std::uint64_t generation = 0;
  std::uint64_t slot_checksum = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t slab = 0;
};
static_assert(sizeof(PlanEntryV1) == 32);

// ---- RestoreEnd -----------------------------------------------------------------------------------------------------
enum class EndResult : std::uint32_t {
  kOk = 1,
  kMismatch = 2,  // followed by the blocks whose checksum did not match
  kFailed = 3,    // not copied, for a reason that says nothing about the bytes
};

struct EndHeader {
  std::uint32_t index_count;
  std::uint32_t reserved;
};
static_assert(sizeof(EndHeader) == 8);

// Version 1 has the indices alone, u32 each.
inline constexpr std::uint64_t kNoGeneration = 0;  // what it says of the slot; no slot has it
struct EndEntry {
  std::uint64_t generation = kNoGeneration;  // as in the PlanEntry
  std::uint32_t index = 0;                   // of the block in the plan
  std::uint32_t reserved = 0;
};
static_assert(sizeof(EndEntry) == 16);

struct EndView {
  std::span<const EndEntry> mismatches;
};

struct EndViewV1 {
  std::span<const std::uint32_t> indices;
};

// ---- Release --------------------------------------------------------------------------------------------------------
enum class ReleaseKind : std::uint64_t { kLease = 1, kGrant = 2 };

// ---- decoders and encoders ------------------------------------------------------------------------------------------
// Decoders take a payload that is 8-byte aligned and no longer shared.
Result<ReserveView> DecodeReserve(std::span<const std::byte> payload);
Result<CommitView> DecodeCommit(std::span<const std::byte> payload);
Result<BeginView> DecodeBegin(std::span<const std::byte> payload);
Result<EndView> DecodeEnd(std::span<const std::byte> payload);
Result<EndViewV1> DecodeEndV1(std::span<const std::byte> payload);
Result<std::span<const ReserveEntry>> DecodeReserveAnswer(std::span<const std::byte> payload);
Result<std::span<const PlanEntry>> DecodePlan(std::span<const std::byte> payload);
Result<std::span<const PlanEntryV1>> DecodePlanV1(std::span<const std::byte> payload);
Result<std::span<const std::uint32_t>> DecodeCommitAnswer(std::span<const std::byte> payload);

std::vector<std::byte> EncodeReserve(ReserveHeader header, std::span<const state::BlockHash> hashes);
std::vector<std::byte> EncodeCommit(std::span<const CommitEntry> entries);
std::vector<std::byte> EncodeBegin(std::uint32_t boundary_blocks, std::span<const std::uint32_t> ranks);
std::vector<std::byte> EncodeEnd(std::span<const EndEntry> mismatches);
std::vector<std::byte> EncodeEndV1(std::span<const std::uint32_t> indices);
// As a session of this version says it.
std::vector<std::byte> EncodeEndFor(std::uint16_t abi, std::span<const EndEntry> mismatches);

}  // namespace orbitkv::wire
