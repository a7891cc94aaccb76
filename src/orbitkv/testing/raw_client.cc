#include "orbitkv/testing/raw_client.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/wire/lifecycle.pb.h"

namespace orbitkv::testing {
namespace {

std::vector<std::byte> Serialize(const google::protobuf::MessageLite& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

std::uint64_t Mix(std::uint64_t value) {
  value ^= value >> 33U;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33U;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33U);
}

}  // namespace

std::vector<state::BlockHash> Chain(std::uint32_t chain, std::uint32_t count) {
  std::vector<state::BlockHash> hashes(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t words[4] = {Mix((std::uint64_t{chain} << 32U) + i + 1), chain, i, ~std::uint64_t{chain}};
    std::memcpy(hashes[i].bytes.data(), words, sizeof words);
  }
  return hashes;
}

Result<std::unique_ptr<RawClient>> RawClient::Connect(const RawClientOptions& options) {
  auto client = std::unique_ptr<RawClient>(new RawClient(options));
  channel::ConnectOptions connect;
  connect.socket_path = options.socket;
  connect.purpose = options.purpose;
  connect.name = options.name;
  connect.abi_max = options.abi_max;
  connect.deadline_ns = os::DeadlineAfter(options.deadline_ns);
  connect.late_answer = [raw = client.get()](const channel::LateAnswer& late) { raw->GiveBack(late); };
  ORBITKV_ASSIGN_OR_RETURN(client->session_, channel::ClientSession::Connect(connect));
  ORBITKV_ASSIGN_OR_RETURN(client->pool_, os::Mapping::Map(client->session_->pool_fd(), client->session_->pool_bytes(),
                                                           os::Access::kReadWrite));
  return client;
}

Result<std::unique_ptr<RawClient>> RawClient::Open(const RawClientOptions& options) {
  ORBITKV_ASSIGN_OR_RETURN(auto client, Connect(options));
  ORBITKV_TRY(client->Register());
  return client;
}

Result<std::vector<std::byte>> RawClient::Exchange(std::uint32_t kind, std::span<const std::byte> payload) {
  ORBITKV_ASSIGN_OR_RETURN(auto reply, session_->Exchange(kind, payload, os::DeadlineAfter(options_.deadline_ns)));
  if (!reply.refused) return std::move(reply.payload);
  wire::ErrorReply error;
  if (!error.ParseFromArray(reply.payload.data(), static_cast<int>(reply.payload.size()))) {
    return Fail(Code::kInvalid, "the error reply is no valid message");
  }
  return Fail(static_cast<Code>(error.code()), "the Manager refused the frame");
}

Status RawClient::Register() {
  wire::Register message;
  message.set_instance(options_.instance);
  message.set_name(options_.name);
  message.set_role(options_.world_size == 1 ? wire::Register::ROLE_BOTH : wire::Register::ROLE_WORKER);
  message.set_rank(options_.rank);
  message.set_world_size(options_.world_size);
  message.set_shard(options_.shard);
  message.set_shard_count(options_.shard_count);
  message.set_computation_digest(std::string(state::kDigestBytes, static_cast<char>(options_.computation)));
  message.set_representation_digest(std::string(state::kDigestBytes, 'r'));
  wire::CacheGroup& group = *message.add_groups();
  group.set_block_tokens(16);
  group.set_page_count(options_.layers);
  group.set_page_bytes(options_.page_bytes);
  ORBITKV_ASSIGN_OR_RETURN(const auto bytes, Exchange(wire::FRAME_REGISTER, Serialize(message)));
  wire::RegisterReply reply;
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Fail(Code::kInvalid, "the register reply is no valid message");
  }
  if (reply.namespace_ready() && reply.namespace_digest().size() == state::kDigestBytes) {
    std::memcpy(namespace_digest_.data(), reply.namespace_digest().data(), state::kDigestBytes);
  }
  return {};
}

Status RawClient::Unregister() {
  ORBITKV_TRY(Exchange(wire::FRAME_UNREGISTER, {}));
  return {};
}

