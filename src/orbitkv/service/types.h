// What goes into and comes out of a Service: registrations, outcomes of its calls, and the figures it exports.
// Owns: plain values. Threads: values. Blocks: no.
// Units: bytes and counts as named. Errors: none of its own.
// Invariant: counters only grow; when no session is open and all verifications are done, every gauge but namespaces is
//            zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::service {

enum class Purpose : std::uint8_t { kControl = 1, kPublish = 2 };
enum class Role : std::uint8_t { kScheduler = 1, kWorker = 2, kBoth = 3 };

// What a session says about itself; the fields that describe the instance must agree over all its sessions.
struct Registration {
  std::string instance;
  Role role = Role::kScheduler;
  Rank rank;                      // of a worker
  std::uint32_t world_size = 0;   // ranks of the instance
  std::uint32_t shard = 0;        // of a worker; ranks with identical KV share one
  std::uint32_t shard_count = 0;  // of the instance
  state::Digest computation{};
  std::optional<state::Digest> representation;  // of a worker
  std::vector<state::GroupShape> groups;        // of a worker; a scheduler may name those whose rules it expects
  std::string name;                             // for logs
  bool operator==(const Registration&) const = default;
};

struct RegisterOutcome {
  std::optional<Code> refused;  // empty when the session is registered
  std::string text;             // for people: why not, with both values where two disagree
  InstanceId instance{};
  bool namespace_ready = false;  // all ranks have registered
  state::Digest namespace_digest{};
};

// What a client calls a look-up that may outlive its submit. None: only what is resident now is asked for.
struct Ticket {
  std::uint64_t operation = 0;  // rises within a session
  std::uint32_t revision = 0;
};

// Of a query whose request is known. more: nothing is answered yet, call ContinueQuery. loading: the ticket is to be
// polled. Neither: this is the answer.
struct QueryOutcome {
  bool more = false;
  bool loading = false;
  LeaseId lease{};  // none when nothing was found or the mode gives none
  std::uint32_t found_blocks = 0;
  std::uint32_t loaded_blocks = 0;          // of those, the last ones, that were not in the pool when it was asked
  std::uint32_t miss_reason = 0;            // wire::MissReason
  std::vector<std::uint32_t> boundaries{};  // that may be taken, ascending; empty: every one up to found_blocks
  std::optional<std::vector<wire::Tier>> tiers{};  // of a discovery that asked: of each hash
};

struct ReserveOutcome {
  bool more = false;            // call ContinueReserve; entries are appended step by step
  ReservationId reservation{};  // none when no block got a slot
};

// Of a begin, a plan or a commit that looks at many blocks. more: call its Continue.
struct BeginProgress {
  bool more = false;
};
struct CommitProgress {
  bool more = false;
  std::uint32_t stored = 0;
};

enum class PlanStatus : std::uint8_t {
  kArmed = 1,  // the entries are the plan; the rank's pin now ends by its end, drain or death only
  kNotYet,     // no grant of this id was seen: its begin may be on the way
  kGone,       // ended, released, or never granted to this rank
  kCorrupt,    // a block's record is damaged: the block is dropped, the rank's pin has ended
};

struct PlanProgress {
  bool more = false;
  PlanStatus status = PlanStatus::kArmed;
};

// A slot whose bytes are to be checked. The bytes stay where they are until VerifyDone or until the Service ends.
struct VerifyRequest {
  std::uint64_t id = 0;  // names the request to VerifyDone
  state::StateKey key;
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t offset = 0;  // in the pool
  std::uint64_t generation = 0;
  std::uint64_t slot_checksum = 0;
  std::uint32_t slot_bytes = 0;
};

// Requests that no engine asked for: what they find right is no news.
inline constexpr std::uint64_t kScrubBit = std::uint64_t{1} << 63U;
inline bool IsScrub(std::uint64_t verify_request) { return (verify_request & kScrubBit) != 0; }

