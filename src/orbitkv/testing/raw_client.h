// An engine process as a Manager sees it, without the client library: one session, its frames and commands, one
// blocking call each. The bytes of a block follow from its hash, so that whoever reads it can tell whether it is right.
//
// Owns: the session and its mapping of the pool. Threads: one. Blocks: every call, for Options::deadline_ns at most.
// Units: bytes, nanoseconds.
// Errors: what the channel reports; a Manager's refusal comes as its code.
// Invariant: a command is answered before the next is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::testing {

struct RawClientOptions {
  std::string socket;
  std::string instance = "engine";
  std::string name = "raw client";
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t shard = 0;
  std::uint32_t shard_count = 1;
  std::uint32_t layers = 2;
  std::uint64_t page_bytes = 4096;
  std::byte computation{1};  // fills the digest: another value is another model
  wire::Purpose purpose = wire::Purpose::kControl;
  std::uint64_t deadline_ns = 20'000'000'000;  // per call
  std::uint16_t abi_max = wire::kAbiMax;
};

struct RawQuery {
  LeaseId lease;
  std::uint32_t found = 0;
  wire::MissReason miss = wire::MissReason::kNone;
};

struct RawReservation {
  ReservationId id;
  std::vector<wire::ReserveEntry> entries;
};

// `count` hashes of a chain that `chain` names.
std::vector<state::BlockHash> Chain(std::uint32_t chain, std::uint32_t count);

class RawClient {
 public:
  static Result<std::unique_ptr<RawClient>> Connect(const RawClientOptions& options);
  // Connect and Register; the whole instance is this one process when world_size is 1.
  static Result<std::unique_ptr<RawClient>> Open(const RawClientOptions& options);

  channel::ClientSession& session() { return *session_; }
  const state::Digest& namespace_digest() const { return namespace_digest_; }
  Rank rank() const { return Rank(options_.rank); }
  // Posts a command, does not wait for its answer, and gives back what a late success brings: what an engine does when
  // the Manager does not answer in time. The Manager may execute it for deadline_ns.
  Status PostAndAbandon(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                        std::span<const std::byte> args = {});
  // Moves late answers and kept commands until none is left; false at the deadline.
  bool Settle();
  os::Mapping& pool() { return pool_; }

  Status Register();
  Status Unregister();
  // SessionDrained for an earlier session.
  Status ReportDrained(std::uint64_t token, Incarnation incarnation);
  // Every sample of the health frame; those with labels by name{value,...}.
  Result<std::map<std::string, double>> Figures();

  Status Ping();
  Result<RawQuery> Query(std::uint64_t request, std::span<const state::BlockHash> hashes);
  std::vector<std::byte> ReserveArguments(std::span<const state::BlockHash> hashes) const;
  static std::vector<std::byte> QueryArguments(std::uint64_t request, std::span<const state::BlockHash> hashes);
  Result<RawReservation> Reserve(std::span<const state::BlockHash> hashes);
  // Writes the block's bytes and list into its slot: the slot's checksum.
  std::uint64_t Fill(const wire::ReserveEntry& entry, const state::BlockHash& hash);
  Result<std::vector<wire::CommitOutcome>> Commit(ReservationId reservation,
                                                  std::span<const wire::CommitEntry> entries);
  Status Abort(ReservationId reservation);
  // Reserve, Fill, Commit: how many were stored.
  Result<std::uint32_t> Publish(std::span<const state::BlockHash> hashes);

  Status Begin(LeaseId lease, GrantId grant, std::uint32_t boundary, std::span<const std::uint32_t> ranks);
  // The Manager's status as it is: kNotYet and kGone are not the codes of other failures.
  Result<std::pair<wire::AnswerStatus, std::vector<wire::PlanEntry>>> Plan(GrantId grant);
  // Whether the slot holds the block, whole and under its checksum.
  bool Right(const wire::PlanEntry& entry, const state::BlockHash& hash) const;
  // The mismatches are those of the plan that came last.
  Status End(GrantId grant, wire::EndResult result, std::span<const std::uint32_t> indices = {});
  Status Release(wire::ReleaseKind kind, std::uint64_t id);
  // Query, Begin, Plan, Right, End: how many blocks were restored, each of them right.
  Result<std::uint32_t> Restore(std::uint64_t request, std::span<const state::BlockHash> hashes, GrantId grant);

  // One command and its answer.
  Result<channel::Answer> Call(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                               std::span<const std::byte> args = {});

 private:
  explicit RawClient(const RawClientOptions& options) : options_(options) {}
  Result<std::vector<std::byte>> Exchange(std::uint32_t kind, std::span<const std::byte> payload);
  void GiveBack(const channel::LateAnswer& late);
  state::StateKey IdentityOf(const state::BlockHash& hash) const;
  // The same, with every answer but kOk as an error.
  Result<channel::Answer> CallOk(wire::Command command, std::uint64_t scalar0, std::uint64_t scalar1,
                                 std::span<const std::byte> args = {});

  const RawClientOptions options_;
  std::unique_ptr<channel::ClientSession> session_;
  os::Mapping pool_;
  state::Digest namespace_digest_{};
  GrantId planned_grant_;
  std::vector<wire::PlanEntry> plan_;
};

}  // namespace orbitkv::testing
