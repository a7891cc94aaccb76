#include "orbitkv/client/link.h"

#include <algorithm>
#include <array>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/base/log.h"
#include "orbitkv/client/time_point.h"
#include "orbitkv/os/clock.h"

namespace orbitkv::client {
namespace {

constexpr char kTag[] = "client";
constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kWakeTag = 0;
constexpr std::uint64_t kHangupTag = 1;
constexpr std::uint64_t kIdleNs = 1000 * kNsPerMs;          // between two looks at how far the pool has grown
constexpr std::uint64_t kPopulatePauses = 3;                // after a piece, in times of its own; the engine computes
constexpr std::uint64_t kPendingNs = 50 * kNsPerMs;         // between two looks at answers that nobody waits for
constexpr std::uint64_t kSuspectNs = 10 * kNsPerMs;         // one wait for the answer to a ping
constexpr std::uint64_t kGoodbyeNs = 200 * kNsPerMs;        // for an orderly end
constexpr std::uint64_t kRefusedPauseNs = 1000 * kNsPerMs;  // before a refused registration is tried again

void KeepUntilExit(std::unique_ptr<Life> life) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Life>>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(life));
}

}  // namespace

void LifePin::Reset() {
  if (link_ != nullptr) link_->Unpin();
  link_ = nullptr;
  life_ = nullptr;
}

void LifePin::KeepForEver() {
  if (link_ != nullptr) link_->KeepForEver();
  Reset();
}

Status Link::Start() {
  ORBITKV_ASSIGN_OR_RETURN(epoll_, os::Epoll::Create());
  ORBITKV_ASSIGN_OR_RETURN(wake_, os::EventFd::Create());
  ORBITKV_TRY(epoll_.Add(wake_.fd(), EPOLLIN, kWakeTag));
  return thread_.Start("orbitkv-link", [this] { Run(); });
}

void Link::Stop() {
  stopping_.store(true, std::memory_order_release);
  if (wake_.valid()) wake_.Signal();
  thread_.Join();
}

std::optional<Incarnation> Link::incarnation() const {
  const MutexLock lock(mutex_);
  if (life_ == nullptr) return std::nullopt;
  return life_->incarnation();
}

LifePin Link::Pin() {
  const MutexLock lock(mutex_);
  if (life_ == nullptr) return {};
  ++pins_;
  return {this, life_};
}

void Link::Unpin() {
  const MutexLock lock(mutex_);
  ORBITKV_CHECK(pins_ > 0);
  if (--pins_ == 0 && life_ == nullptr) changed_.NotifyAll();
}

void Link::KeepForEver() {
  const MutexLock lock(mutex_);
  kept_for_ever_ = true;
}

bool Link::WaitUp(std::uint64_t deadline_ns) {
  const MutexLock lock(mutex_);
  for (;;) {
    if (life_ != nullptr && state() == State::kUp && (registered_ || !CanRegister())) return true;
    if (stopping() || os::MonotonicNs() >= deadline_ns) return false;
    changed_.WaitUntil(mutex_, TimePoint(deadline_ns));
  }
}

void Link::SetGroups(std::vector<state::GroupShape> groups) {
  {
    const MutexLock lock(mutex_);
    groups_ = std::move(groups);
  }
  Nudge();
}

std::optional<Registered> Link::registered() const {
  const MutexLock lock(mutex_);
  return registered_;
}

void Link::SetState(State state) {
  {
    const MutexLock lock(mutex_);
    suspect_since_ns_.store(0, std::memory_order_relaxed);
    state_.store(state, std::memory_order_release);
    changed_.NotifyAll();
  }
  for (const auto& listener : listeners_) listener();
}

void Link::ReportFailure(const Error& error) {
  if (error.code == Code::kTimedOut) ReportMissedDeadline();
  if (error.code == Code::kCorrupt) Nudge();
}

void Link::ReportMissedDeadline() {
  State up = State::kUp;
  if (!state_.compare_exchange_strong(up, State::kSuspect)) return;
  suspect_since_ns_.store(os::MonotonicNs(), std::memory_order_relaxed);
  Count(counters_.suspicions);
  log::Warning(kTag, "the Manager missed a deadline name={}; asking nothing until it answers", options_.name);
  for (const auto& listener : listeners_) listener();
  Nudge();
}

