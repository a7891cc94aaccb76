#include "orbitkv/client/answers.h"

#include <utility>

namespace orbitkv::client {
namespace {

bool IsBoundaryList(std::span<const std::uint32_t> boundaries, std::uint32_t found) {
  std::uint32_t before = 0;
  for (const std::uint32_t boundary : boundaries) {
    if (boundary <= before || boundary > found) return false;
    before = boundary;
  }
  return boundaries.empty() || before == found;
}

Result<std::vector<wire::PlanEntry>> DecodePlanOf(std::uint16_t abi, std::span<const std::byte> payload) {
  std::vector<wire::PlanEntry> plan;
  if (abi >= 2) {
    ORBITKV_ASSIGN_OR_RETURN(const auto entries, wire::DecodePlan(payload));
    plan.assign(entries.begin(), entries.end());
    return plan;
  }
  ORBITKV_ASSIGN_OR_RETURN(const auto entries, wire::DecodePlanV1(payload));
  for (const wire::PlanEntryV1& entry : entries) {
    plan.push_back({.offset = entry.offset,
                    .generation = entry.generation,
                    .slot_checksum = entry.slot_checksum,
                    .slot_bytes = entry.slot_bytes,
                    .block = static_cast<std::uint32_t>(plan.size())});
  }
  return plan;
}

}  // namespace

Result<std::vector<wire::ReserveEntry>> ReadReserved(std::span<const std::byte> payload, const PoolMap& pool,
                                                     const AskedBlocks& asked) {
  ORBITKV_ASSIGN_OR_RETURN(const auto entries, wire::DecodeReserveAnswer(payload));
  if (entries.size() != asked.count) return Fail(Code::kInvalid, "the Manager answered another number of blocks");
  std::vector<SlotRange> slots;
  for (const wire::ReserveEntry& entry : entries) {
    switch (static_cast<wire::ReserveStatus>(entry.status)) {
      case wire::ReserveStatus::kHaveIt:
      case wire::ReserveStatus::kNotNow: continue;
      case wire::ReserveStatus::kSlot: break;
      default: return Fail(Code::kInvalid, "the Manager answered something unknown", entry.status);
    }
    if (entry.slot_bytes != asked.slot_bytes) return Fail(Code::kInvalid, "the Manager gave a slot of another size");
    ORBITKV_TRY(pool.Slot(entry.offset, entry.slot_bytes));
    slots.push_back({entry.offset, entry.slot_bytes});
  }
  ORBITKV_TRY(CheckApart(std::move(slots)));
  return std::vector<wire::ReserveEntry>(entries.begin(), entries.end());
}

Result<std::vector<wire::CommitOutcome>> ReadCommitted(std::span<const std::byte> payload, std::size_t count) {
  ORBITKV_ASSIGN_OR_RETURN(const auto outcomes, wire::DecodeCommitAnswer(payload));
  if (outcomes.size() != count) {
    return Fail(Code::kInvalid, "the Manager answered another number of outcomes", outcomes.size(), count);
  }
  std::vector<wire::CommitOutcome> read;
  for (const std::uint32_t outcome : outcomes) {
    const auto known = static_cast<wire::CommitOutcome>(outcome);
    const bool stored = known == wire::CommitOutcome::kStored || known == wire::CommitOutcome::kAlreadyThere;
    read.push_back(stored ? known : wire::CommitOutcome::kLost);
  }
  return read;
}

Result<std::vector<wire::PlanEntry>> ReadPlan(std::uint16_t abi, std::span<const std::byte> payload,
                                              const PoolMap& pool, std::span<const AskedBlock> asked) {
  ORBITKV_ASSIGN_OR_RETURN(auto plan, DecodePlanOf(abi, payload));
  if (plan.size() != asked.size()) {
    return Fail(Code::kInvalid,
                "the plan has another number of blocks than the restore; give exactly the granted blocks");
  }
  std::vector<SlotRange> slots;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const wire::PlanEntry& entry = plan[i];
    if (entry.slot_bytes != asked[i].slot_bytes || !pool.Slot(entry.offset, entry.slot_bytes)) {
      return Fail(Code::kInvalid, "the plan names a range that is not a slot of this pool");
    }
    // Which entry is which block: a plan in another order would be one mismatch after the other.
    if (entry.group != asked[i].group || entry.block != asked[i].place) {
      return Fail(Code::kInvalid, "the plan names its blocks in another order than the restore");
    }
    slots.push_back({entry.offset, entry.slot_bytes});
  }
  if (!CheckApart(std::move(slots))) {
    return Fail(Code::kInvalid, "the plan names slots that overlap");
  }
  return plan;
}

Result<TicketEnd> ReadFound(const channel::Answer& answer) {
  TicketEnd end{.state = wire::TicketState::kReady,
                .lease = answer.scalar0,
                .found = static_cast<std::uint32_t>(answer.scalar1),
                .reason = static_cast<std::uint32_t>(answer.scalar1 >> 32U)};
  if (answer.payload.empty()) return end;
  ORBITKV_ASSIGN_OR_RETURN(const auto boundaries, wire::DecodeBoundaries(answer.payload.bytes()));
  end.boundaries.assign(boundaries.begin(), boundaries.end());
  return end;
}

Result<TicketEnd> ReadDiscovered(const channel::Answer& answer, std::uint32_t hash_count) {
  TicketEnd end{.state = wire::TicketState::kReady,
                .lease = answer.scalar0,
                .found = static_cast<std::uint32_t>(answer.scalar1),
                .reason = static_cast<std::uint32_t>(answer.scalar1 >> 32U)};
  if (answer.payload.empty() && end.found == 0) return end;  // no namespace yet
  ORBITKV_ASSIGN_OR_RETURN(const auto told, wire::DecodeDiscovery(answer.payload.bytes()));
  if (told.tiers.size() != hash_count) {
    return Fail(Code::kInvalid, "the Manager tells of another number of blocks", told.tiers.size(), hash_count);
  }
  end.boundaries.assign(told.boundaries.begin(), told.boundaries.end());
  end.tiers.assign(told.tiers.begin(), told.tiers.end());
  return end;
}

bool IsPossible(const TicketEnd& end, std::uint32_t hash_count, bool leased) {
  const bool lease_fits = leased ? (end.found > 0) == (end.lease != 0) : end.lease == 0;
  return end.found <= hash_count && end.loaded <= end.found && end.lease >> kLeaseBits == 0 && lease_fits &&
         IsBoundaryList(end.boundaries, end.found);
}

Result<std::vector<PolledTicket>> ReadPolled(std::span<const std::byte> payload) {
  ORBITKV_ASSIGN_OR_RETURN(const auto view, wire::DecodePollAnswer(payload));
  std::span<const std::uint32_t> boundaries = view.boundaries;
  std::vector<PolledTicket> polled;
  for (const wire::PollEntry& told : view.entries) {
    if (told.boundary_count > boundaries.size()) {
      return Fail(Code::kInvalid, "the Manager names more boundaries than it sends", told.boundary_count);
    }
    const auto own = boundaries.first(told.boundary_count);
    boundaries = boundaries.subspan(told.boundary_count);
    polled.push_back({told.operation,
                      told.revision,
                      {static_cast<wire::TicketState>(told.state),
                       told.lease,
                       told.found,
                       told.reason,
                       {own.begin(), own.end()},
                       {},
                       told.loaded}});
  }
  return polled;
}

}  // namespace orbitkv::client
