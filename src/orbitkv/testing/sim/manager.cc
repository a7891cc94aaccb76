#include "orbitkv/testing/sim/manager.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/sim/oracle.h"

namespace orbitkv::sim {
namespace {

// What one session may do in one turn besides its hashes.
constexpr std::uint32_t kTurnRequests = 8;

template <typename T>
T Must(Result<T> result) {
  ORBITKV_CHECK(result.has_value());
  return std::move(*result);
}

}  // namespace

ManagerLife::ManagerLife(const Shape& shape, std::uint64_t number, const Store& store, Oracle& oracle, History& history)
    : shape_(shape),
      store_(store),
      number_(number),
      oracle_(oracle),
      history_(history),
      memory_(std::make_shared<PoolMemory>(shape.pool.pool_bytes)),
      table_memory_(shape.pool.table_bytes() / sizeof(std::uint64_t)),
      table_(std::make_unique<wire::SpanTable>(std::as_writable_bytes(std::span(table_memory_)))),
      pool_(Must(pool::Pool::Create(shape.pool, *table_))) {
  ORBITKV_CHECK(pool_->AddReserved(shape.pool.pool_bytes).has_value());
  cache::CacheConfig config;
  config.max_blocks = shape.max_blocks;
  config.hash_seed = number * 0x9e3779b97f4a7c15ULL;
  config.max_revokes = 4;
  cache_ = Must(cache::BlockCache::Create(config, *pool_));
  service_ = std::make_unique<service::Service>(shape.limits, *cache_);
  if (!shape.backed) return;
  store.ForEach([this](const Saved& saved) { source_.Put(saved.key, saved.record, saved.bytes); });
  service_->SetSource(&source_);
}

ManagerLife::~ManagerLife() = default;

const channel::ServerSession& ManagerLife::Connect(service::Purpose purpose, std::uint64_t token, std::uint16_t abi) {
  channel::ServerSessionOptions options;
  options.session = SessionId(next_session_++);
  options.client_token = token;
  options.abi = abi;
  options.purpose = purpose == service::Purpose::kPublish ? wire::Purpose::kPublish : wire::Purpose::kControl;
  options.geometry = shape_.geometry;
  opening_.push_back({Must(channel::ServerSession::Create(options)), purpose});
  Post({.kind = Frame::Kind::kOpened, .session = options.session});
  return *opening_.back().channel;
}

ManagerLife::Session* ManagerLife::Find(SessionId id) {
  const auto found = std::ranges::find_if(sessions_, [id](const auto& session) { return session->id == id; });
  return found == sessions_.end() ? nullptr : found->get();
}

void ManagerLife::TakeEvent(std::uint64_t now_ns) {
  const Frame frame = std::move(events_.front());
  events_.pop_front();
  switch (frame.kind) {
    case Frame::Kind::kOpened: Opened(frame, now_ns); break;
    case Frame::Kind::kRegister: Registered(frame, now_ns); break;
    case Frame::Kind::kUnregister: Unregistered(frame, now_ns); break;
    case Frame::Kind::kDrained: Drained(frame, now_ns); break;
    case Frame::Kind::kHungUp: HungUp(frame.session, now_ns); break;
    case Frame::Kind::kDied:
      if (Find(frame.session) != nullptr) End(frame.session, now_ns);
      break;
  }
}

void ManagerLife::Opened(const Frame& frame, std::uint64_t) {
  const auto found =
      std::ranges::find_if(opening_, [&frame](const Opening& one) { return one.channel->id() == frame.session; });
  ORBITKV_CHECK(found != opening_.end());
  Opening opening = std::move(*found);
  opening_.erase(found);
  const Status opened = service_->OpenSession(frame.session, opening.purpose, opening.channel->token());
  history_.Note(opened ? "manager: opened" : "manager: refused to open", {{"session", frame.session.value()}});
  if (!opened) {
    replies_.push_back({.kind = Reply::Kind::kClosed, .session = frame.session});
    return;
  }
  oracle_.Opened(frame.session, opening.channel->abi());
  sessions_.push_back(std::make_unique<Session>(std::move(opening.channel), *service_));
}

bool ManagerLife::HoldsNothing(SessionId id) const {
  const auto sessions = service_->sessions();
  const auto found = std::ranges::find(sessions, id, &service::SessionStatus::id);
  return found == sessions.end() || (found->armed_ranks == 0 && found->reserved_bytes == 0);
}

void ManagerLife::HungUp(SessionId id, std::uint64_t now_ns) {
  Session* session = Find(id);
  if (session == nullptr) return;
  history_.Note("manager: hung up", {{"session", id.value()}});
  Close(*session, now_ns);
  service_->DetachSession(id, now_ns);
  oracle_.Detached(id);
  if (!HoldsNothing(id)) {
    ++counts_.detached_holding;
    return;
  }
  oracle_.CheckHoldsNothing(id);
  End(id, now_ns);
}

void ManagerLife::End(SessionId id, std::uint64_t now_ns) {
  history_.Note("manager: ended", {{"session", id.value()}});
  service_->EndSession(id, now_ns);
  oracle_.Ended(id);
  Forget(id, now_ns);
}

void ManagerLife::Registered(const Frame& frame, std::uint64_t now_ns) {
  const Session* session = Find(frame.session);
  if (session == nullptr || session->channel == nullptr) return;
  const service::RegisterOutcome outcome = service_->Register(frame.session, frame.registration, now_ns);
  history_.Note("manager: registered", {{"session", frame.session.value()},
                                        {"refused", outcome.refused ? 1U : 0U},
                                        {"instance", outcome.instance.value()},
                                        {"ready", outcome.namespace_ready ? 1U : 0U}});
  if (!outcome.refused) oracle_.Registered(frame.session, frame.registration, outcome);
  replies_.push_back({.kind = outcome.refused ? Reply::Kind::kRefused : Reply::Kind::kRegistered,
                      .session = frame.session,
                      .outcome = outcome});
}

void ManagerLife::Unregistered(const Frame& frame, std::uint64_t now_ns) {
  const Session* session = Find(frame.session);
  if (session == nullptr || session->channel == nullptr) return;
  ORBITKV_CHECK(service_->Unregister(frame.session, now_ns).has_value());
  history_.Note("manager: unregistered", {{"session", frame.session.value()}});
  oracle_.Unregistered(frame.session);
  ++counts_.unregistered;
  replies_.push_back({.kind = Reply::Kind::kUnregistered, .session = frame.session});
}

void ManagerLife::Drained(const Frame& frame, std::uint64_t now_ns) {
  if (Find(frame.session) == nullptr) return;
  if (frame.life == number_) {
    if (const auto ended = service_->DrainSession(frame.token, now_ns)) {
      history_.Note("manager: drained", {{"session", ended->value()}});
      oracle_.Ended(*ended);
      ++counts_.drained;
      if (*ended != frame.session) Forget(*ended, now_ns);
    }
  }
  replies_.push_back({.kind = Reply::Kind::kDone, .session = frame.session});
}

bool ManagerLife::Turn(std::size_t index, std::uint64_t now_ns) {
  Session& session = *sessions_[index];
  if (session.channel == nullptr) return false;
  bool worked = false;
  std::uint32_t hashes = 0;
  if (session.stepping) {
    worked = true;
    Step(session, false, now_ns);
    if (session.stepping) return true;
    hashes = shape_.limits.step_hashes;
  }
  for (std::uint32_t i = 0; i < kTurnRequests && hashes < shape_.limits.step_hashes; ++i) {
    const auto request = session.channel->Next(now_ns);
    if (!request) break;
    worked = true;
    session.handle = request->handle;
    session.deadline_ns = request->deadline_ns;
    session.request.command = request->command;
    session.request.scalar0 = request->scalar0;
    session.request.scalar1 = request->scalar1;
    session.request.stepped = false;
    session.request.decided = 0;
    session.request.bytes = request->args.size();
    session.request.words.resize((request->args.size() + 7) / 8);
    if (!request->args.empty()) std::memcpy(session.request.words.data(), request->args.data(), request->args.size());
    Step(session, true, now_ns);
    if (session.stepping) break;
    hashes += session.runner.last_cost_hashes();
  }
  if (worked) session.channel->FlushWake();
  if (session.channel->broken()) history_.Violation("a ring broke", {{"session", session.id.value()}});
  for (const service::VerifyRequest& request : service_->TakeVerifyRequests()) verifying_.push_back(request);
  return worked;
}

// Starts the session's request or goes on with it; answers it when it is done.
void ManagerLife::Step(Session& session, bool first, std::uint64_t now_ns) {
  manager::CommandAnswer answer;
  const WorkBefore before = oracle_.BeforeWork();
  const auto progress = first ? session.runner.Start({session.request.command, session.request.scalar0,
                                                      session.request.scalar1, session.request.args()},
                                                     now_ns, answer)
                              : session.runner.Continue(session.deadline_ns, now_ns, answer);
  oracle_.AfterWork(before);
  session.stepping = progress == manager::CommandRunner::Progress::kMore;
  session.request.stepped |= session.stepping;
  if (session.stepping) {
    if (session.request.command == wire::Command::kPublishCommit) {
      oracle_.Committing(session.id, session.request, session.runner.outcomes());
    }
    return;
  }
  history_.Note("manager: answers", {{"session", session.id.value()},
                                     {"command", static_cast<std::uint64_t>(session.request.command)},
                                     {"asked0", session.request.scalar0},
                                     {"asked1", session.request.scalar1},
                                     {"status", static_cast<std::uint64_t>(answer.status)},
                                     {"told0", answer.scalar0},
                                     {"told1", answer.scalar1}});
  oracle_.Answered(session.id, session.request, answer, now_ns);
  session.channel->Answer(session.handle, answer.status, answer.scalar0, answer.scalar1, answer.payload);
}

bool ManagerLife::stepping() const {
  return std::ranges::any_of(sessions_, [](const auto& session) { return session->stepping; });
}

void ManagerLife::TickIfDue(std::uint64_t now_ns) {
  const auto deadline = service_->NextDeadline();
  if (deadline && *deadline <= now_ns) service_->Tick(now_ns);
}

void ManagerLife::Work(std::uint64_t now_ns) {
  const WorkBefore before = oracle_.BeforeWork();
  service_->Work(now_ns);
  oracle_.AfterWork(before);
  for (const service::LoadRequest& request : service_->TakeLoads()) {
    const Saved* saved = store_.Find(request.key);
    history_.Note("manager: loads", {{"load", request.id}, {"generation", request.generation}});
    oracle_.Loading(request, saved);
    source_.Submit(request, now_ns);
  }
  static_cast<void>(service_->TakeCompleted());
}

void ManagerLife::Read(std::uint64_t now_ns) {
  for (const testing::RamSource::Done& done : source_.Step(now_ns, memory_->bytes())) loaded_.push_back(done);
}

void ManagerLife::TakeLoaded(std::uint64_t now_ns) {
  if (loaded_.empty()) return;
  const testing::RamSource::Done done = loaded_.front();
  loaded_.pop_front();
  history_.Note("manager: loaded", {{"load", done.id}, {"result", static_cast<std::uint64_t>(done.result)}});
  service_->LoadDone(done.id, done.result, done.checksum, now_ns);
  oracle_.Loaded(done.id, done.result, done.checksum);
}

void ManagerLife::Verify(std::uint64_t now_ns) {
  const service::VerifyRequest request = verifying_.front();
  verifying_.erase(verifying_.begin());
  const bool equal =
      copy::CheckSlot(memory_->bytes().subspan(request.offset, request.slot_bytes),
                      {request.page_count, request.page_bytes},
                      {request.namespace_digest, request.hash, request.group, request.shard}, request.slot_checksum)
          .has_value();
  history_.Note("manager: verified", {{"generation", request.generation}, {"equal", equal ? 1U : 0U}});
  oracle_.Verified(request, equal);
  service_->VerifyDone(request.id, equal, now_ns);
}

void ManagerLife::Close(Session& session, std::uint64_t now_ns) {
  if (session.channel == nullptr) return;
  if (session.stepping) session.runner.Cancel(now_ns);
  session.stepping = false;
  session.channel.reset();
}

void ManagerLife::Forget(SessionId id, std::uint64_t now_ns) {
  Session* session = Find(id);
  if (session == nullptr) return;
  Close(*session, now_ns);
  replies_.push_back({.kind = Reply::Kind::kClosed, .session = id});
  std::erase_if(sessions_, [id](const auto& one) { return one->id == id; });
}

}  // namespace orbitkv::sim