Status RawClient::ReportDrained(std::uint64_t token, Incarnation incarnation) {
  wire::SessionDrained message;
  message.set_client_token(token);
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &incarnation.hi, 8);
  std::memcpy(bytes.data() + 8, &incarnation.lo, 8);
  message.set_incarnation(bytes);
  ORBITKV_TRY(Exchange(wire::FRAME_SESSION_DRAINED, Serialize(message)));
  return {};
}

Result<std::map<std::string, double>> RawClient::Figures() {
  ORBITKV_ASSIGN_OR_RETURN(const auto bytes, Exchange(wire::FRAME_HEALTH, manager::EncodeHealthRequest()));
  ORBITKV_ASSIGN_OR_RETURN(const auto health, manager::DecodeHealth(bytes));
  std::map<std::string, double> figures;
  for (const auto& sample : health.samples) {
    std::string labels;
    for (const auto& [key, value] : sample.labels) labels += (labels.empty() ? "" : ",") + value;
    figures[labels.empty() ? sample.name : sample.name + "{" + labels + "}"] = sample.value;
  }
  return figures;
}

Result<channel::Answer> RawClient::Call(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                        std::span<const std::byte> args) {
  return session_->Call({command, scalar0, scalar1, args, os::DeadlineAfter(options_.deadline_ns)});
}

Result<channel::Answer> RawClient::CallOk(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                          std::span<const std::byte> args) {
  ORBITKV_ASSIGN_OR_RETURN(auto answer, Call(command, scalar0, scalar1, args));
  if (!answer.ok()) {
    return Fail(wire::CodeOf(answer.status).value_or(Code::kInvalid), wire::StatusName(answer.status));
  }
  return answer;
}

Status RawClient::Ping() {
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, CallOk(wire::Command::kPing, 42, 0));
  if (answer.scalar0 != 42) return Fail(Code::kCorrupt, "the ping came back changed", answer.scalar0);
  return {};
}

Status RawClient::PostAndAbandon(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                 std::span<const std::byte> args) {
  ORBITKV_ASSIGN_OR_RETURN(const auto id,
                           session_->Post({command, scalar0, scalar1, args, os::DeadlineAfter(options_.deadline_ns)}));
  session_->Abandon(id);
  return {};
}

void RawClient::GiveBack(const channel::LateAnswer& late) {
  const auto release = [this](wire::ReleaseKind kind, std::uint64_t id) {
    return session_->PostNeverLost(wire::Command::kRelease, static_cast<std::uint64_t>(kind), id);
  };
  Status posted;
  switch (late.command) {
    case wire::Command::kQuerySubmit:
      if (late.answer->scalar0 != 0) posted = release(wire::ReleaseKind::kLease, late.answer->scalar0);
      break;
    case wire::Command::kPublishReserve:
      if (late.answer->scalar0 != 0) {
        posted = session_->PostNeverLost(wire::Command::kPublishAbort, late.answer->scalar0, 0);
      }
      break;
    case wire::Command::kRestoreBegin: posted = release(wire::ReleaseKind::kGrant, late.request_scalar1); break;
    case wire::Command::kRestorePlan:
      posted = session_->PostNeverLost(wire::Command::kRestoreEnd, late.request_scalar0,
                                       late.request_scalar1 | std::uint64_t{3} << 32U, wire::EncodeEnd({}));
      break;
    default: break;
  }
  static_cast<void>(posted);
}

bool RawClient::Settle() {
  const std::uint64_t deadline = os::DeadlineAfter(options_.deadline_ns);
  while (session_->pending() > 0 && os::MonotonicNs() < deadline) {
    session_->Pump();
    // A round trip, so that the loop waits for the Manager instead of spinning.
    if (!Ping()) return false;
  }
  return session_->pending() == 0;
}

std::vector<std::byte> RawClient::QueryArguments(std::uint64_t request, std::span<const state::BlockHash> hashes) {
  return wire::EncodeQuery({.request_key_hi = 7, .request_key_lo = request}, hashes);
}

