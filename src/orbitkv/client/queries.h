// Look-ups of a scheduler: one pending question for each request id, asked once, answered in this step or a later one.
//
// A question that lets the Manager load is an operation there. While it loads, its ticket waits with all others (see
// tickets.h); a question that changes meanwhile replaces it in place, as the next revision of the same operation. A
// Manager under pressure does not admit operations: then the question is asked again with a fresh one after a growing
// pause, a few times, and in the end without one, which finds what is in memory. A Manager of version 1 has no
// operations: it is asked for what is in memory at once.
//
// Owns: the pending questions. Threads: any. Blocks: Ask and Claim, for at most the wait that their caller gives.
// Units: nanoseconds. Limits: kMostPending questions; those past their deadline are given up to make room.
// Errors: none; whatever goes wrong is an Answer with nothing found and the reason.
// Invariant: a lease that nobody was told of is released: cancelled queries, late answers and answers that make no
//            sense. The Manager keeps one lease for a request id, so a newer query of the same id replaces it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/client/link.h"
#include "orbitkv/client/options.h"
#include "orbitkv/client/tickets.h"
#include "orbitkv/client/types.h"

namespace orbitkv::client {

class Queries {
 public:
  static constexpr std::size_t kMostPending = 128;
  static constexpr std::uint32_t kMostRefusals = 3;  // of admission, before what is in memory has to do

  Queries(const ClientOptions& options, Link& link, Counters& counters)
      : options_(options), link_(link), counters_(counters), tickets_(counters) {}

  // Empty: not answered yet; ask again with the same request id. Nothing new is sent while a query is pending. An
  // answer "loading" says the same of a Manager that has begun: it may take the query's load_wait_ns.
  std::optional<Answer> Ask(const Query& query, std::uint64_t wait_ns) ORBITKV_EXCLUDES(mutex_);
  // What was prepared for the consumer; empty as for Ask.
  std::optional<Answer> Claim(const ClaimRequest& claim, std::uint64_t wait_ns) ORBITKV_EXCLUDES(mutex_);
  // Posted, not awaited.
  Result<TicketHandle> Prepare(const Query& query, std::string_view consumer) ORBITKV_EXCLUDES(submit_mutex_);
  void CancelPrepared(TicketHandle ticket);
  // Posted, not awaited: what is missing is loaded when the Manager has time.
  Status WarmUp(const Query& query);
  void Cancel(std::string_view request_id) ORBITKV_EXCLUDES(mutex_);
  void OnLateAnswer(Life& life, const channel::LateAnswer& late) ORBITKV_EXCLUDES(mutex_);

 private:
  using Digest = std::pair<std::uint64_t, std::uint64_t>;  // XXH3-128
  enum class Kind : std::uint8_t { kRead, kDiscovery, kClaim };
  using Key = std::pair<Digest, Kind>;  // of the request id, or of the consumer

  // What a pending question is about; an answer to another one is not given out.
  struct Subject {
    std::uint32_t prefix_blocks = 0;
    std::uint32_t hash_count = 0;  // behind the prefix
    std::uint32_t attempt = 0;
    QueryMode mode = QueryMode::kLeasedRead;
    bool operator==(const Subject&) const = default;
  };
  // Either a query or a claim.
  struct Question {
    const Query* query = nullptr;
    const ClaimRequest* claim = nullptr;
    Subject subject{};

    Kind kind() const {
      if (claim != nullptr) return Kind::kClaim;
      return subject.mode == QueryMode::kDiscovery ? Kind::kDiscovery : Kind::kRead;
    }
    std::uint64_t load_wait_ns() const { return query != nullptr ? query->load_wait_ns : 0; }
    bool fits_version_1() const {
      return claim == nullptr && (subject.mode == QueryMode::kLeasedRead || subject.mode == QueryMode::kFullPrefix);
    }
  };
  struct Pending {
    std::uint64_t life = 0;
    std::optional<channel::RequestId> request{};  // of the submit; none: not posted, or it was answered
    Subject subject{};                            // as asked
    std::uint64_t deadline_ns = 0;                // without any word by then the Manager is suspect
    Ticket ticket{};
    bool loading = false;
    std::uint64_t load_end_ns = 0;  // the Manager must have said how it ended; asked for it then, if it has not
    std::uint32_t word = 0;         // the life's completions before the submit
    std::uint32_t refusals = 0;     // of admission
    std::uint64_t retry_ns = 0;     // not before
  };
  // What became of a question.
  struct Told {
    enum class What : std::uint8_t { kAnswer, kLoading, kNotAdmitted };
    What what = What::kAnswer;
    Answer answer{};
  };

  static Subject SubjectOf(const Query& query);
  std::optional<Answer> Put(const Question& question, std::uint64_t wait_ns) ORBITKV_EXCLUDES(mutex_);
  // The Manager that is ordered something nobody waits for.
  Result<LifePin> Prepared(const Query& query);
  // Posts the question if it is not on its way; an answer when that cannot be.
  std::optional<Answer> SendIfDue(Life& life, const Key& key, const Question& question, Pending& pending)
      ORBITKV_EXCLUDES(mutex_);
  Result<channel::RequestId> Send(Life& life, const Key& key, const Query& query, Pending& pending)
      ORBITKV_EXCLUDES(submit_mutex_);
  Result<channel::RequestId> SendClaim(Life& life, const Key& key, const ClaimRequest& claim,
                                       std::uint64_t deadline_ns);
  std::optional<Told> Listen(Life& life, const Key& key, Pending& pending, std::uint64_t until_ns)
      ORBITKV_EXCLUDES(mutex_);
  std::optional<Told> ListenForTicket(Life& life, Pending& pending, std::uint64_t until_ns);
  void Refused(Life& life, const Key& key, Pending& pending, std::uint64_t now_ns) ORBITKV_EXCLUDES(mutex_);
  Told ReadSubmit(Life& life, const channel::Answer& answer, const Pending& pending, Kind kind);
  Answer Found(Life& life, const TicketEnd& end, const Subject& subject);
  bool IsHopeless(const Pending& pending) const;
  // Whether a poll of the tickets has not been answered for too long.
  bool IsSilent(std::uint64_t now_ns) const;
  Answer GiveUp(Life& life, const Key& key, const Pending& pending) ORBITKV_EXCLUDES(mutex_);
  // A request whose answer nobody waits for.
  Status PostUnawaited(Life& life, wire::Command command, const Ticket& ticket, std::span<const std::byte> args);
  // Nobody waits for it any more.
  void Drop(Life& life, const Pending& pending);

  std::optional<Pending> Find(const Key& key, const Life& life) ORBITKV_EXCLUDES(mutex_);
  void Store(const Key& key, const Pending& pending) ORBITKV_EXCLUDES(mutex_);
  void Forget(const Key& key) ORBITKV_EXCLUDES(mutex_);
  // False when every pending query is within its deadline and there are kMostPending of them.
  bool MakeRoom(Life& life, std::uint64_t now_ns) ORBITKV_EXCLUDES(mutex_);

  const ClientOptions& options_;
  Link& link_;
  Counters& counters_;
  Tickets tickets_;
  Mutex submit_mutex_;  // operations are posted in the order of their numbers
  Mutex mutex_;
  std::map<Key, Pending> pending_ ORBITKV_GUARDED_BY(mutex_);
};

// A lease as callers carry it, and back. None when the lease belongs to another Manager life.
LeaseHandle HandleOf(const Life& life, std::uint64_t lease);
std::optional<std::uint64_t> LeaseOf(const Life& life, LeaseHandle handle);

}  // namespace orbitkv::client
