// What a CacheClient tells its caller: states, answers, completions, counters.
// Owns: plain values. Threads: values; Counters is safe from any. Blocks: no. Units: in the names.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/copy/engine.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::client {

enum class State : std::uint8_t {
  kDown,     // no Manager
  kUp,       // connected; registered as far as it can be
  kSuspect,  // connected, but a deadline was missed; nothing is asked until a ping is answered
};

std::string_view StateName(State state);

// A lease as the caller sees it: the Manager's number under the client's count of Manager lives, so that a lease of a
// lost Manager can never name one of the next.
using LeaseHandle = StrongId<struct LeaseHandleTag, std::uint64_t>;
// A job of one client: it means nothing to another client or process.
using JobId = StrongId<struct JobIdTag, std::uint64_t>;
using copy::JobState;

enum class AnswerReason : std::uint8_t {
  kFound,
  kNoNamespace,  // not every rank of the instance has registered yet
  kAbsent,       // the first block is not there, and was not as far as the Manager remembers
  kOverBudget,   // the instance's lease budget is used up
  kDown,         // no Manager, or a suspect one
  kTimedOut,     // no answer within the query deadline
  kRefused,      // the Manager did not take the query
  kIncomplete,   // all or nothing was asked for and not all is there, or the first block lacks a part
  kTooLate,      // the wait ended before loading did; what is offered was there by then
  kRecompute,    // loading the rest would take longer than computing it; what is offered is there
  kLoading,      // no answer yet, but the Manager is at it: ask again
  kNotAdmitted,  // nothing is kept for this consumer (any more): ask an ordinary question
  kEvicted,      // the first block was there and has been evicted
};

std::string_view ReasonName(AnswerReason reason);

struct Answer {
  std::uint32_t found_blocks = 0;  // hash blocks behind the prefix that the engine has
  LeaseHandle lease;
  AnswerReason reason = AnswerReason::kDown;
  // The block counts that may be taken, ascending; empty: every one up to found_blocks.
  std::vector<std::uint32_t> boundaries{};
  // Of a discovery: where each block behind the prefix is; empty when the Manager does not say.
  std::vector<wire::Tier> tiers{};
  // Of found_blocks, so many, the last ones, were read from behind the pool for this look-up.
  std::uint32_t loaded_blocks = 0;
};

using wire::HashView;
using wire::QueryMode;

struct Query {
  std::string_view request_id;
  std::span<const state::BlockHash> hashes;  // of all full hash blocks of the request
  std::uint32_t prefix_blocks = 0;           // of these, the engine has the first ones
  std::uint32_t attempt = 0;
  QueryMode mode = QueryMode::kLeasedRead;
  std::uint64_t load_wait_ns = 0;     // how long the Manager may load what is not in memory; 0: not at all
  std::span<const HashView> views{};  // kSelected: which of the hashes behind the prefix
  // load_wait_ns was measured: computing all the blocks behind the prefix takes so long, and what takes longer to load
  // shall not be offered.
  bool load_wait_is_compute_time = false;
};

// A preparation at the Manager, as the client that ordered it sees it; of one Manager life.
using TicketHandle = StrongId<struct TicketHandleTag, std::uint64_t>;

struct ClaimRequest {
  std::string_view consumer;
  TicketHandle ticket{};          // none: whatever is kept for this consumer
  std::uint32_t most_blocks = 0;  // what was prepared has at most so many
};

enum class Outcome : std::uint8_t {
  kStored = 1,
  kAlreadyThere = 2,
  kLost = 3,  // published, but not kept: no room, dropped, cancelled or the Manager went away
  kRestored = 4,
  kMismatch = 5,  // the bytes in the pool were not the block; it is withdrawn
  kFailed = 6,    // not restored, for a reason that says nothing about the block
  kStale = 7,     // not copied: a page of the job had got another generation before its copy began
};

// The error of an end that could not drain every copy.
inline constexpr char kUndrainedText[] =
    "copies of the engine's pages cannot be drained; end the process before anything uses these pages again";

enum class JobKind : std::uint8_t { kPublish, kRestore };

// Every accepted job gives exactly one.
struct Completion {
  JobId job;
  JobKind kind = JobKind::kPublish;
  std::uint64_t tag = 0;               // the caller's
  bool ok = false;                     // restore: every block is in its pages; publish: every block is readable
  std::vector<std::uint8_t> outcomes;  // Outcome per block, in the order of the job's block ids
  std::uint64_t bytes = 0;             // copied
  std::string error;                   // one line, empty when ok
};

// Counts since the construction of the client. Names as the list below, without the trailing underscore.
#define ORBITKV_CLIENT_COUNTERS(X) \
  X(connects)                      \
  X(pools_kept)                    \
  X(losses)                        \
  X(suspicions)                    \
  X(registrations)                 \
  X(registrations_refused)         \
  X(queries)                       \
  X(query_pending)                 \
  X(query_down)                    \
  X(query_timeouts)                \
  X(query_found_blocks)            \
  X(queries_loading)               \
  X(queries_not_admitted)          \
  X(ticket_polls)                  \
  X(restores_begun)                \
  X(restores_not_begun)            \
  X(releases)                      \
  X(restore_jobs)                  \
  X(restore_jobs_failed)           \
  X(restore_inline_jobs)           \
  X(restore_plan_retries)          \
  X(restored_blocks)               \
  X(restored_bytes)                \
  X(mismatched_blocks)             \
  X(publish_jobs)                  \
  X(publish_jobs_refused)          \
  X(publish_jobs_stale)            \
  X(publish_jobs_cancelled)        \
  X(jobs_with_stale_pages)         \
  X(undrained_jobs)                \
  X(stored_blocks)                 \
  X(already_there_blocks)          \
  X(lost_blocks)                   \
  X(published_bytes)               \
  X(late_answers)                  \
  X(bad_answers)                   \
  X(populated_bytes)               \
  X(link_rounds)

struct Counters {
#define ORBITKV_CLIENT_COUNTER(name) std::atomic<std::uint64_t> name{0};
  ORBITKV_CLIENT_COUNTERS(ORBITKV_CLIENT_COUNTER)
#undef ORBITKV_CLIENT_COUNTER

  std::vector<std::pair<const char*, std::uint64_t>> Snapshot() const;
};

inline void Count(std::atomic<std::uint64_t>& counter, std::uint64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace orbitkv::client
