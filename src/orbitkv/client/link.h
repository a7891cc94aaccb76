// The connection to the Manager, kept by a thread of its own: it connects, registers, maps and populates the pool,
// watches for the Manager's end, pings a Manager that missed a deadline, and connects again with growing pauses. A
// session whose rings make no sense, or into which nothing fits any more, is given up like one that hung up.
//
// A lost Manager's Life takes no new pins; when the last pin is gone (copies in flight have ended) it is destroyed, and
// only then the thread connects again. Its pool is unmapped and closed with it, unless a later Manager may serve the
// same memory: then the map waits for that, and is used again where it is the same pool; where it is another one, it
// goes once the new session has registered.
//
// Owns: the Life, the thread, the retry state. Threads: every call from any thread. Blocks: WaitUp until its deadline;
// Ask and OpenPublish until the call's deadline; Stop until the pins are gone. Units: CLOCK_MONOTONIC nanoseconds.
// Errors: connecting reports nothing to callers: they find no Life. One log line at loss and one at return.
// Invariant: at most one Life exists; its number rises with each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "orbitkv/base/mutex.h"
#include "orbitkv/base/result.h"
#include "orbitkv/client/life.h"
#include "orbitkv/client/options.h"
#include "orbitkv/client/registration.h"
#include "orbitkv/client/types.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/state/identity.h"

namespace orbitkv::client {

class Link {
 public:
  // Successes of abandoned requests; called on whichever thread takes answers; may post.
  using LateAnswer = std::function<void(Life&, const channel::LateAnswer&)>;

  Link(const ClientOptions& options, Counters& counters)
      : options_(options), counters_(counters), groups_(options.expected_groups) {}
  ~Link() { Stop(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Before Start: who is told, without a lock, that the state has changed.
  void OnChange(std::function<void()> listener) { listeners_.push_back(std::move(listener)); }
  void OnLateAnswer(LateAnswer handler) { late_answer_ = std::move(handler); }
  Status Start();
  // Idempotent. The holders of pins must have been stopped: this waits for the last pin.
  void Stop() ORBITKV_EXCLUDES(mutex_);

  State state() const { return state_.load(std::memory_order_acquire); }
  std::optional<Incarnation> incarnation() const ORBITKV_EXCLUDES(mutex_);
  // Empty while there is no Manager.
  LifePin Pin() ORBITKV_EXCLUDES(mutex_);
  // True when connected and, if this client can register by now, registered.
  bool WaitUp(std::uint64_t deadline_ns) ORBITKV_EXCLUDES(mutex_);

  // A worker registers once its layout is known.
  void SetGroups(std::vector<state::GroupShape> groups) ORBITKV_EXCLUDES(mutex_);
  std::optional<Registered> registered() const ORBITKV_EXCLUDES(mutex_);
  // The Manager missed a deadline: nothing is asked of it until it answers a ping.
  void ReportMissedDeadline();
  // A call to the Manager failed: a missed deadline, or rings that make no sense, which the thread looks at soon.
  void ReportFailure(const Error& error);
  // Since when it is suspect; 0 while it is not.
  std::uint64_t suspect_since_ns() const { return suspect_since_ns_.load(std::memory_order_relaxed); }
  // Lets the thread look at the sessions soon, for an answer that nobody waits for.
  void Nudge() const { wake_.Signal(); }

  // The pin's publish session, opened and registered at the first call. One thread.
  Result<channel::ClientSession*> OpenPublish(const LifePin& life);
  // One command of a background job, answered with success within the call deadline.
  Result<channel::Answer> Ask(channel::ClientSession& session, channel::Request request) const;

 private:
  friend class LifePin;
  struct OldSession {
    std::uint64_t token = 0;
    Incarnation incarnation;
  };

  void Unpin() ORBITKV_EXCLUDES(mutex_);
  void KeepForEver() ORBITKV_EXCLUDES(mutex_);
  void Run();
  Result<std::unique_ptr<Life>> Connect();
  void Serve(Life& life);
  void TearDown(std::unique_ptr<Life> life) ORBITKV_EXCLUDES(mutex_);
  bool CanRegister() const ORBITKV_REQUIRES(mutex_) { return !options_.moves_bytes() || !groups_.empty(); }
  void TryRegister(Life& life, std::uint64_t* next_ns) ORBITKV_EXCLUDES(mutex_);
  void ReportDrained(channel::ClientSession& session);
  // To a Manager that has no place for another session.
  void ReportDrainedApart();
  // False when there is nothing to wait for: the ping cannot be posted.
  bool WaitForPing(Life& life, std::uint64_t until_ns);
  // Whether this Manager can still be talked to; its silence alone does not count.
  bool Usable(const Life& life) const;
  // Waits, and doubles the pause.
  void Pause(std::uint64_t* pause_ns);
  void SayGoodbye(Life& life);
  void SetState(State state);
  void SayOnce(Code code, const std::string& why);
  // Waits for Stop, Nudge, a hang-up or the deadline.
  void WaitForEvent(std::uint64_t deadline_ns);
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  channel::ConnectOptions SessionOptions(Life* life, wire::Purpose purpose, std::string* message);
  void HandleLate(Life& life, wire::Purpose purpose, const channel::LateAnswer& late);

  const ClientOptions& options_;
  Counters& counters_;
  std::vector<std::function<void()>> listeners_;
  LateAnswer late_answer_;
  std::atomic<State> state_{State::kDown};
  std::atomic<std::uint64_t> suspect_since_ns_{0};
  std::atomic<bool> stopping_{false};
  os::Epoll epoll_;
  os::EventFd wake_;

  mutable Mutex mutex_;
  CondVar changed_;
  Life* life_ ORBITKV_GUARDED_BY(mutex_) = nullptr;  // owned by the thread; null once lost
  std::uint32_t pins_ ORBITKV_GUARDED_BY(mutex_) = 0;
  bool kept_for_ever_ ORBITKV_GUARDED_BY(mutex_) = false;  // the Life may still be written to by a device
  std::vector<state::GroupShape> groups_ ORBITKV_GUARDED_BY(mutex_);
  std::optional<Registered> registered_ ORBITKV_GUARDED_BY(mutex_);

  // Of the thread alone.
  std::unique_ptr<PoolMap> kept_pool_;  // of the Manager before
  std::uint64_t lives_ = 0;
  std::string said_;  // the last reason for being down that was logged
  std::optional<channel::RequestId> ping_;
  std::uint64_t ping_refused_since_ns_ = 0;  // 0: the last one was posted
  std::vector<OldSession> old_sessions_;
  os::Thread thread_;
};

}  // namespace orbitkv::client
