// Payloads of look-ups: QuerySubmit, QueryPoll and QueryClaim, and what version 1 of the ABI had instead.
//
// An operation is a look-up that may outlive its submit. The client numbers its operations upwards within a session; a
// submit of a live number with a higher revision replaces what is asked for, and only the newest revision can be
// polled, claimed or cancelled. Operation 0 is no operation: what is resident now is the answer.
//
// Answers of QuerySubmit and QueryClaim:
//   kOk      the look-up is over; scalars as commands.h says. The payload lists every boundary that may be taken, as
//            u32 block counts, ascending; no payload: every count up to what was found may be.
//   kNotYet  the operation is loading: poll it.
//   kBusy    not admitted: retry later with a new operation.
//
// Version 3 adds flags to the header; a discovery that asks where its blocks are gets them behind the boundaries.
//
// Owns: nothing; a decoded view points into the payload, which the caller has copied out of shared memory.
// Threads: pure functions. Blocks: no. Units: hash blocks, nanoseconds.
// Errors: kInvalid when a count does not fit the payload, a field is out of range or bytes are left over.
// Invariant: a decoded view's hash views lie inside its hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/descriptor.h"

namespace orbitkv::wire {

// Limits on one request, whatever the arena: what the Manager is willing to hold for one command.
inline constexpr std::uint32_t kMaxHashesPerQuery = 1U << 20U;
inline constexpr std::uint32_t kMaxViewsPerQuery = 4096;
inline constexpr std::uint32_t kMaxPolled = 128;
inline constexpr std::uint32_t kAllGroups = 0xffffffffU;

enum class QueryMode : std::uint16_t {
  kLeasedRead = 0,  // the longest usable prefix, with a lease on it
  kFullPrefix = 1,  // all of it or nothing
  kDiscovery = 2,   // what could be had, without a lease; answered at once
  kSelected = 3,    // exactly the blocks of the views, all or nothing, with a lease on them
  kWarmUp = 4,      // load what is missing when there is time; answered at once, never polled
  kPrepare = 5,     // kept for a consumer's QueryClaim
};

// wait_ns is what the engine needs to compute all of the hashes' blocks: what takes longer to load is not worth it.
inline constexpr std::uint16_t kWaitIsComputeTime = 1;
// Of a discovery: the answer says of each block where it is.
inline constexpr std::uint16_t kTellTiers = 2;

struct QueryHeader {
  std::uint64_t request_key_hi = 0;  // the engine's request id, hashed to 128 bits: one lease per (instance, request)
  std::uint64_t request_key_lo = 0;
  std::uint64_t consumer_key_hi = 0;  // kPrepare: who will claim it; zero otherwise
  std::uint64_t consumer_key_lo = 0;
  std::uint64_t wait_ns = 0;  // how long loading may take; 0: what is resident now
  std::uint32_t attempt = 0;  // counts look-ups of one request that are one logical look-up each
  QueryMode mode = QueryMode::kLeasedRead;
  std::uint16_t flags = 0;          // since version 3: kWaitIsComputeTime, kTellTiers
  std::uint32_t group = 0;          // kAllGroups; 0 where the instance has one group
  std::uint32_t prefix_blocks = 0;  // blocks that the engine has already; demand is relative to them
  std::uint32_t hash_count = 0;     // of the blocks behind the prefix, in prefix order
  std::uint32_t view_count = 0;     // kSelected
};
static_assert(sizeof(QueryHeader) == 64);

// A run of blocks of one group. With several groups, or rules of their own, the views are all that the boundary behind
// the last hash demands, one per group.
struct HashView {
  std::uint32_t group = 0;
  std::uint32_t first = 0;  // index of the hash that names the first block
  std::uint32_t count = 0;  // blocks
  std::uint32_t reserved = 0;
};
static_assert(sizeof(HashView) == 16);

// Header, views, hashes.
struct QueryView {
  QueryHeader header;
  std::span<const HashView> views{};
  std::span<const state::BlockHash> hashes{};
  std::uint64_t compute_ns = 0;  // that the engine needs for one hash block; 0: not known
};

// Where a block is: as far as the answer reaches, what is needed of it.
enum class Tier : std::uint8_t { kAbsent = 0, kPool = 1, kBehind = 2 };

// Answer of a discovery with kTellTiers: this header, boundaries, one Tier for each hash.
struct DiscoveryHeader {
  std::uint32_t boundary_count = 0;
  std::uint32_t block_count = 0;
};
static_assert(sizeof(DiscoveryHeader) == 8);

struct DiscoveryView {
  std::span<const std::uint32_t> boundaries;
  std::span<const Tier> tiers;
};

// Values may come that a reader does not know: then the count says all.
enum class MissReason : std::uint32_t {
  kNone = 0,
  kNoNamespace = 1,  // not every rank of the instance has registered yet
  kAbsent = 2,       // the first block is not here
  kOverBudget = 3,   // the budget of leases or of warm-up is used up
  kIncomplete = 4,   // all or nothing was asked for and not all is here, or the first block lacks a part
  kTooLate = 5,      // the wait ended before loading did; what is offered was here by then
  kRecompute = 6,    // loading the rest would take longer than computing it; what is offered is here
  kEvicted = 7,      // the first block was here and has been evicted, as far as that is remembered
};

struct QueryHeaderV1 {
  std::uint64_t request_key_hi = 0;
  std::uint64_t request_key_lo = 0;
  std::uint32_t attempt = 0;
  std::uint32_t group = 0;
  std::uint32_t prefix_blocks = 0;
  std::uint32_t hash_count = 0;
};
static_assert(sizeof(QueryHeaderV1) == 32);

// ---- QueryPoll: an array of these, and the answer's header, entries and boundaries of all entries in their order ----
struct PollRequest {
  std::uint64_t operation = 0;
  std::uint32_t revision = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(PollRequest) == 16);

enum class TicketState : std::uint32_t {
  kLoading = 1,
  kReady = 2,        // over; told once, then the operation is unknown. A preparation keeps saying so, without a lease
  kNotAdmitted = 3,  // given up under pressure: retry later with a new operation
  kTimedOut = 4,     // the operation's life ended before anybody asked
  kCancelled = 5,
  kUnknown = 6,  // never submitted, or its end was told
  kStaleRevision = 7,
};

struct PollHeader {
  std::uint32_t entry_count = 0;
  std::uint32_t boundary_count = 0;
};
static_assert(sizeof(PollHeader) == 8);

struct PollEntry {
  std::uint64_t operation = 0;
  std::uint64_t lease = 0;
  std::uint32_t revision = 0;
  std::uint32_t state = 0;   // TicketState
  std::uint32_t found = 0;   // blocks
  std::uint32_t reason = 0;  // MissReason
  std::uint32_t boundary_count = 0;
  std::uint32_t loaded = 0;  // of the blocks found, so many, the last ones, were not in the pool when it was asked
};
static_assert(sizeof(PollEntry) == 40);

struct PollView {
  std::span<const PollEntry> entries;
  std::span<const std::uint32_t> boundaries;  // of all entries, one behind the other
};

// ---- QueryClaim -----------------------------------------------------------------------------------------------------
struct ClaimRequest {
  std::uint64_t consumer_key_hi = 0;
  std::uint64_t consumer_key_lo = 0;
  std::uint64_t operation = 0;  // of the session that prepared; 0: whichever this consumer has
  std::uint32_t revision = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ClaimRequest) == 32);

