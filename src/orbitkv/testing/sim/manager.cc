#include "orbitkv/testing/sim/manager.h"

#include <algorithm>

#include "orbitkv/base/check.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/wire/namespace_table.h"

namespace orbitkv::sim {
namespace {

template <typename T>
T Must(Result<T> result) {
  ORBITKV_CHECK(result.has_value());
  return std::move(*result);
}

}  // namespace

ManagerLife::ManagerLife(const Shape& shape, std::uint64_t number, const Surroundings& around, Oracle& oracle,
                         History& history, std::uint64_t now_ns)
    : shape_(shape),
      store_(around.store),
      number_(number),
      oracle_(oracle),
      history_(history),
      alive_(around.alive),
      memory_(around.memory.pool()),
      table_(around.memory.table()),
      state_(Must(service::CoreState::Begin(
          table_, shape.core(number), shape.pool.pool_bytes,
          [this](std::uint32_t, const pool::SessionOwner& owner) { return alive_(owner.pid); }, now_ns))),
      service_(state_->service()) {
  for (std::uint32_t row = 0; row < shape.core(number).session_rows; ++row) free_rows_.insert(row);
  for (const service::EarlierSessionStatus& earlier : service_.earlier_sessions()) free_rows_.erase(earlier.row);
  if (report().life > 1) service_.BeginScrub(first_generation());
  if (!shape.backed) return;
  if (around.disk != nullptr) {
    disk_ = std::make_unique<DiskSource>(*around.disk, *shape.disk, memory_->bytes(), *around.prng, history, now_ns);
    service_.SetSource(disk_.get());
    return;
  }
  store_.ForEach([this](const Saved& saved) { source_.Put(saved.key, saved.record, saved.bytes); });
  service_.SetSource(&source_);
}

ManagerLife::~ManagerLife() = default;

std::span<const std::byte> ManagerLife::table() const {
  const wire::TablesSection slots = wire::TablesLayout(shape_.core(number_).shape()).slots;
  return table_.bytes().subspan(slots.offset, slots.bytes);
}

const channel::ServerSession& ManagerLife::Connect(service::Purpose purpose, std::uint64_t token, std::uint16_t abi,
                                                   std::int32_t pid) {
  channel::ServerSessionOptions options;
  options.session = SessionId(next_session_++);
  options.client_token = token;
  options.abi = abi;
  options.pid = pid;
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
  auto session = std::make_unique<Session>(std::move(opening.channel), service_);
  const Status opened = OpenInService(*session, opening.purpose);
  history_.Note(opened ? "manager: opened" : "manager: refused to open", {{"session", frame.session.value()}});
  if (!opened) {
    replies_.push_back({.kind = Reply::Kind::kClosed, .session = frame.session});
    return;
  }
  oracle_.Opened(frame.session, session->channel->abi());
  sessions_.push_back(std::move(session));
}

Status ManagerLife::OpenInService(Session& session, service::Purpose purpose) {
  if (free_rows_.empty()) return Fail(Code::kBusy, "no row of the session table is free");
  const std::uint32_t row = *free_rows_.begin();
  const channel::ServerSession& channel = *session.channel;
  ORBITKV_CHECK(
      state_->lists()
          .Open(row, {.incarnation = {number_, 1}, .token = channel.token(), .pid = channel.pid(), .watched = true})
          .has_value());
  Status opened = service_.OpenSession(session.id, purpose, channel.token(), row);
  if (!opened) {
    state_->lists().Close(row);
    return opened;
  }
  free_rows_.erase(row);
  session.row = row;
  return opened;
}

void ManagerLife::HungUp(SessionId id, std::uint64_t now_ns) {
  Session* session = Find(id);
  if (session == nullptr) return;
  history_.Note("manager: hung up", {{"session", id.value()}});
  Close(*session, now_ns);
  service_.DetachSession(id, now_ns);
  oracle_.Detached(id);
  if (!service_.HoldsNothing(id)) {
    ++counts_.detached_holding;
    return;
  }
  oracle_.CheckHoldsNothing(id);
  End(id, now_ns);
}

void ManagerLife::End(SessionId id, std::uint64_t now_ns) {
  history_.Note("manager: ended", {{"session", id.value()}});
  service_.EndSession(id, now_ns);
  oracle_.Ended(id);
  Forget(id, now_ns);
}

void ManagerLife::Registered(const Frame& frame, std::uint64_t now_ns) {
  const Session* session = Find(frame.session);
  if (session == nullptr || session->channel == nullptr) return;
  const service::RegisterOutcome outcome = service_.Register(frame.session, frame.registration, now_ns);
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
  ORBITKV_CHECK(service_.Unregister(frame.session, now_ns).has_value());
  history_.Note("manager: unregistered", {{"session", frame.session.value()}});
  oracle_.Unregistered(frame.session);
  ++counts_.unregistered;
  replies_.push_back({.kind = Reply::Kind::kUnregistered, .session = frame.session});
}

void ManagerLife::Drained(const Frame& frame, std::uint64_t now_ns) {
  if (Find(frame.session) == nullptr) return;
  if (frame.life == number_) {
    if (const auto ended = service_.DrainSession(frame.token, now_ns)) {
      history_.Note("manager: drained", {{"session", ended->value()}});
      oracle_.Ended(*ended);
      ++counts_.drained;
      if (*ended != frame.session) Forget(*ended, now_ns);
    }
  } else if (const auto row = service_.DrainEarlierSession({frame.life, 1}, frame.token)) {
    history_.Note("manager: an earlier session drained", {{"row", *row}});
    ++counts_.earlier_drained;
    TakeFreedRows();
  }
  replies_.push_back({.kind = Reply::Kind::kDone, .session = frame.session});
}

// Tells the model what a turn does.
struct ManagerLife::TurnHost {
  std::uint64_t Now() const { return now_ns; }
  void Begins(const channel::ReceivedRequest& request) {
    session.request = {
        .command = request.command, .scalar0 = request.scalar0, .scalar1 = request.scalar1, .args = request.args};
    before = life.oracle_.BeforeWork();
  }
  void Continues() { before = life.oracle_.BeforeWork(); }
  void Stepped(const manager::CommandAnswer& answer, std::uint64_t) {
    life.oracle_.AfterWork(before);
    SimRequest& request = session.request;
    if (session.turn.stepping()) {
      request.stepped = true;
      if (request.command == wire::Command::kPublishCommit) {
        life.oracle_.Committing(session.id, request, session.turn.runner().outcomes());
      }
      return;
    }
    life.history_.Note("manager: answers", {{"session", session.id.value()},
                                            {"command", static_cast<std::uint64_t>(request.command)},
                                            {"asked0", request.scalar0},
                                            {"asked1", request.scalar1},
                                            {"status", static_cast<std::uint64_t>(answer.status)},
                                            {"told0", answer.scalar0},
                                            {"told1", answer.scalar1}});
    life.oracle_.Answered(session.id, request, answer, now_ns);
  }

