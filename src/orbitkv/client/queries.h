// Look-ups of a scheduler: one pending query for each request id, asked once, answered in this step or a later one.
// Owns: the pending queries. Threads: any. Blocks: Ask, for at most the wait that its caller gives.
// Units: nanoseconds. Limits: kMostPending queries; those past their deadline are given up to make room.
// Errors: none; whatever goes wrong is an Answer with nothing found and the reason.
// Invariant: a lease that nobody was told of is released: cancelled queries, late answers and answers that make no
//            sense. The Manager keeps one lease for a request id, so a newer query of the same id replaces it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "orbitkv/base/mutex.h"
#include "orbitkv/client/link.h"
#include "orbitkv/client/options.h"
#include "orbitkv/client/types.h"

namespace orbitkv::client {

class Queries {
 public:
  static constexpr std::size_t kMostPending = 128;

  Queries(const ClientOptions& options, Link& link, Counters& counters)
      : options_(options), link_(link), counters_(counters) {}

  // Empty: not answered yet; ask again with the same request id. Nothing new is sent while a query is pending.
  std::optional<Answer> Ask(const Query& query, std::uint64_t wait_ns) ORBITKV_EXCLUDES(mutex_);
  void Cancel(std::string_view request_id) ORBITKV_EXCLUDES(mutex_);
  void OnLateAnswer(Life& life, const channel::LateAnswer& late) ORBITKV_EXCLUDES(mutex_);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // XXH3-128 of the request id
  struct Pending {
    std::uint64_t life = 0;
    std::optional<channel::RequestId> request;  // none: the rings were full
    std::uint64_t deadline_ns = 0;
    std::uint32_t prefix_blocks = 0;
    std::uint32_t hash_count = 0;
  };

  std::optional<Pending> Find(const Key& key, const Life& life) ORBITKV_EXCLUDES(mutex_);
  void Store(const Key& key, const Pending& pending) ORBITKV_EXCLUDES(mutex_);
  void Forget(const Key& key) ORBITKV_EXCLUDES(mutex_);
  // False when every pending query is within its deadline and there are kMostPending of them.
  bool MakeRoom(Life& life, std::uint64_t now_ns) ORBITKV_EXCLUDES(mutex_);
  Status Send(Life& life, const Key& key, const Query& query, Pending& pending);
  Answer Read(Life& life, const channel::Answer& answer, std::uint32_t asked_blocks);
  Answer GiveUp(Life& life, const Key& key, const Pending& pending);

  const ClientOptions& options_;
  Link& link_;
  Counters& counters_;
  Mutex mutex_;
  std::map<Key, Pending> pending_ ORBITKV_GUARDED_BY(mutex_);
};

// A lease as callers carry it, and back. None when the lease belongs to another Manager life.
LeaseHandle HandleOf(const Life& life, std::uint64_t lease);
std::optional<std::uint64_t> LeaseOf(const Life& life, LeaseHandle handle);

}  // namespace orbitkv::client