Result<channel::Answer> Link::Ask(channel::ClientSession& session, channel::Request request) const {
  request.deadline_ns = os::DeadlineAfter(options_.call_deadline_ms * kNsPerMs);
  ORBITKV_ASSIGN_OR_RETURN(channel::Answer answer, session.Call(request));
  if (answer.ok()) return answer;
  return Fail(wire::CodeOf(answer.status).value_or(Code::kInvalid), "the Manager did not do what was asked",
              static_cast<std::uint64_t>(request.command));
}

channel::ConnectOptions Link::SessionOptions(Life* life, wire::Purpose purpose, std::string* message) {
  channel::ConnectOptions connect;
  connect.socket_path = options_.socket_path;
  connect.purpose = purpose;
  connect.name = options_.name;
  connect.deadline_ns = os::DeadlineAfter(options_.connect_deadline_ms * kNsPerMs);
  connect.spin_ns = options_.spin_us * 1000;
  if (life != nullptr) {
    connect.late_answer = [this, life, purpose](const channel::LateAnswer& late) { HandleLate(*life, purpose, late); };
  }
  connect.message = message;
  return connect;
}

void Link::HandleLate(Life& life, wire::Purpose purpose, const channel::LateAnswer& late) {
  // Nobody waits for a begin: its success is not late, and what it gave is wanted.
  if (late.command == wire::Command::kRestoreBegin) return;
  Count(counters_.late_answers);
  if (purpose == wire::Purpose::kControl) {
    if (late_answer_) late_answer_(life, late);
    return;
  }
  if (late.command != wire::Command::kPublishReserve || late.answer->scalar0 == 0) return;
  // Only the session that reserved may abort, and while its handler runs it exists.
  if (channel::ClientSession* const session = life.publish()) {
    (void)session->PostNeverLost(wire::Command::kPublishAbort, late.answer->scalar0, 0);
  }
}

Result<channel::ClientSession*> Link::OpenPublish(const LifePin& life) {
  if (channel::ClientSession* const open = life->publish()) return open;
  std::vector<state::GroupShape> groups;
  {
    const MutexLock lock(mutex_);
    groups = groups_;
  }
  std::string message;
  ORBITKV_ASSIGN_OR_RETURN(std::unique_ptr<channel::ClientSession> session,
                           channel::ClientSession::Connect(SessionOptions(&*life, wire::Purpose::kPublish, &message)));
  if (session->incarnation() != life->incarnation()) return Fail(Code::kStale, "the Manager has changed meanwhile");
  const std::uint64_t deadline = os::DeadlineAfter(options_.call_deadline_ms * kNsPerMs);
  const auto registered = Register(*session, options_, groups, deadline, &message);
  if (!registered) {
    log::Warning(kTag, "cannot register the publish session: {}",
                 message.empty() ? ToString(registered.error()) : message);
    return std::unexpected(registered.error());
  }
  return life->SetPublish(std::move(session));
}

void Link::SayOnce(Code code, const std::string& why) {
  // While it is away one line is enough; that it is there and refuses is news.
  if (why == said_ || (code == Code::kUnavailable && !said_.empty())) return;
  said_ = why;
  log::Warning(kTag, "no Manager name={} socket={} reason=\"{}\"; serving without cache, trying again", options_.name,
               options_.socket_path, why);
}

Result<std::unique_ptr<Life>> Link::Connect() {
  auto life = std::make_unique<Life>(++lives_);
  std::string message;
  auto session = channel::ClientSession::Connect(SessionOptions(life.get(), wire::Purpose::kControl, &message));
  if (!session) {
    SayOnce(session.error().code, message.empty() ? session.error().text : message);
    if (session.error().code == Code::kBusy && !old_sessions_.empty()) ReportDrainedApart();
    return std::unexpected(session.error());
  }
  life->SetControl(std::move(*session));
  if (options_.moves_bytes()) {
    const channel::ClientSession& control = life->control();
    const PoolDescription description{control.pool_bytes(), control.pool_named(), options_.read_only};
    if (kept_pool_ != nullptr && kept_pool_->IsOf(control.pool_fd(), description)) {
      Count(counters_.pools_kept);
      life->SetPool(std::move(kept_pool_));
      return life;
    }
    // Another one: it goes as soon as this session has registered.
    auto pool = PoolMap::Open(control.pool_fd(), description);
    if (!pool) {
      SayOnce(pool.error().code, pool.error().text);
      return std::unexpected(pool.error());
    }
    life->SetPool(std::move(*pool));
  }
  return life;
}