  ManagerLife& life;
  Session& session;
  const std::uint64_t now_ns;
  WorkBefore before{};
};

bool ManagerLife::Turn(std::size_t index, std::uint64_t now_ns) {
  Session& session = *sessions_[index];
  if (session.channel == nullptr) return false;
  const WorkBefore before = oracle_.BeforeWork();
  TurnHost host{.life = *this, .session = session, .now_ns = now_ns};
  const bool worked = session.turn.Take(*session.channel, host);
  oracle_.AfterTurn(before);
  if (session.channel->broken()) history_.Violation("a ring broke", {{"session", session.id.value()}});
  for (const service::VerifyRequest& request : service_.TakeVerifyRequests()) verifying_.push_back(request);
  return worked;
}

bool ManagerLife::stepping() const {
  return std::ranges::any_of(sessions_, [](const auto& session) { return session->turn.stepping(); });
}

void ManagerLife::TickIfDue(std::uint64_t now_ns) {
  const auto deadline = service_.NextDeadline();
  if (deadline && *deadline <= now_ns) service_.Tick(now_ns);
}

void ManagerLife::Work(std::uint64_t now_ns) {
  const WorkBefore before = oracle_.BeforeWork();
  service_.Work(now_ns);
  oracle_.AfterWork(before);
  for (const service::LoadRequest& request : service_.TakeLoads()) {
    history_.Note("manager: loads", {{"load", request.id}, {"generation", request.generation}});
    LoadFrom(request, now_ns);
  }
  for (const service::SaveRequest& request : service_.TakeSaves()) {
    history_.Note("manager: saves", {{"save", request.id}, {"generation", request.generation}});
    oracle_.Saving(request);
    if (disk_ != nullptr) {
      disk_->Save(request);
      continue;
    }
    saving_.emplace(request.id, request);
    source_.Save(request, now_ns);
  }
  static_cast<void>(service_.TakeCompleted());
}

void ManagerLife::LoadFrom(const service::LoadRequest& request, std::uint64_t now_ns) {
  if (disk_ == nullptr) {
    oracle_.Loading(request, store_.Find(request.key));
    reading_.emplace(request.id, request);
    return source_.Submit(request, now_ns);
  }
  Saved found;
  const auto record = disk_->Locate(request.key);
  if (record) found = {.key = request.key, .record = *record, .write = oracle_.WriteOf(record->checksum)};
  oracle_.Loading(request, record && found.write != 0 ? &found : nullptr);
  disk_->Submit(request);
}

bool ManagerLife::Behind(const service::ComponentKey& key) const {
  return disk_ != nullptr ? disk_->Locate(key).has_value() : store_.Find(key) != nullptr;
}

void ManagerLife::Read(std::uint64_t now_ns) {
  if (disk_ != nullptr) return disk_->Step(now_ns, loaded_, saved_);
  for (testing::RamSource::Done done : source_.Step(now_ns, memory_->bytes())) {
    const auto read = reading_.extract(done.id).mapped();
    // Whoever reads checks what came: bytes may have been wrong when they were saved.
    const service::ComponentKey& key = read.key;
    const bool whole = copy::CheckSlot(memory_->bytes().subspan(read.offset, key.slot_bytes),
                                       {read.shape.page_count, read.shape.page_bytes}, key, done.checksum)
                           .has_value();
    if (done.result == service::LoadResult::kOk && !whole) done.checksum = ~done.checksum;
    loaded_.push_back(done);
  }
  for (const testing::RamSource::Saved& saved : source_.StepSaves(now_ns, memory_->bytes())) {
    const service::SaveRequest request = saving_.extract(saved.id).mapped();
    if (saved.result == service::SaveResult::kSaved) Keep(request);
    saved_.push_back(saved);
  }
}

// What was saved outlives this life.
void ManagerLife::Keep(const service::SaveRequest& request) {
  const auto slot = memory_->bytes().subspan(request.offset, request.key.slot_bytes);
  store_.Put({.key = request.key,
              .record = request.record,
              .write = memory_->writes.at(request.generation),
              .bytes = std::vector<std::byte>(slot.begin(), slot.end())});
}

void ManagerLife::TakeSaved(std::uint64_t now_ns) {
  if (saved_.empty()) return;
  const testing::RamSource::Saved saved = saved_.front();
  saved_.erase(saved_.begin());
  history_.Note("manager: saved", {{"save", saved.id}, {"result", static_cast<std::uint64_t>(saved.result)}});
  service_.SaveDone(saved.id, saved.result, now_ns);
  oracle_.Saved(saved.id);
}

void ManagerLife::TakeLoaded(std::uint64_t now_ns) {
  if (loaded_.empty()) return;
  const testing::RamSource::Done done = loaded_.front();
  loaded_.erase(loaded_.begin());
  history_.Note("manager: loaded", {{"load", done.id}, {"result", static_cast<std::uint64_t>(done.result)}});
  service_.LoadDone(done.id, done.result, done.checksum, now_ns);
  oracle_.Loaded(done.id, done.result, done.checksum);
}

void ManagerLife::TendEarlier() {
  for (const service::EarlierSessionStatus& earlier : service_.earlier_sessions()) {
    if (alive_(earlier.pid)) continue;
    history_.Note("manager: an earlier session's process is gone", {{"row", earlier.row}});
    ORBITKV_CHECK(service_.EndEarlierSession(earlier.row));
    ++counts_.earlier_died;
    TakeFreedRows();
    return;
  }
}

void ManagerLife::TakeFreedRows() {
  for (const std::uint32_t row : service_.TakeEndedEarlierSessions()) free_rows_.insert(row);
}

void ManagerLife::Scrub(std::uint64_t now_ns) {
  if (!service_.scrubbing()) return;
  service_.Scrub(now_ns);
  for (const service::VerifyRequest& request : service_.TakeVerifyRequests()) verifying_.push_back(request);
}

std::optional<NamespaceRow> ManagerLife::RowOf(const state::Digest& space) const {
  const wire::TablesSection rows = wire::TablesLayout(shape_.core(number_).shape()).namespaces;
  const auto table = table_.bytes().subspan(rows.offset, rows.bytes);
  for (std::uint32_t row = 1; row <= shape_.limits.max_namespaces; ++row) {
    const auto record = wire::LoadNamespace(table, NamespaceRow(row));
    if (record && *record && (*record)->digest == space) return NamespaceRow(row);
  }
  return std::nullopt;
}

void ManagerLife::Verify(std::uint64_t now_ns) {
  const service::VerifyRequest request = verifying_.front();
  verifying_.erase(verifying_.begin());
  const bool equal = copy::CheckSlot(memory_->bytes().subspan(request.offset, request.slot_bytes),
                                     {request.page_count, request.page_bytes}, request.key, request.slot_checksum)
                         .has_value();
  history_.Note("manager: verified", {{"generation", request.generation}, {"equal", equal ? 1U : 0U}});
  oracle_.Verified(request, equal);
  service_.VerifyDone(request.id, equal, now_ns);
}

void ManagerLife::Close(Session& session, std::uint64_t now_ns) {
  if (session.channel == nullptr) return;
  session.turn.Close(now_ns);
  session.channel.reset();
}

void ManagerLife::Forget(SessionId id, std::uint64_t now_ns) {
  Session* session = Find(id);
  if (session == nullptr) return;
  if (session->row) free_rows_.insert(*session->row);
  Close(*session, now_ns);
  replies_.push_back({.kind = Reply::Kind::kClosed, .session = id});
  std::erase_if(sessions_, [id](const auto& one) { return one->id == id; });
}

}  // namespace orbitkv::sim
