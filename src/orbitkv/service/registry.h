// Who is connected and to which engine each session belongs; which engines have a namespace.
//
// A rank of an instance is live while an attached session is registered for it. The namespace is formed once, when all
// ranks are live together; it then stays the instance's, whatever dies, because nothing about the engine changed.
//
// Owns: sessions, instances and the table of namespaces. Pointers it hands out live until the session or instance ends.
// Threads: one. Blocks: no.
// Units: counts. Errors: as service.h says of Register; after a refusal nothing has changed.
// Invariants: an instance exists while a session is registered for it; ids of instances are never reused. A
//             namespace that no instance has and no block is stored under makes room for a new one at the limit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/pool/session_lists.h"
#include "orbitkv/service/block_account.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/source.h"
#include "orbitkv/service/types.h"
#include "orbitkv/state/contract.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/wire/namespace_table.h"

namespace orbitkv::service {

struct Namespace {
  NamespaceRow row;
  state::Digest digest{};
  std::uint32_t shard_count = 0;
  std::vector<state::GroupShape> groups;
  state::RecoveryContract contract;

  // Components are numbered group by group.
  std::uint32_t ComponentOf(std::uint32_t of_group, std::uint32_t shard) const {
    return of_group * shard_count + shard;
  }
  state::StateKey KeyOf(const state::BlockHash& hash, std::uint32_t component) const {
    return {digest, hash, component / shard_count, component % shard_count};
  }
  // One group that is stored whole, a component for every hash: what is here of a prefix is usable.
  bool single() const { return contract.group_count() == 1 && contract.ratio(0) == 1 && contract.IsDense(0); }
  ComponentShape ShapeOf(std::uint32_t of_group) const {
    return {.page_count = groups[of_group].page_count, .page_bytes = groups[of_group].page_bytes};
  }
  // With all components.
  std::uint64_t block_bytes() const {
    std::uint64_t bytes = 0;
    for (std::uint32_t one = 0; one < contract.group_count(); ++one) bytes += contract.rule(one).block_bytes;
    return bytes * shard_count;
  }
};

// Pages of one block in one shard with their list of checksums. 0 when it does not fit 32 bits.
std::uint32_t SlotBytes(const state::GroupShape& group);
Result<state::RecoveryContract> ContractOf(std::span<const state::GroupShape> groups, std::uint32_t shard_count);

struct RankSlot {
  std::optional<std::uint32_t> shard;  // known since its first worker registered
  std::uint32_t attached = 0;          // sessions
};

struct Instance {
  InstanceId id;
  std::string name;
  state::Digest computation{};
  std::uint32_t shard_count = 0;
  std::optional<state::Digest> representation;  // known since the first worker registered
  std::vector<state::GroupShape> groups;
  std::vector<state::GroupShape> declared;  // by the first process that named groups; a scheduler knows the rules only
  std::vector<RankSlot> ranks;
  std::uint32_t sessions = 0;
  std::uint32_t attached = 0;
  const Namespace* space = nullptr;  // formed, or null
  BlockAccount leased;               // found and granted

  bool RankLive(std::uint32_t rank) const { return rank < ranks.size() && ranks[rank].attached > 0; }
};

struct Session {
  SessionId id;
  Purpose purpose = Purpose::kControl;
  std::uint64_t token = 0;
  bool detached = false;
  std::optional<Registration> registration;
  Instance* instance = nullptr;  // set with registration

  std::uint32_t operations = 0;  // queries that run or load, and leases with those remembered
  std::uint32_t remembered = 0;  // of those, leases that expired
  std::uint64_t last_operation = 0;
  BlockAccount found;  // by found pins; counted only where a session may hold less than its instance
  std::uint32_t reservations = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t armed_ranks = 0;
  std::uint64_t false_alarms = 0;

  // Of slots that it may be touching; null: nobody keeps that for a later Manager.
  pool::SessionLists* lists = nullptr;
  std::uint32_t list_row = 0;

  void List(pool::SlotIndex slot) const {
    if (lists != nullptr) lists->Add(list_row, slot);
  }
  void Unlist(pool::SlotIndex slot) const {
    if (lists != nullptr) lists->Remove(list_row, slot);
  }
  bool IsWorker() const { return registration && registration->role != Role::kScheduler; }
};

class Registry {
 public:
  // forget: makes a row free, or says that something still belongs to it.
  using Forget = std::function<bool(NamespaceRow)>;
  Registry(const Limits& limits, Forget forget) : limits_(limits), forget_(std::move(forget)) {}

  // Where namespaces are kept for a later Manager; null for nowhere.
  void SetTable(wire::TableMemory* table) { table_ = table; }
  // A namespace of an earlier life, under its row. kInvalid when it makes no sense here, kRefused when it is known
  // under another row or the row is taken.
  Result<const Namespace*> Adopt(NamespaceRow row, const wire::NamespaceRecord& record);
  const Namespace* OfRow(NamespaceRow row) const;
  // What Adopt took is of no use after all.
  void Disown(const Namespace& space);

  Status Open(SessionId session, Purpose purpose, std::uint64_t token);
  // An open session, attached or not; null when there is none.
  Session* Find(SessionId session);
  const Session* FindToken(std::uint64_t token) const;
  void Detach(Session& session);
  // The instance that ended because this was its last session.
  std::optional<InstanceId> Unregister(Session& session);
  std::optional<InstanceId> Close(SessionId session);

  // formed: the namespace that this registration was the first to give, which no instance has had before, or null.
  RegisterOutcome Register(Session& session, const Registration& registration, const Namespace*& formed);

  const std::map<SessionId, Session>& sessions() const { return sessions_; }
  const std::map<InstanceId, Instance>& instances() const { return instances_; }
  std::size_t instance_count() const { return instances_.size(); }
  std::size_t namespace_count() const { return spaces_.size(); }
  std::uint32_t detached_count() const { return detached_; }
  std::uint64_t leased_bytes() const;  // distinct within each instance

 private:
  RegisterOutcome Outcome(const Session& session) const;
  Instance& Join(Instance* instance, const Registration& registration);
  bool Recycle();
  NamespaceRow NextRow();
  void FormNamespace(Instance& instance, const Namespace*& formed);

  const Limits limits_;
  const Forget forget_;
  std::map<SessionId, Session> sessions_;
  std::map<std::uint64_t, SessionId> tokens_;
  std::map<InstanceId, Instance> instances_;
  std::map<std::string, InstanceId> names_;  // the instance that a registration of this name joins
  std::map<state::Digest, Namespace> spaces_;
  std::uint32_t next_instance_ = 1;
  std::uint32_t next_row_ = 1;
  std::vector<NamespaceRow> free_rows_;
  std::uint32_t detached_ = 0;
  wire::TableMemory* table_ = nullptr;
};

}  // namespace orbitkv::service