Result<RawQuery> RawClient::Query(std::uint64_t request, std::span<const state::BlockHash> hashes) {
  const auto args = session_->abi() == 1 ? wire::EncodeQueryV1({.request_key_hi = 7, .request_key_lo = request}, hashes)
                                         : QueryArguments(request, hashes);
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, CallOk(wire::Command::kQuerySubmit, 0, 0, args));
  return RawQuery{LeaseId(answer.scalar0), static_cast<std::uint32_t>(answer.scalar1),
                  static_cast<wire::MissReason>(answer.scalar1 >> 32U)};
}

std::vector<std::byte> RawClient::ReserveArguments(std::span<const state::BlockHash> hashes) const {
  wire::ReserveHeader header{};
  header.shard = options_.shard;
  header.slot_bytes = static_cast<std::uint32_t>(copy::SlotBytes(options_.layers, options_.page_bytes));
  return wire::EncodeReserve(header, hashes);
}

Result<RawReservation> RawClient::Reserve(std::span<const state::BlockHash> hashes) {
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, CallOk(wire::Command::kPublishReserve, 0, 0, ReserveArguments(hashes)));
  ORBITKV_ASSIGN_OR_RETURN(const auto entries, wire::DecodeReserveAnswer(answer.payload.bytes()));
  return RawReservation{ReservationId(answer.scalar0), {entries.begin(), entries.end()}};
}

state::StateKey RawClient::IdentityOf(const state::BlockHash& hash) const {
  return {namespace_digest_, hash, 0, options_.shard};
}

std::uint64_t RawClient::Fill(const wire::ReserveEntry& entry, const state::BlockHash& hash) {
  std::byte* slot = pool_.data() + entry.offset;
  std::vector<std::uint64_t> list(options_.layers);
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
    std::byte* page = slot + layer * options_.page_bytes;
    for (std::uint64_t at = 0; at + 8 <= options_.page_bytes; at += 8) {
      const std::uint64_t word = Mix(hash.Prefix64() + layer * options_.page_bytes + at);
      std::memcpy(page + at, &word, sizeof word);
    }
    list[layer] = copy::HashOnly(page, options_.page_bytes);
  }
  copy::WriteList(slot, options_.page_bytes, list);
  return copy::SlotChecksum(IdentityOf(hash), copy::PayloadBytes(options_.layers, options_.page_bytes), list);
}

Result<std::vector<wire::CommitOutcome>> RawClient::Commit(ReservationId reservation,
                                                           std::span<const wire::CommitEntry> entries) {
  ORBITKV_ASSIGN_OR_RETURN(const auto answer,
                           CallOk(wire::Command::kPublishCommit, reservation.value(), 0, wire::EncodeCommit(entries)));
  ORBITKV_ASSIGN_OR_RETURN(const auto outcomes, wire::DecodeCommitAnswer(answer.payload.bytes()));
  std::vector<wire::CommitOutcome> typed;
  for (const std::uint32_t outcome : outcomes) typed.push_back(static_cast<wire::CommitOutcome>(outcome));
  return typed;
}

Status RawClient::Abort(ReservationId reservation) {
  ORBITKV_TRY(CallOk(wire::Command::kPublishAbort, reservation.value(), 0));
  return {};
}

Result<std::uint32_t> RawClient::Publish(std::span<const state::BlockHash> hashes) {
  ORBITKV_ASSIGN_OR_RETURN(const RawReservation reservation, Reserve(hashes));
  std::vector<wire::CommitEntry> commits;
  for (std::uint32_t i = 0; i < reservation.entries.size(); ++i) {
    const wire::ReserveEntry& entry = reservation.entries[i];
    if (entry.status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) continue;
    commits.push_back({Fill(entry, hashes[i]), entry.generation, i, 0});
  }
  if (commits.empty()) return 0;
  ORBITKV_ASSIGN_OR_RETURN(const auto outcomes, Commit(reservation.id, commits));
  return static_cast<std::uint32_t>(std::ranges::count(outcomes, wire::CommitOutcome::kStored));
}