void Link::Run() {
  std::uint64_t pause = options_.min_backoff_ms * kNsPerMs;
  while (!stopping()) {
    auto connected = Connect();
    if (!connected) {
      Pause(&pause);
      continue;
    }
    const std::uint64_t began = os::MonotonicNs();
    Life& life = **connected;
    Count(counters_.connects);
    log::Info(kTag, "connected name={} manager_pid={} pool_bytes={}", options_.name, life.control().manager_pid(),
              life.control().pool_bytes());
    said_.clear();
    {
      const MutexLock lock(mutex_);
      life_ = &life;
    }
    SetState(State::kUp);
    Serve(life);
    TearDown(std::move(*connected));
    // A Manager that accepts and goes away at once is as good as none.
    if (os::MonotonicNs() - began >= options_.max_backoff_ms * kNsPerMs) {
      pause = options_.min_backoff_ms * kNsPerMs;
    } else {
      Pause(&pause);
    }
  }
  kept_pool_.reset();
  SetState(State::kDown);
}

void Link::Pause(std::uint64_t* pause_ns) {
  const std::uint64_t until = os::DeadlineAfter(*pause_ns);
  *pause_ns = std::min(2 * *pause_ns, options_.max_backoff_ms * kNsPerMs);
  while (!stopping() && os::MonotonicNs() < until) WaitForEvent(until);
}

bool Link::Usable(const Life& life) const {
  if (life.control().hung_up() || life.control().broken()) return false;
  if (ping_refused_since_ns_ != 0 &&
      os::MonotonicNs() - ping_refused_since_ns_ >= options_.load_deadline_ms * kNsPerMs) {
    return false;  // it has taken nothing out of the rings for so long that nothing fits in any more
  }
  const channel::ClientSession* const publish = life.publish();
  return publish == nullptr || !publish->broken();
}

void Link::Serve(Life& life) {
  if (!epoll_.Add(life.control().hangup_fd(), EPOLLRDHUP, kHangupTag)) return;
  std::uint64_t register_at = 0;
  std::uint64_t drained_at = 0;
  std::uint64_t populate_at = options_.populate_pool && life.pool() != nullptr ? 0 : os::kNoDeadline;
  while (!stopping() && Usable(life)) {
    Count(counters_.link_rounds);
    std::uint64_t now = os::MonotonicNs();
    if (now >= drained_at && !old_sessions_.empty() && state() == State::kUp) {
      ReportDrained(life.control());
      drained_at = os::DeadlineAfter(kRefusedPauseNs);
    }
    if (now >= register_at) TryRegister(life, &register_at);
    // Whoever lets go of a pool last frees its memory, which takes long: only now, when the engine has its cache again.
    kept_pool_.reset();
    now = os::MonotonicNs();
    if (now >= populate_at) {
      const std::uint64_t began = now;
      const std::uint64_t bytes = life.pool()->PopulateNext();
      Count(counters_.populated_bytes, bytes);
      now = os::MonotonicNs();
      populate_at = now + (bytes > 0 ? kPopulatePauses * (now - began) : kIdleNs);
    }
    std::uint64_t next = std::min(now + kIdleNs, populate_at);
    // A time that has passed asks for nothing: what there is to register now is registered, or waits for SetGroups.
    if (register_at > now) next = std::min(next, register_at);
    channel::ClientSession* const publish = life.publish();
    if (life.control().pending() > 0 || (publish != nullptr && publish->pending() > 0)) {
      life.control().Pump();
      if (publish != nullptr) publish->Pump();
      next = std::min(next, now + kPendingNs);
    }
    // A wait for the answer to the ping takes the place of the wait for an event: the Manager is trusted again as soon
    // as it answers.
    if (state() == State::kSuspect) next = WaitForPing(life, now + kSuspectNs) ? now : std::min(next, now + kSuspectNs);
    WaitForEvent(next);
  }
  if (stopping() && Usable(life)) SayGoodbye(life);
  epoll_.Remove(life.control().hangup_fd());
}

void Link::TryRegister(Life& life, std::uint64_t* next_ns) {
  std::vector<state::GroupShape> groups;
  {
    const MutexLock lock(mutex_);
    // SetGroups wakes the thread, so looking again at every wake-up is soon enough.
    if (!CanRegister() || registered_) return;
    groups = groups_;
  }
  std::string message;
  const auto registered =
      Register(life.control(), options_, groups, os::DeadlineAfter(options_.call_deadline_ms * kNsPerMs), &message);
  if (registered) {
    Count(counters_.registrations);
    const MutexLock lock(mutex_);
    registered_ = *registered;
    changed_.NotifyAll();
    return;
  }
  *next_ns = os::DeadlineAfter(kRefusedPauseNs);
  if (registered.error().code == Code::kTimedOut) {
    ReportMissedDeadline();
  } else if (registered.error().code == Code::kRefused) {
    Count(counters_.registrations_refused);
    if (message != said_) {
      log::Warning(kTag, "registration refused name={}: {}", options_.name, message);
      said_ = message;
    }
  }
}

