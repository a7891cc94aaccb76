#include "orbitkv/manager/dispatcher.h"

#include <algorithm>
#include <utility>

#include "orbitkv/base/log.h"
#include "orbitkv/manager/dispatcher_session.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "dispatcher";
constexpr std::uint64_t kDrainNs = 200'000'000;
// As long as a session that rings for nothing may wait for its next request to be seen.
constexpr std::uint64_t kMuteNs = 20'000'000;
// Of looking through what was taken over: only after so long without requests, so much at a time, and no faster.
constexpr std::uint64_t kScrubIdleNs = 20'000'000;
constexpr std::uint64_t kScrubBytes = 1U << 20U;
constexpr std::uint32_t kScrubSteps = 16;
constexpr std::uint64_t kScrubBytesPerSecond = 64U << 20U;
constexpr std::uint64_t kLeastScrubPauseNs = 1'000'000;

}  // namespace

Dispatcher::Dispatcher(const Parts& parts)
    : core_(*parts.core),
      service_(parts.core->service()),
      waiter_(*parts.waiter),
      metrics_(*parts.metrics),
      incarnation_(parts.incarnation),
      row_freed_(parts.row_freed),
      started_ns_(os::MonotonicNs()) {
  AddFigures();
}

Dispatcher::~Dispatcher() { Stop(); }

void Dispatcher::Attach(channel::BootstrapServer* server, Verifier* verifier, Backing* backing) {
  server_ = server;
  verifier_ = verifier;
  backing_ = backing;
  service_.SetSource(backing);
}

Status Dispatcher::Start() {
  if (thread_.running()) return {};
  return thread_.Start("okv-dispatch", [this] { Run(); });
}

void Dispatcher::Stop() {
  stop_.store(true, std::memory_order_release);
  waiter_.Notify();
  thread_.Join();
}

void Dispatcher::Post(Event event) {
  queue_.Post(std::move(event));
  waiter_.Notify();
}

void Dispatcher::OnOpened(std::unique_ptr<channel::ServerSession> session) { Post(SessionOpened{std::move(session)}); }
void Dispatcher::OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind,
                         std::vector<std::byte> payload) {
  Post(FrameArrived{session, frame_id, kind, std::move(payload)});
}
void Dispatcher::OnHangup(SessionId session) { Post(SessionHungUp{session}); }
void Dispatcher::OnDeath(SessionId session) { Post(SessionDied{session}); }
void Dispatcher::PostReserved(std::uint64_t bytes) { Post(MemoryReserved{bytes}); }
void Dispatcher::PostEarlierGone(std::uint32_t row) { Post(EarlierSessionGone{row}); }
void Dispatcher::PostVerdict(std::uint64_t request_id, bool equal) { Post(SlotVerified{request_id, equal}); }

void Dispatcher::PostLoaded(std::uint64_t id, service::LoadResult result, std::uint64_t checksum) {
  Post(SlotLoaded{id, result, checksum});
}

void Dispatcher::PostSaved(std::uint64_t id, service::SaveResult result) { Post(SlotSaved{id, result}); }

void Dispatcher::Run() {
  const std::function<bool()> has_work = [this] { return HasWork(); };
  while (!stop_.load(std::memory_order_acquire)) {
    if (Round()) continue;
    Scrub();
    waiter_.Sleep(service_.scrubbing() ? std::min(NextDeadline(), next_scrub_ns_) : NextDeadline(), has_work);
    JudgeRings();
  }
  // What was posted before Stop is answered, but a client that goes on posting keeps nobody alive.
  const std::uint64_t deadline = os::DeadlineAfter(kDrainNs);
  while (Round() && os::MonotonicNs() < deadline) {
  }
}

bool Dispatcher::Round() {
  ++rounds_;
  bool worked = HandleEvents();
  const std::size_t count = sessions_.size();
  if (count > 0) {
    first_turn_ = (first_turn_ + 1) % count;
    for (std::size_t i = 0; i < count; ++i) worked |= Turn(*sessions_[(first_turn_ + i) % count]);
  }
  if (worked) SendToVerifier();
  if (const std::uint64_t deadline = NextDeadline(); deadline != os::kNoDeadline) {
    if (const std::uint64_t now_ns = os::MonotonicNs(); deadline <= now_ns) Tick(now_ns);
  }
  worked |= Load();
  SignalCompletions();
  return worked;
}