Status RawClient::Begin(LeaseId lease, GrantId grant, std::uint32_t boundary, std::span<const std::uint32_t> ranks) {
  ORBITKV_TRY(CallOk(wire::Command::kRestoreBegin, lease.value(), grant.value(), wire::EncodeBegin(boundary, ranks)));
  return {};
}

Result<std::pair<wire::AnswerStatus, std::vector<wire::PlanEntry>>> RawClient::Plan(GrantId grant) {
  ORBITKV_ASSIGN_OR_RETURN(const auto answer, Call(wire::Command::kRestorePlan, grant.value(), options_.rank));
  if (!answer.ok()) return std::pair(answer.status, std::vector<wire::PlanEntry>{});
  if (session_->abi() == 1) {
    ORBITKV_ASSIGN_OR_RETURN(const auto old, wire::DecodePlanV1(answer.payload.bytes()));
    std::vector<wire::PlanEntry> plan;
    for (const wire::PlanEntryV1& entry : old) {
      plan.push_back({entry.offset, entry.generation, entry.slot_checksum, entry.slot_bytes, entry.slab});
    }
    return std::pair(answer.status, std::move(plan));
  }
  ORBITKV_ASSIGN_OR_RETURN(const auto entries, wire::DecodePlan(answer.payload.bytes()));
  planned_grant_ = grant;
  plan_.assign(entries.begin(), entries.end());
  return std::pair(answer.status, plan_);
}

bool RawClient::Right(const wire::PlanEntry& entry, const state::BlockHash& hash) const {
  const std::uint64_t bytes = copy::SlotBytes(options_.layers, options_.page_bytes);
  if (entry.offset > pool_.size() || bytes > pool_.size() - entry.offset || entry.slot_bytes < bytes) return false;
  const std::span<const std::byte> slot = pool_.bytes().subspan(entry.offset, bytes);
  std::uint64_t first = 0;
  std::memcpy(&first, slot.data(), sizeof first);
  return first == Mix(hash.Prefix64()) &&
         copy::CheckSlot(slot, {options_.layers, options_.page_bytes}, IdentityOf(hash), entry.slot_checksum)
             .has_value();
}

Status RawClient::End(GrantId grant, wire::EndResult result, std::span<const std::uint32_t> indices) {
  const std::uint64_t scalar = options_.rank | static_cast<std::uint64_t>(result) << 32U;
  std::vector<wire::EndEntry> mismatches;
  for (const std::uint32_t index : indices) {
    const bool planned = grant == planned_grant_ && index < plan_.size();
    mismatches.push_back({.generation = planned ? plan_[index].generation : wire::kNoGeneration, .index = index});
  }
  ORBITKV_TRY(
      CallOk(wire::Command::kRestoreEnd, grant.value(), scalar, wire::EncodeEndFor(session_->abi(), mismatches)));
  return {};
}

Status RawClient::Release(wire::ReleaseKind kind, std::uint64_t id) {
  ORBITKV_TRY(CallOk(wire::Command::kRelease, static_cast<std::uint64_t>(kind), id));
  return {};
}

Result<std::uint32_t> RawClient::Restore(std::uint64_t request, std::span<const state::BlockHash> hashes,
                                         GrantId grant) {
  ORBITKV_ASSIGN_OR_RETURN(const RawQuery query, Query(request, hashes));
  if (query.found == 0) return 0;
  const std::uint32_t ranks[] = {options_.rank};
  ORBITKV_TRY(Begin(query.lease, grant, query.found, ranks));
  ORBITKV_ASSIGN_OR_RETURN(const auto plan, Plan(grant));
  if (plan.first != wire::AnswerStatus::kOk || plan.second.size() != query.found) {
    return Fail(Code::kNotFound, wire::StatusName(plan.first), plan.second.size(), query.found);
  }
  for (std::uint32_t i = 0; i < query.found; ++i) {
    if (!Right(plan.second[i], hashes[i])) return Fail(Code::kCorrupt, "a restored block is wrong", i);
  }
  ORBITKV_TRY(End(grant, wire::EndResult::kOk));
  return query.found;
}

}  // namespace orbitkv::testing