bool Link::WaitForPing(Life& life, std::uint64_t until_ns) {
  channel::ClientSession& session = life.control();
  if (!ping_) {
    const auto posted = session.Post({.command = wire::Command::kPing, .deadline_ns = os::kNoDeadline});
    if (!posted) {
      session.Pump();
      if (ping_refused_since_ns_ == 0) ping_refused_since_ns_ = os::MonotonicNs();
      return false;
    }
    ping_ = *posted;
    ping_refused_since_ns_ = 0;
  }
  const auto answer = session.Wait(*ping_, until_ns);
  if (!answer && answer.error().code == Code::kTimedOut) return true;
  ping_.reset();
  if (!answer) return false;
  log::Info(kTag, "the Manager answers again name={}", options_.name);
  SetState(State::kUp);
  return true;
}

// What the Manager does not know it takes as well; where it refuses, it will not take it another time either.
void Link::ReportDrained(channel::ClientSession& session) {
  while (!old_sessions_.empty()) {
    const OldSession& old = old_sessions_.back();
    const auto sent =
        SessionDrained(session, old.token, old.incarnation, os::DeadlineAfter(options_.call_deadline_ms * kNsPerMs));
    if (!sent && (sent.error().code != Code::kRefused || session.purpose() == wire::Purpose::kAdmin)) return;
    old_sessions_.pop_back();
  }
}

// It may be this client's own earlier sessions that fill the Manager. Status tools have places of their own.
void Link::ReportDrainedApart() {
  const auto session = channel::ClientSession::Connect(SessionOptions(nullptr, wire::Purpose::kAdmin, nullptr));
  if (session) ReportDrained(**session);
}

void Link::SayGoodbye(Life& life) {
  const std::uint64_t deadline = os::DeadlineAfter(kGoodbyeNs);
  channel::ClientSession* const publish = life.publish();
  for (channel::ClientSession* const session : {publish, &life.control()}) {
    if (session == nullptr || state() != State::kUp) continue;
    session->Pump();
    while (session->unacknowledged() > 0 && !session->hung_up() && os::MonotonicNs() < deadline) {
      // A ping behind the never-lost commands is answered after them.
      (void)session->Call({.command = wire::Command::kPing, .deadline_ns = deadline});
    }
    (void)Unregister(*session, deadline);
  }
}

void Link::TearDown(std::unique_ptr<Life> life) {
  if (!stopping()) {
    Count(counters_.losses);
    said_.clear();
    SayOnce(Code::kUnavailable, "the Manager went away");
  }
  // New pins end first, then every wait, then the copies; the pool goes after the last of them.
  {
    const MutexLock lock(mutex_);
    life_ = nullptr;
    registered_.reset();
  }
  life->MarkLost();
  ping_.reset();
  ping_refused_since_ns_ = 0;
  SetState(State::kDown);
  {
    const MutexLock lock(mutex_);
    while (pins_ > 0) changed_.Wait(mutex_);
    if (std::exchange(kept_for_ever_, false)) {
      // It is never reported drained either: the Manager keeps its slots until this process has ended.
      KeepUntilExit(std::move(life));
      return;
    }
  }
  if (life->control().pool_outlives()) kept_pool_ = life->TakePool();
  old_sessions_.push_back({life->control().token(), life->incarnation()});
  if (channel::ClientSession* const publish = life->publish()) {
    old_sessions_.push_back({publish->token(), publish->incarnation()});
  }
  // Bounded: a Manager that comes back many times without taking the report has long ended the oldest ones.
  constexpr std::size_t kMostOldSessions = 64;
  if (old_sessions_.size() > kMostOldSessions) {
    old_sessions_.erase(old_sessions_.begin(), old_sessions_.end() - kMostOldSessions);
  }
}

void Link::WaitForEvent(std::uint64_t deadline_ns) {
  std::array<os::Epoll::Event, 2> events;
  const auto count = epoll_.Wait(events, deadline_ns);
  if (count && *count > 0) wake_.Drain();
}

}  // namespace orbitkv::client
