// The operations of a client that are loading at the Manager. They are not asked for one by one: the Manager moves a
// word of the session's memory when some are over, and then one poll asks for all of them.
//
// Owns: the numbers of the operations, what is known of each, the poll that is on its way.
// Threads: any. Blocks: Wait, until its deadline; nothing else. Units: CLOCK_MONOTONIC ns.
// Limits: whoever adds tickets keeps to kMostPolled at a time.
// Errors: none; a poll that fails leaves its tickets loading, and their owner gives them up at its own deadline.
// Invariants: numbers rise within a Manager life. A lease that a poll brings for a ticket that nobody waits for any
// more
//             is released.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/client/answers.h"
#include "orbitkv/client/link.h"
#include "orbitkv/client/types.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::client {

struct Ticket {
  std::uint64_t operation = 0;  // 0: none
  std::uint32_t revision = 0;
};

class Tickets {
 public:
  static constexpr std::size_t kMostPolled = wire::kMaxPolled;

  explicit Tickets(Counters& counters) : counters_(counters) {}

  // A number above all earlier ones of this life.
  std::uint64_t NewOperation(const Life& life) ORBITKV_EXCLUDES(mutex_);
  // The Manager said that it is loading. word: the life's completions from before it was submitted.
  void Add(const Life& life, const Ticket& ticket, std::uint32_t word) ORBITKV_EXCLUDES(mutex_);
  // It is not waited for any more: replaced, or given up.
  void Forget(const Life& life, const Ticket& ticket) ORBITKV_EXCLUDES(mutex_);
  // Since when a poll is on its way; 0 while none is.
  std::uint64_t asked_since_ns() const ORBITKV_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return poll_ ? polled_ns_ : 0;
  }
  // How it ended, if that is known by then. must_ask: also when the Manager has not said that anything is over.
  std::optional<TicketEnd> Wait(Life& life, const Ticket& ticket, std::uint64_t until_ns, bool must_ask)
      ORBITKV_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::uint32_t revision = 0;
    std::optional<TicketEnd> end{};
  };
  enum class Poll : std::uint8_t { kNone, kOnItsWay, kFailed };

  void Follow(const Life& life) ORBITKV_REQUIRES(mutex_);
  std::optional<TicketEnd> Take(const Ticket& ticket) ORBITKV_REQUIRES(mutex_);
  Poll Start(Life& life, bool must_ask) ORBITKV_REQUIRES(mutex_);
  // The leases that nobody wants.
  std::vector<std::uint64_t> Apply(const channel::Answer& answer) ORBITKV_REQUIRES(mutex_);

  Counters& counters_;
  mutable Mutex mutex_;
  std::uint64_t life_ ORBITKV_GUARDED_BY(mutex_) = 0;  // what follows belongs to
  std::uint64_t next_operation_ ORBITKV_GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, Entry> entries_ ORBITKV_GUARDED_BY(mutex_);
  std::uint32_t seen_word_ ORBITKV_GUARDED_BY(mutex_) = 0;  // as of the last poll
  bool missed_ ORBITKV_GUARDED_BY(mutex_) = false;          // something may be over that the last poll did not ask for
  std::optional<channel::RequestId> poll_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t polled_ns_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

// Tells the Manager that a lease is not wanted.
void GiveLeaseBack(Life& life, std::uint64_t lease);

}  // namespace orbitkv::client