std::uint64_t Dispatcher::NextDeadline() const {
  std::uint64_t deadline = service_.NextDeadline().value_or(os::kNoDeadline);
  for (const auto& session : sessions_) {
    if (session->channel == nullptr) continue;
    deadline = std::min(deadline, session->channel->NextDeadline());
    if (session->muted_until_ns != 0) deadline = std::min(deadline, session->muted_until_ns);
  }
  return deadline;
}

void Dispatcher::Tick(std::uint64_t now_ns) {
  service_.Tick(now_ns);
  FreeEarlierRows();
  for (const auto& session : sessions_) {
    if (session->channel == nullptr) continue;
    session->channel->Expire(now_ns);
    if (session->muted_until_ns == 0 || session->muted_until_ns > now_ns) continue;
    session->muted_until_ns = 0;
    if (!session->channel->broken() && !waiter_.Watch(*session->channel)) session->muted_until_ns = now_ns + kMuteNs;
  }
}

void Dispatcher::Scrub() {
  const std::uint64_t now_ns = os::MonotonicNs();
  if (!service_.scrubbing() || now_ns < next_scrub_ns_) return;
  next_scrub_ns_ = last_request_ns_ + kScrubIdleNs;
  if (now_ns < next_scrub_ns_) return;
  std::uint64_t bytes = 0;
  for (std::uint32_t step = 0; step < kScrubSteps && bytes < kScrubBytes && service_.scrubbing(); ++step) {
    bytes += service_.Scrub(now_ns);
  }
  SendToVerifier();
  next_scrub_ns_ = now_ns + std::max(kLeastScrubPauseNs, bytes * 1'000'000'000 / kScrubBytesPerSecond);
}

void Dispatcher::JudgeRings() {
  for (const SessionId id : waiter_.rung()) {
    Session* session = Find(id);
    if (session == nullptr || session->channel == nullptr || session->channel->broken()) continue;
    if (!session->channel->Rang()) continue;
    waiter_.Unwatch(*session->channel);
    session->muted_until_ns = os::DeadlineAfter(kMuteNs);
    ++mutes_;
    if (std::exchange(session->told_muted, true)) continue;
    log::Warning(kTag,
                 "session={} name=\"{}\" rings its doorbell without requests; it is listened to now and then only",
                 id.value(), session->channel->name());
  }
}

bool Dispatcher::Load() {
  if (!service_.HasWork()) return false;
  service_.Work(os::MonotonicNs());
  for (const service::LoadRequest& request : service_.TakeLoads()) backing_->Submit(request);
  for (const service::SaveRequest& request : service_.TakeSaves()) backing_->Save(request);
  return true;
}

void Dispatcher::SignalCompletions() {
  for (const SessionId id : service_.TakeCompleted()) {
    const Session* session = Find(id);
    if (session != nullptr && session->channel != nullptr) session->channel->SignalCompletion();
  }
}

bool Dispatcher::HasWork() const {
  const bool asked = std::ranges::any_of(sessions_, [](const std::unique_ptr<Session>& session) {
    return session->turn.stepping() || (session->channel != nullptr && session->channel->HasRequests());
  });
  return asked || service_.HasWork();
}

bool Dispatcher::Turn(Session& session) {
  if (session.channel == nullptr) return false;
  struct Host {
    static std::uint64_t Now() { return os::MonotonicNs(); }
    static void Begins(const channel::ReceivedRequest&) {}
    void Continues() { continues = true; }
    void Stepped(const CommandAnswer& answer, std::uint64_t) {
      expired |= continues && !session.turn.stepping() && answer.status == wire::AnswerStatus::kTimedOut;
      continues = false;
    }
    const Session& session;
    bool continues = false;
    bool expired = false;
  } host{.session = session};
  const bool worked = session.turn.Take(*session.channel, host);
  if (host.expired) ++requests_expired_in_steps_;
  if (worked && service_.scrubbing()) last_request_ns_ = os::MonotonicNs();
  if (session.channel->broken() && !session.told_broken) {
    session.told_broken = true;
    waiter_.Unwatch(*session.channel);  // its doorbell may go on ringing
    log::Warning(kTag, "session={} name=\"{}\" its request ring makes no sense and is no longer served",
                 session.id.value(), session.channel->name());
  }
  return worked;
}

void Dispatcher::SendToVerifier() {
  for (const service::VerifyRequest& request : service_.TakeVerifyRequests()) {
    Verifier::Job job;
    job.id = request.id;
    job.offset = request.offset;
    job.slot_bytes = request.slot_bytes;
    job.shape = {request.page_count, request.page_bytes};
    job.identity = request.key;
    job.slot_checksum = request.slot_checksum;
    // A reported slot that nobody can check is not served again.
    if (!verifier_->Submit(job)) service_.VerifyDone(request.id, service::IsScrub(request.id), os::MonotonicNs());
  }
}

Dispatcher::Session* Dispatcher::Find(SessionId id) {
  const auto found =
      std::ranges::find_if(sessions_, [id](const std::unique_ptr<Session>& session) { return session->id == id; });
  return found == sessions_.end() ? nullptr : found->get();
}

void Dispatcher::CloseChannel(Session& session, std::uint64_t now_ns) {
  if (session.channel == nullptr) return;
  session.turn.Close(now_ns);
  waiter_.Unwatch(*session.channel);
  const channel::ServerSessionStats& stats = session.channel->stats();
  past_.requests += stats.requests;
  past_.expired += stats.expired;
  past_.malformed += stats.malformed;
  past_.idle_rings += stats.idle_rings;
  session.channel.reset();
}

void Dispatcher::Forget(SessionId id, std::uint64_t now_ns) {
  Session* session = Find(id);
  if (session == nullptr) return;
  CloseChannel(*session, now_ns);
  std::erase_if(sessions_, [id](const std::unique_ptr<Session>& one) { return one->id == id; });
}

void Dispatcher::AddFigures() {
  metrics_.AddSource([this](MetricSink& sink) {
    channel::ServerSessionStats all = past_;
    for (const auto& session : sessions_) {
      if (session->channel == nullptr) continue;
      all.requests += session->channel->stats().requests;
      all.expired += session->channel->stats().expired;
      all.malformed += session->channel->stats().malformed;
      all.idle_rings += session->channel->stats().idle_rings;
    }
    sink.Counter("orbitkv_requests_total", "Requests taken from rings.", static_cast<double>(all.requests));
    sink.Counter("orbitkv_requests_expired_total", "Requests not executed: their deadline had passed.",
                 static_cast<double>(all.expired + requests_expired_in_steps_));
    sink.Counter("orbitkv_requests_malformed_total", "Requests refused by their form.",
                 static_cast<double>(all.malformed));
    sink.Counter("orbitkv_idle_rings_total", "Rings of doorbells that brought no request.",
                 static_cast<double>(all.idle_rings));
    sink.Counter("orbitkv_doorbells_muted_total", "Times a doorbell was not listened to for a while.",
                 static_cast<double>(mutes_));
    sink.Counter("orbitkv_dispatcher_events_total", "Events from other threads.", static_cast<double>(events_));
    sink.Counter("orbitkv_dispatcher_rounds_total", "Rounds over all sessions.", static_cast<double>(rounds_));
    sink.Counter("orbitkv_dispatcher_sleeps_total", "Times the dispatcher slept.",
                 static_cast<double>(waiter_.sleeps()));
    if (const auto waited_ns = os::CpuWaitNs()) {
      sink.Counter("orbitkv_dispatcher_cpu_wait_seconds_total", "Time that the dispatcher had work and no CPU.",
                   static_cast<double>(*waited_ns) / 1e9);
    }
    sink.Counter("orbitkv_frames_dropped_total", "Lifecycle frames answered busy: too many at once.",
                 static_cast<double>(queue_.dropped_frames()));
    sink.Gauge(
        "orbitkv_connections", "Sessions with a connection.",
        static_cast<double>(std::ranges::count_if(sessions_, [](const auto& s) { return s->channel != nullptr; })));
  });
}

}  // namespace orbitkv::manager