struct Counters {
  std::uint64_t sessions_opened = 0;
  std::uint64_t registrations = 0;
  std::uint64_t registrations_refused = 0;
  std::uint64_t queries = 0;
  std::uint64_t queries_not_admitted = 0;
  std::uint64_t query_blocks = 0;
  std::uint64_t query_blocks_found = 0;
  std::uint64_t query_blocks_behind = 0;  // of those, loaded for the look-up
  std::uint64_t query_blocks_over_budget = 0;
  std::uint64_t discovered_blocks = 0;
  std::uint64_t discovered_blocks_behind = 0;  // of those, not in the pool
  std::uint64_t recompute_chosen = 0;          // look-ups that loading would have taken longer than computing
  std::uint64_t tickets = 0;                   // look-ups that outlived their submit
  std::uint64_t tickets_late = 0;              // whose wait ended before their loads did
  std::uint64_t tickets_cancelled = 0;
  std::uint64_t tickets_timed_out = 0;
  std::uint64_t tickets_revoked = 0;  // that had found something and lost it for room
  std::uint64_t claims = 0;
  std::uint64_t claims_not_admitted = 0;
  std::uint64_t warm_ups = 0;
  std::uint64_t warm_ups_skipped = 0;
  std::uint64_t warm_up_blocks = 0;
  std::uint64_t load_blocks = 0;  // begun, with those of warm-ups
  std::uint64_t loads_ok = 0;     // components
  std::uint64_t loads_short = 0;
  std::uint64_t loads_failed = 0;
  std::uint64_t loads_mismatch = 0;  // other bytes than were saved
  std::uint64_t loaded_bytes = 0;
  std::uint64_t saves_ok = 0;  // components
  std::uint64_t saved_bytes = 0;
  std::uint64_t saves_already_there = 0;
  std::uint64_t saves_no_room = 0;  // behind the pool
  std::uint64_t saves_failed = 0;
  std::uint64_t saves_dropped = 0;  // blocks: too many in line
  std::uint64_t saves_lost = 0;     // components that are in the pool and behind it no more, though they were saved
  std::uint64_t leases_expired = 0;
  std::uint64_t leases_revoked = 0;
  std::uint64_t grants = 0;
  std::uint64_t grants_late = 0;  // begun on an expired lease and pinned again
  std::uint64_t grants_refused = 0;
  std::uint64_t plans = 0;
  std::uint64_t plans_not_yet = 0;
  std::uint64_t plans_gone = 0;
  std::uint64_t plans_corrupt = 0;
  std::uint64_t restores_ok = 0;
  std::uint64_t restores_mismatch = 0;
  std::uint64_t mismatches_stale = 0;  // reports of slots that hold something else by now
  std::uint64_t restores_failed = 0;
  std::uint64_t restored_blocks = 0;  // per rank
  std::uint64_t restored_bytes = 0;
  std::uint64_t verified_equal = 0;      // the engine's report was wrong
  std::uint64_t verified_different = 0;  // the block was dropped
  std::uint64_t scrubbed_right = 0;      // of what was taken over from an earlier life
  std::uint64_t scrubbed_wrong = 0;      // dropped
  std::uint64_t blocks_reserved = 0;
  std::uint64_t blocks_already_here = 0;  // at reserve
  std::uint64_t blocks_not_now = 0;
  std::uint64_t blocks_over_budget = 0;  // of blocks_not_now
  std::uint64_t blocks_stored = 0;
  std::uint64_t blocks_already_there = 0;  // at commit
  std::uint64_t blocks_lost = 0;
  std::uint64_t blocks_aborted = 0;
  std::uint64_t bytes_stored = 0;
};

struct Gauges {
  std::uint64_t sessions = 0;
  std::uint64_t sessions_detached = 0;  // connection lost, process neither dead nor drained
  std::uint64_t instances = 0;
  std::uint64_t namespaces = 0;
  std::uint64_t running_queries = 0;
  std::uint64_t tickets = 0;          // look-ups that outlived their submit, with those below
  std::uint64_t tickets_ready = 0;    // not told yet
  std::uint64_t tickets_in_line = 0;  // for permits to load
  std::uint64_t warm_ups = 0;
  std::uint64_t tombstones = 0;
  std::uint64_t loads = 0;                  // components being read
  std::uint64_t load_bytes = 0;             // of their slots
  std::uint64_t load_bytes_per_second = 0;  // as measured last
  std::uint64_t saves_in_line = 0;          // blocks
  std::uint64_t saves = 0;                  // components being written behind the pool
  std::uint64_t save_bytes = 0;             // of their slots
  std::uint64_t leases = 0;
  std::uint64_t leases_remembered = 0;  // expired, hashes kept
  std::uint64_t hashes = 0;             // held for the three above
  std::uint64_t grants = 0;
  std::uint64_t armed_ranks = 0;
  std::uint64_t leased_bytes = 0;  // distinct within an instance, found and granted
  std::uint64_t running_reserves = 0;
  std::uint64_t reservations = 0;
  std::uint64_t reserved_slots = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t admissions = 0;
  std::uint64_t verifications = 0;
  std::uint64_t earlier_sessions = 0;  // of earlier lives, that may still be touching slots
  std::uint64_t held_slots = 0;        // for those
};

// Of one engine: its logical look-ups, each counted once when a restore takes from it or it ends.
struct InstanceStatus {
  InstanceId id;
  std::string name;
  std::uint64_t lookups = 0;
  std::uint64_t lookup_blocks = 0;
  std::uint64_t hit_blocks = 0;   // taken by restores
  double unbounded_hit_rate = 0;  // of a cache that never forgets, estimated
};

// Of one session of an earlier Manager whose process may still be touching slots.
struct EarlierSessionStatus {
  std::uint32_t row = 0;
  std::int32_t pid = 0;  // 0 when it is not known
  bool watched = false;
  std::uint64_t slots = 0;
  std::uint64_t bytes = 0;
};

// Of one open session, for status and logs.
struct SessionStatus {
  SessionId id;
  Purpose purpose = Purpose::kControl;
  bool detached = false;
  InstanceId instance;  // none before it registered
  std::string name;
  std::uint64_t armed_ranks = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t false_alarms = 0;  // mismatches it reported on blocks that were right
};

}  // namespace orbitkv::service
