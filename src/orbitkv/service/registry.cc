#include "orbitkv/service/registry.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "orbitkv/base/check.h"
#include "orbitkv/service/registration_check.h"

namespace orbitkv::service {
namespace {

RegisterOutcome Refuse(Code code, std::string text) {
  RegisterOutcome outcome;
  outcome.refused = code;
  outcome.text = std::move(text);
  return outcome;
}

state::Digest DigestOf(const Registration& worker) {
  return state::NamespaceDigest(worker.computation, *worker.representation, worker.groups, worker.shard_count);
}

}  // namespace

Status Registry::Open(SessionId session, Purpose purpose, std::uint64_t token) {
  // Detached sessions have as many places of their own.
  const std::size_t attached = sessions_.size() - detached_;
  const std::size_t beyond = detached_ > limits_.max_sessions ? detached_ - limits_.max_sessions : 0;
  if (attached + beyond >= limits_.max_sessions) {
    return Fail(Code::kBusy, "too many sessions; raise max_sessions", sessions_.size(), limits_.max_sessions);
  }
  if (session.is_none() || sessions_.contains(session)) {
    return Fail(Code::kInvalid, "the session is open already", session.value());
  }
  if (tokens_.contains(token)) return Fail(Code::kInvalid, "the token belongs to another session");
  tokens_.emplace(token, session);
  Session& opened = sessions_[session];
  opened.id = session;
  opened.purpose = purpose;
  opened.token = token;
  return {};
}

Session* Registry::Find(SessionId session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

const Session* Registry::FindToken(std::uint64_t token) const {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : &sessions_.at(found->second);
}

void Registry::Detach(Session& session) {
  if (session.detached) return;
  session.detached = true;
  ++detached_;
  if (session.instance == nullptr) return;
  --session.instance->attached;
  if (session.IsWorker()) --session.instance->ranks[session.registration->rank.value()].attached;
}

std::optional<InstanceId> Registry::Unregister(Session& session) {
  if (session.instance == nullptr) return std::nullopt;
  Instance& instance = *session.instance;
  if (!session.detached) {
    --instance.attached;
    if (session.IsWorker()) --instance.ranks[session.registration->rank.value()].attached;
  }
  session.instance = nullptr;
  session.registration.reset();
  if (--instance.sessions > 0) return std::nullopt;
  const InstanceId ended = instance.id;
  // A newer instance may have taken the name over.
  if (const auto name = names_.find(instance.name); name != names_.end() && name->second == ended) names_.erase(name);
  instances_.erase(ended);
  return ended;
}

std::optional<InstanceId> Registry::Close(SessionId session) {
  Session* open = Find(session);
  if (open == nullptr) return std::nullopt;
  const std::optional<InstanceId> ended = Unregister(*open);
  if (open->detached) --detached_;
  tokens_.erase(open->token);
  sessions_.erase(session);
  return ended;
}

RegisterOutcome Registry::Register(Session& session, const Registration& registration, const Namespace*& formed) {
  formed = nullptr;
  if (session.registration) {
    if (*session.registration == registration) return Outcome(session);
    return Refuse(Code::kRefused, fmt::format("this session is registered for instance '{}' with another layout: "
                                              "unregister it first or open a new session",
                                              session.registration->instance));
  }
  if (std::string text = CheckRegistration(registration, limits_); !text.empty()) {
    return Refuse(Code::kInvalid, std::move(text));
  }
  Instance* instance = nullptr;
  if (const auto name = names_.find(registration.instance); name != names_.end()) {
    instance = &instances_.at(name->second);
    if (std::string text = CheckAgreement(registration, *instance); !text.empty()) {
      if (instance->attached > 0) return Refuse(Code::kRefused, std::move(text));
      // All that is left of the earlier engine of this name are processes that are gone or going: a new one begins.
      instance = nullptr;
    }
  }
  if (instance == nullptr && instances_.size() >= limits_.max_instances) {
    return Refuse(Code::kBusy, fmt::format("{} instances are registered, which is the limit", instances_.size()));
  }
  if (CompletesRanks(registration, instance)) {
    if (std::string text = CheckCoverage(registration, instance); !text.empty()) {
      return Refuse(Code::kRefused, std::move(text));
    }
    if (spaces_.size() >= limits_.max_namespaces && !spaces_.contains(DigestOf(registration)) && !Recycle()) {
      return Refuse(
          Code::kExhausted,
          fmt::format("{} namespaces have engines or blocks, which is the limit: end engines or restart the Manager",
                      spaces_.size()));
    }
  }
  session.instance = &Join(instance, registration);
  session.registration = registration;
  FormNamespace(*session.instance, formed);
  return Outcome(session);
}

Instance& Registry::Join(Instance* instance, const Registration& registration) {
  if (instance == nullptr) {
    const InstanceId id(next_instance_++);
    names_[registration.instance] = id;
    instance = &instances_[id];
    instance->id = id;
    instance->name = registration.instance;
    instance->computation = registration.computation;
    instance->shard_count = registration.shard_count;
    instance->ranks.resize(registration.world_size);
  }
  ++instance->sessions;
  ++instance->attached;
  if (instance->declared.empty()) instance->declared = registration.groups;
  if (registration.role != Role::kScheduler) {
    instance->representation = registration.representation;
    instance->groups = registration.groups;
    RankSlot& rank = instance->ranks[registration.rank.value()];
    rank.shard = registration.shard;
    ++rank.attached;
  }
  return *instance;
}

// Of those that nothing belongs to, the one with the lowest row.
bool Registry::Recycle() {
  const auto used = [this](const Namespace& space) {
    return std::ranges::any_of(instances_, [&space](const auto& one) { return one.second.space == &space; });
  };
  std::map<NamespaceRow, state::Digest> unused;
  for (const auto& [digest, space] : spaces_) {
    if (!used(space)) unused.emplace(space.row, digest);
  }
  const auto gone = std::ranges::find_if(unused, [this](const auto& one) { return forget_(one.first); });
  if (gone == unused.end()) return false;
  if (table_ != nullptr) ORBITKV_CHECK(wire::ClearNamespace(*table_, gone->first));
  free_rows_.push_back(gone->first);
  spaces_.erase(gone->second);
  return true;
}

NamespaceRow Registry::NextRow() {
  if (free_rows_.empty()) return NamespaceRow(next_row_++);
  const NamespaceRow row = free_rows_.back();
  free_rows_.pop_back();
  return row;
}

void Registry::FormNamespace(Instance& instance, const Namespace*& formed) {
  if (instance.space != nullptr) return;
  if (!std::ranges::all_of(instance.ranks, [](const RankSlot& rank) { return rank.attached > 0; })) return;
  const state::Digest digest =
      state::NamespaceDigest(instance.computation, *instance.representation, instance.groups, instance.shard_count);
  auto space = spaces_.find(digest);
  if (space == spaces_.end()) {
    Result<state::RecoveryContract> contract = ContractOf(instance.groups, instance.shard_count);
    ORBITKV_CHECK(contract.has_value());  // CheckRegistration compiled it
    Namespace made{NextRow(), digest, instance.shard_count, instance.groups, std::move(*contract)};
    space = spaces_.emplace(digest, std::move(made)).first;
    formed = &space->second;
    if (table_ != nullptr) {
      const wire::NamespaceRecord record{digest, instance.shard_count, instance.groups};
      ORBITKV_CHECK(wire::StoreNamespace(*table_, formed->row, record));
    }
  }
  instance.space = &space->second;
}

Result<const Namespace*> Registry::Adopt(NamespaceRow row, const wire::NamespaceRecord& record) {
  if (row.is_none() || row.value() > limits_.max_namespaces || record.shard_count > limits_.max_shards) {
    return Fail(Code::kInvalid, "a namespace beyond the limits", row.value(), record.shard_count);
  }
  const auto free = std::ranges::find(free_rows_, row);
  if (spaces_.contains(record.digest) || (row.value() < next_row_ && free == free_rows_.end())) {
    return Fail(Code::kRefused, "a namespace has two rows, or a row two namespaces", row.value());
  }
  ORBITKV_ASSIGN_OR_RETURN(state::RecoveryContract contract, ContractOf(record.groups, record.shard_count));
  if (free != free_rows_.end()) free_rows_.erase(free);
  for (; next_row_ < row.value(); ++next_row_) free_rows_.emplace_back(next_row_);
  next_row_ = std::max(next_row_, row.value() + 1);
  Namespace adopted{row, record.digest, record.shard_count, record.groups, std::move(contract)};
  return &spaces_.emplace(record.digest, std::move(adopted)).first->second;
}

const Namespace* Registry::OfRow(NamespaceRow row) const {
  const auto found = std::ranges::find_if(spaces_, [row](const auto& one) { return one.second.row == row; });
  return found == spaces_.end() ? nullptr : &found->second;
}

void Registry::Disown(const Namespace& space) {
  if (table_ != nullptr) ORBITKV_CHECK(wire::ClearNamespace(*table_, space.row));
  free_rows_.push_back(space.row);
  const state::Digest digest = space.digest;
  spaces_.erase(digest);
}

std::uint64_t Registry::leased_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, instance] : instances_) bytes += instance.leased.bytes();
  return bytes;
}

RegisterOutcome Registry::Outcome(const Session& session) const {
  RegisterOutcome outcome;
  outcome.instance = session.instance->id;
  if (const Namespace* space = session.instance->space; space != nullptr) {
    outcome.namespace_ready = true;
    outcome.namespace_digest = space->digest;
  }
  return outcome;
}

}  // namespace orbitkv::service
