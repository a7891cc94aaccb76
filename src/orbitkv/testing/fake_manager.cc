#include "orbitkv/testing/fake_manager.h"

#include <algorithm>
#include <utility>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::testing {
namespace {

using channel::ReceivedRequest;
using channel::ServerSession;
using wire::AnswerStatus;
using wire::Command;

template <typename T>
std::span<const std::byte> AsBytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

FakeManager::FakeManager(const Options& options) : options_(options) {
  pool_fd_ = os::CreateMemfd("orbitkv-test-pool", options.pool_bytes).value();
  if (options.seal_pool) ORBITKV_CHECK(os::SealSize(pool_fd_.get()).has_value());
  ORBITKV_CHECK(os::Reserve(pool_fd_.get(), 0, options.pool_bytes).has_value());
  mapping_ = os::Mapping::Map(pool_fd_.get(), options.pool_bytes, os::Access::kReadWrite).value();
  waiter_ = channel::DispatcherWaiter::Create({.incarnation = options.incarnation, .spin_ns = 0}).value();
  bootstrap_.socket_path = options.socket_path;
  if (options.socket_path.empty()) {
    own_directory_ = std::make_unique<TemporaryDirectory>();
    bootstrap_.socket_path = *own_directory_ / "manager.sock";
  }
  bootstrap_.incarnation = options.incarnation;
  bootstrap_.manager_page_fd = waiter_->page_fd();
  bootstrap_.pool_fds = {pool_fd_.get()};
  bootstrap_.pool_bytes = options.pool_bytes;
}

FakeManager::~FakeManager() { Stop(); }

Status FakeManager::Start() {
  ORBITKV_ASSIGN_OR_RETURN(auto server, channel::BootstrapServer::Start(bootstrap_, this));
  {
    const MutexLock lock(mutex_);
    server_ = std::move(server);
    changed_.NotifyAll();
  }
  return dispatcher_.Start("dispatcher", [this] { Dispatch(); });
}

void FakeManager::Stop() {
  channel::BootstrapServer* server = nullptr;
  {
    const MutexLock lock(mutex_);
    server = server_.get();
  }
  if (server != nullptr) server->Stop();
  stopping_ = true;
  waiter_->Notify();
  dispatcher_.Join();
}

channel::ConnectOptions FakeManager::Client() const {
  return {.socket_path = socket_path(), .name = "test", .deadline_ns = os::DeadlineAfter(10'000'000'000U)};
}

std::unique_ptr<channel::ClientSession> FakeManager::Connect() const {
  return channel::ClientSession::Connect(Client()).value();
}

channel::BootstrapServer& FakeManager::server() {
  // A client that was waiting for the socket may be here before Start has returned.
  const MutexLock lock(mutex_);
  while (server_ == nullptr) changed_.Wait(mutex_);
  return *server_;
}

void FakeManager::SetScript(Script script) {
  const MutexLock lock(mutex_);
  script_ = std::move(script);
}

void FakeManager::Hold(bool hold) {
  {
    const MutexLock lock(serving_);
    held_ = hold;
  }
  waiter_->Notify();
}

bool FakeManager::Seen(const std::string& what, std::size_t count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const MutexLock lock(mutex_);
  while (seen_[what] < count) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    changed_.WaitUntil(mutex_, deadline);
  }
  return true;
}

std::size_t FakeManager::CountOf(const std::string& what) {
  const MutexLock lock(mutex_);
  return seen_[what];
}

std::vector<std::uint64_t> FakeManager::drained_tokens() {
  const MutexLock lock(mutex_);
  return drained_tokens_;
}

std::uint64_t FakeManager::OffsetOf(const state::BlockHash& hash) {
  const MutexLock lock(mutex_);
  return stored_.at(hash).offset;
}

std::uint64_t FakeManager::ChecksumOf(const state::BlockHash& hash) {
  const MutexLock lock(mutex_);
  return stored_.at(hash).checksum;
}

std::size_t FakeManager::stored() {
  const MutexLock lock(mutex_);
  return stored_.size();
}

std::size_t FakeManager::reservations() {
  const MutexLock lock(mutex_);
  return reservations_.size();
}

std::size_t FakeManager::grants() {
  const MutexLock lock(mutex_);
  return grants_.size();
}

void FakeManager::Note(const std::string& what) {
  const MutexLock lock(mutex_);
  ++seen_[what];
  changed_.NotifyAll();
}

void FakeManager::OnOpened(std::unique_ptr<ServerSession> session) {
  {
    const MutexLock lock(mutex_);
    by_token_[session->token()] = session->id();
    arrivals_.push_back(std::move(session));
  }
  Note("opened");
  waiter_->Notify();
}

void FakeManager::OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind,
                          std::vector<std::byte> payload) {
  if (options_.echo) {
    if (kind != kIgnoredKind) server().Reply(session, frame_id, payload, kind == kRefusedKind);
    return;
  }
  std::string reply;
  bool refused = false;
  ReplyTo(kind, payload, reply, refused);
  server().Reply(session, frame_id, std::as_bytes(std::span(reply)), refused);
}

void FakeManager::ReplyTo(std::uint32_t kind, std::span<const std::byte> payload, std::string& reply, bool& refused) {
  if (kind == wire::FRAME_REGISTER) {
    wire::RegisterReply registered;
    registered.set_instance_id(1);
    registered.set_namespace_ready(true);
    registered.set_max_reserve_blocks(wire::kMaxBlocksPerReserve);
    reply = registered.SerializeAsString();
    if (options_.refuse_registration) {
      wire::ErrorReply error;
      error.set_text("the digests differ");
      reply = error.SerializeAsString();
      refused = true;
    }
    Note("register");
  } else if (kind == wire::FRAME_SESSION_DRAINED) {
    wire::SessionDrained drained;
    ORBITKV_CHECK(drained.ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    SessionId ended;
    {
      const MutexLock lock(mutex_);
      drained_tokens_.push_back(drained.client_token());
      if (const auto known = by_token_.find(drained.client_token()); known != by_token_.end()) ended = known->second;
    }
    if (!ended.is_none()) server().Close(ended);
    Note("drained");
  } else if (kind == wire::FRAME_UNREGISTER) {
    Note("unregister");
  }
}

void FakeManager::OnHangup(SessionId) { Note("hangup"); }
void FakeManager::OnDeath(SessionId) { Note("death"); }

void FakeManager::Dispatch() {
  while (!stopping_) {
    {
      const MutexLock lock(mutex_);
      while (!arrivals_.empty()) {
        ORBITKV_CHECK(waiter_->Watch(*arrivals_.front()).has_value());
        sessions_.push_back(std::move(arrivals_.front()));
        arrivals_.pop_front();
      }
    }
    {
      const MutexLock lock(serving_);
      const std::uint64_t now = os::MonotonicNs();
      for (const auto& session : sessions_) {
        if (held_) break;
        while (const auto request = session->Next(now)) Execute(*session, *request);
        session->FlushWake();
      }
    }
    waiter_->Sleep(os::kNoDeadline, [this] {
      return !held_ && std::ranges::any_of(sessions_, [](const auto& session) { return session->HasRequests(); });
    });
  }
  for (const auto& session : sessions_) waiter_->Unwatch(*session);
}

void FakeManager::Execute(ServerSession& session, const ReceivedRequest& request) {
  Script script;
  {
    const MutexLock lock(mutex_);
    script = script_;
  }
  const bool answered = script && script(session, request);
  if (options_.echo) {
    if (!answered) session.Answer(request.handle, AnswerStatus::kOk, request.scalar0, request.scalar1, request.args);
    return;
  }
  const std::string name = wire::CommandName(request.command);
  if (!answered) {
    switch (request.command) {
      case Command::kPing: session.Answer(request.handle, AnswerStatus::kOk, request.scalar0); break;
      case Command::kQuerySubmit: Query(session, request); break;
      case Command::kPublishReserve: Reserve(session, request); break;
      case Command::kPublishCommit: Commit(session, request); break;
      case Command::kPublishAbort: {
        {
          const MutexLock lock(mutex_);
          reservations_.erase(request.scalar0);
        }
        session.Answer(request.handle, AnswerStatus::kOk);
        break;
      }
      case Command::kRestoreBegin: Begin(session, request); break;
      case Command::kRestorePlan: Plan(session, request); break;
      case Command::kRestoreEnd: End(session, request); break;
      case Command::kRelease: Release(session, request); break;
      case Command::kQueryPoll:
      case Command::kQueryClaim:
      case Command::kQueryCancel: session.Answer(request.handle, AnswerStatus::kUnsupported); break;
    }
  }
  Note(name);
}

void FakeManager::Query(ServerSession& session, const ReceivedRequest& request) {
  const wire::QueryView query =
      (session.abi() == 1 ? wire::DecodeQueryV1(request.args) : wire::DecodeQuery(request.args)).value();
  Hashes found;
  std::uint64_t lease = 0;
  {
    const MutexLock lock(mutex_);
    for (const state::BlockHash& hash : query.hashes) {
      if (!stored_.contains(hash)) break;
      found.push_back(hash);
    }
    if (!found.empty()) lease = next_id_++;
    if (lease != 0) leases_[lease] = found;
  }
  if (query.header.mode == wire::QueryMode::kDiscovery) lease = 0;
  std::vector<wire::Tier> tiers(query.hashes.size());
  std::fill_n(tiers.begin(), found.size(), wire::Tier::kPool);
  std::vector<std::byte> payload;
  if ((query.header.flags & wire::kTellTiers) != 0) payload = wire::EncodeDiscovery({}, tiers);
  const auto miss = static_cast<std::uint64_t>(found.empty() ? wire::MissReason::kAbsent : wire::MissReason::kNone);
  session.Answer(request.handle, AnswerStatus::kOk, lease, found.size() | (miss << 32U), payload);
}

void FakeManager::Reserve(ServerSession& session, const ReceivedRequest& request) {
  const wire::ReserveView reserve = wire::DecodeReserve(request.args).value();
  std::vector<wire::ReserveEntry> entries;
  Reservation reservation;
  std::uint64_t id = 0;
  {
    const MutexLock lock(mutex_);
    bool full = false;
    for (const state::BlockHash& hash : reserve.hashes) {
      const std::uint64_t bytes = (reserve.header.slot_bytes + 63ULL) / 64 * 64;
      full = full || next_offset_ + bytes > options_.pool_bytes;
      wire::ReserveEntry entry{next_offset_, next_id_, reserve.header.slot_bytes, 0};
      entry.status = static_cast<std::uint32_t>(full ? wire::ReserveStatus::kNotNow : wire::ReserveStatus::kSlot);
      if (!full && stored_.contains(hash)) entry.status = static_cast<std::uint32_t>(wire::ReserveStatus::kHaveIt);
      if (entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) next_offset_ += bytes;
      reservation.hashes.push_back(hash);
      reservation.offsets.push_back(entry.offset);
      entries.push_back(entry);
    }
    reservation.slot_bytes = reserve.header.slot_bytes;
    id = next_id_++;
    reservations_[id] = reservation;
  }
  session.Answer(request.handle, AnswerStatus::kOk, id, 0, AsBytes(entries));
}

void FakeManager::Commit(ServerSession& session, const ReceivedRequest& request) {
  const wire::CommitView commit = wire::DecodeCommit(request.args).value();
  std::vector<std::uint32_t> outcomes;
  {
    const MutexLock lock(mutex_);
    const auto it = reservations_.find(request.scalar0);
    for (const wire::CommitEntry& entry : commit.entries) {
      wire::CommitOutcome outcome = wire::CommitOutcome::kLost;
      if (it != reservations_.end()) {
        const Stored block{it->second.offsets.at(entry.index), entry.slot_checksum, it->second.slot_bytes};
        const bool fresh = stored_.emplace(it->second.hashes.at(entry.index), block).second;
        outcome = fresh ? wire::CommitOutcome::kStored : wire::CommitOutcome::kAlreadyThere;
      }
      outcomes.push_back(static_cast<std::uint32_t>(outcome));
    }
    if (it != reservations_.end()) reservations_.erase(it);
  }
  session.Answer(request.handle, AnswerStatus::kOk, outcomes.size(), 0, AsBytes(outcomes));
}

void FakeManager::Begin(ServerSession& session, const ReceivedRequest& request) {
  const wire::BeginView begin = wire::DecodeBegin(request.args).value();
  AnswerStatus status = AnswerStatus::kNotFound;
  {
    const MutexLock lock(mutex_);
    const auto lease = leases_.find(request.scalar0);
    if (lease != leases_.end() && begin.header.boundary_blocks <= lease->second.size()) {
      lease->second.resize(begin.header.boundary_blocks);
      grants_[request.scalar1] = lease->second;
      leases_.erase(lease);
      status = AnswerStatus::kOk;
    }
  }
  session.Answer(request.handle, status);
}

void FakeManager::Plan(ServerSession& session, const ReceivedRequest& request) {
  std::vector<wire::PlanEntry> plan;
  bool known = false;
  {
    const MutexLock lock(mutex_);
    const auto grant = grants_.find(request.scalar0);
    known = grant != grants_.end();
    if (known) {
      for (const state::BlockHash& hash : grant->second) {
        const Stored& block = stored_.at(hash);
        plan.push_back({.offset = block.offset,
                        .generation = 1,
                        .slot_checksum = block.checksum,
                        .slot_bytes = block.slot_bytes,
                        .block = static_cast<std::uint32_t>(plan.size())});
      }
    }
  }
  std::vector<wire::PlanEntryV1> old;
  for (const wire::PlanEntry& entry : plan) {
    old.push_back({entry.offset, entry.generation, entry.slot_checksum, entry.slot_bytes, entry.slab});
  }
  session.Answer(request.handle, known ? AnswerStatus::kOk : AnswerStatus::kNotYet, plan.size(), 0,
                 session.abi() == 1 ? AsBytes(old) : AsBytes(plan));
}

void FakeManager::End(ServerSession& session, const ReceivedRequest& request) {
  const wire::EndView end = wire::DecodeEnd(request.args).value();
  const auto result = static_cast<wire::EndResult>(request.scalar1 >> 32U);
  {
    const MutexLock lock(mutex_);
    const auto grant = grants_.find(request.scalar0);
    for (const wire::EndEntry& one : end.mismatches) {
      if (grant != grants_.end()) stored_.erase(grant->second.at(one.index));
    }
    if (grant != grants_.end()) grants_.erase(grant);
  }
  Note(result == wire::EndResult::kOk         ? "end ok"
       : result == wire::EndResult::kMismatch ? "end mismatch"
                                              : "end failed");
  session.Answer(request.handle, AnswerStatus::kOk);
}

void FakeManager::Release(ServerSession& session, const ReceivedRequest& request) {
  const bool lease = request.scalar0 == static_cast<std::uint64_t>(wire::ReleaseKind::kLease);
  {
    const MutexLock lock(mutex_);
    (lease ? leases_ : grants_).erase(request.scalar1);
  }
  Note(lease ? "release lease" : "release grant");
  session.Answer(request.handle, AnswerStatus::kOk);
}

}  // namespace orbitkv::testing