// Decoders take a payload that is 8-byte aligned and no longer shared. The counts in headers are set by the encoders.
// abi: 2 or later.
Result<QueryView> DecodeQuery(std::span<const std::byte> payload, std::uint16_t abi = kAbiMax);
Result<QueryView> DecodeQueryV1(std::span<const std::byte> payload);
Result<std::span<const PollRequest>> DecodePoll(std::span<const std::byte> payload);
Result<PollView> DecodePollAnswer(std::span<const std::byte> payload);
Result<ClaimRequest> DecodeClaim(std::span<const std::byte> payload);
Result<DiscoveryView> DecodeDiscovery(std::span<const std::byte> payload);
Result<std::span<const std::uint32_t>> DecodeBoundaries(std::span<const std::byte> payload);

std::vector<std::byte> EncodeQuery(QueryHeader header, std::span<const state::BlockHash> hashes,
                                   std::span<const HashView> views = {});
std::vector<std::byte> EncodeQueryV1(QueryHeaderV1 header, std::span<const state::BlockHash> hashes);
std::vector<std::byte> EncodePoll(std::span<const PollRequest> requests);
std::vector<std::byte> EncodePollAnswer(std::span<const PollEntry> entries, std::span<const std::uint32_t> boundaries);
std::vector<std::byte> EncodeDiscovery(std::span<const std::uint32_t> boundaries, std::span<const Tier> tiers);
std::vector<std::byte> EncodeClaim(const ClaimRequest& claim);

}  // namespace orbitkv::wire
