// What a Manager answered, taken apart and checked before anything of it is used: it may be broken, or no Manager.
// Owns: nothing; results are copies. Threads: pure functions. Blocks: no. Units: bytes, blocks.
// Errors: kInvalid for what no Manager in its senses answers; whoever asked counts it and fails the operation.
// Invariant: slots that come out of here lie in the pool, have the lengths that were asked for and do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/client/pool_map.h"
#include "orbitkv/wire/commands.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::client {

// The blocks of one cache group that an answer must be about.
struct AskedBlocks {
  std::size_t count = 0;
  std::uint32_t slot_bytes = 0;
};

// One block that a plan must be about.
struct AskedBlock {
  std::uint32_t group = 0;
  std::uint32_t place = 0;  // of the hash that names it, behind the query's prefix
  std::uint32_t slot_bytes = 0;
};

// A word for each block, and a slot where there is one.
Result<std::vector<wire::ReserveEntry>> ReadReserved(std::span<const std::byte> payload, const PoolMap& pool,
                                                     const AskedBlocks& asked);
Result<std::vector<wire::CommitOutcome>> ReadCommitted(std::span<const std::byte> payload, std::size_t count);
// A slot for each of the blocks, in their order. A plan of version 1 names no blocks: it is of one group and in prefix
// order.
Result<std::vector<wire::PlanEntry>> ReadPlan(std::uint16_t abi, std::span<const std::byte> payload,
                                              const PoolMap& pool, std::span<const AskedBlock> asked);

// How a look-up ended.
struct TicketEnd {
  wire::TicketState state = wire::TicketState::kUnknown;
  std::uint64_t lease = 0;
  std::uint32_t found = 0;
  std::uint32_t reason = 0;  // wire::MissReason
  std::vector<std::uint32_t> boundaries{};
  std::vector<wire::Tier> tiers{};  // of a discovery: of each hash, or none where the Manager knows of no block
  std::uint32_t loaded = 0;         // of those found, the last ones, that were loaded
};

struct PolledTicket {
  std::uint64_t operation = 0;
  std::uint32_t revision = 0;
  TicketEnd end;
};

// The scalars and boundaries of an answer to a submit or a claim.
Result<TicketEnd> ReadFound(const channel::Answer& answer);
// The same of a discovery that asked where its blocks are.
Result<TicketEnd> ReadDiscovered(const channel::Answer& answer, std::uint32_t hash_count);
// Whether they can be of a question for hash_count blocks that is answered with a lease, or without.
bool IsPossible(const TicketEnd& end, std::uint32_t hash_count, bool leased);
Result<std::vector<PolledTicket>> ReadPolled(std::span<const std::byte> payload);

// Larger numbers are no lease's: the client puts its count of Manager lives above them.
inline constexpr unsigned kLeaseBits = 48;

}  // namespace orbitkv::client
