// For the tests of this folder: lives of a Manager's state, one after the other over the same tables.
// Owns: OneLife its state; the tables belong to the test. Threads: one. Blocks: no. Units: bytes; nanoseconds.
// Errors: a step that must work fails the test.
// Invariant: the engine has one rank, which is its own scheduler.
#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/service/core_state.h"
#include "orbitkv/service/test_engine.h"
#include "orbitkv/wire/test_tables.h"

namespace orbitkv::service {

inline CoreStateConfig Config() {
  CoreStateConfig config;
  config.pool = {.pool_bytes = 4 * kMiB, .unit_bytes = 64U << 10U, .max_slots = 600};
  config.cache.max_blocks = 600;
  config.limits.pool_bytes = config.pool.pool_bytes;
  config.limits.max_namespaces = 4;
  config.session_rows = 8;
  return config;
}

inline std::unique_ptr<wire::RecordingTable> FreshTables(const CoreStateConfig& config) {
  auto tables = std::make_unique<wire::RecordingTable>(wire::TablesLayout(config.shape()).total_bytes);
  EXPECT_TRUE(wire::StoreTablesHeader(*tables, {.shape = config.shape()}));
  return tables;
}

// One life over somebody's tables, with an engine of one rank that is its own scheduler.
struct OneLife {
  OneLife(wire::TableMemory& tables, const CoreStateConfig& config, std::set<std::uint32_t> alive = {},
          std::uint64_t now = kSecond)
      : now_ns(now) {
    state = CoreState::Begin(
                tables, config, config.pool.pool_bytes,
                [&](std::uint32_t row, const pool::SessionOwner&) { return alive.contains(row); }, now)
                .value();
  }
  Service& service() { return state->service(); }

  SessionId Join(std::uint32_t row, std::uint8_t model = 1, const std::string& instance = "engine") {
    const SessionId session(next_session++);
    const std::uint64_t token = 1000 + row;
    EXPECT_TRUE(state->lists().Open(row, {.incarnation = {1, state->report().life}, .token = token, .watched = true}));
    EXPECT_TRUE(service().OpenSession(session, Purpose::kControl, token, row));
    Registration registration;
    registration.instance = instance;
    registration.role = Role::kBoth;
    registration.world_size = 1;
    registration.shard_count = 1;
    registration.computation = DigestOfByte(model);
    registration.representation = DigestOfByte(2);
    registration.groups = {{.block_tokens = 32, .page_count = 2, .page_bytes = 4000}};
    const RegisterOutcome outcome = service().Register(session, registration, now_ns);
    EXPECT_FALSE(outcome.refused) << outcome.text;
    return session;
  }
  static constexpr std::uint32_t kSlotBytes = 8016;

  ReservationId Reserve(SessionId session, std::span<const state::BlockHash> hashes) {
    wire::ReserveView view{};
    view.header.slot_bytes = kSlotBytes;
    view.header.block_count = static_cast<std::uint32_t>(hashes.size());
    view.hashes = hashes;
    const auto outcome = service().StartReserve(session, view, now_ns, entries);
    EXPECT_TRUE(outcome);
    return outcome->reservation;
  }
  std::uint32_t Publish(SessionId session, std::span<const state::BlockHash> hashes) {
    const ReservationId reservation = Reserve(session, hashes);
    std::vector<wire::CommitEntry> commits;
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      if (entries[i].status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) continue;
      commits.push_back(
          {.slot_checksum = ChecksumOf(hashes[i], 0), .generation = entries[i].generation, .index = i, .reserved = 0});
    }
    std::vector<std::uint32_t> outcomes;
    return service().PublishCommit(session, reservation, {.entries = commits}, now_ns, outcomes).value();
  }
  QueryOutcome Query(SessionId session, std::span<const state::BlockHash> hashes) {
    wire::QueryView view{};
    view.header.request_key_lo = 1;
    view.header.hash_count = static_cast<std::uint32_t>(hashes.size());
    view.hashes = hashes;
    return service().StartQuery(session, view, now_ns).value();
  }
  std::uint32_t Found(SessionId session, std::span<const state::BlockHash> hashes) {
    return Query(session, hashes).found_blocks;
  }
  // A grant whose plan is fetched.
  std::vector<wire::PlanEntry> Arm(SessionId session, std::span<const state::BlockHash> hashes, std::uint64_t grant) {
    const QueryOutcome found = Query(session, hashes);
    const std::uint32_t ranks[] = {0};
    const wire::BeginView view{.header = {found.found_blocks, 1}, .ranks = ranks};
    EXPECT_TRUE(service().RestoreBegin(session, found.lease, view, GrantId(grant), now_ns));
    std::vector<wire::PlanEntry> plan;
    EXPECT_EQ(service().RestorePlan(session, GrantId(grant), Rank(0), now_ns, plan).value(), PlanStatus::kArmed);
    return plan;
  }
  // Slots that are listed for a row.
  std::set<std::uint32_t> Listed(std::uint32_t row) {
    std::set<std::uint32_t> slots;
    for (const auto& earlier : state->lists().Load()) {
      for (const pool::SlotIndex slot : earlier.slots) {
        if (earlier.row == row) slots.insert(slot.value());
      }
    }
    return slots;
  }

  std::uint64_t now_ns;
  std::unique_ptr<CoreState> state;
  std::vector<wire::ReserveEntry> entries;
  std::uint64_t next_session = 1;
};

}  // namespace orbitkv::service
