// Everything that a client reads of a Manager's answers and replies, over arbitrary bytes: no crash, no read beyond
// them, and what is taken is what the operation can be carried out with.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/fuzz_input.h"
#include "orbitkv/client/answers.h"
#include "orbitkv/client/registration.h"
#include "orbitkv/os/memfd.h"

using namespace orbitkv;
using namespace orbitkv::client;

namespace {

constexpr std::uint64_t kPoolBytes = 1U << 20U;
constexpr std::uint32_t kHashes = 16;
constexpr AskedBlocks kAsked{.count = 2, .slot_bytes = 4160};
// A block of each of two groups, and two of the only one.
constexpr AskedBlock kOfTwoGroups[] = {{.group = 0, .place = 0, .slot_bytes = 4160},
                                       {.group = 1, .place = 3, .slot_bytes = 576}};
constexpr AskedBlock kOfOneGroup[] = {{.group = 0, .place = 0, .slot_bytes = 4160},
                                      {.group = 0, .place = 1, .slot_bytes = 4160}};

const PoolMap& Pool() {
  static const os::UniqueFd fd = [] {
    os::UniqueFd made = os::CreateMemfd("fuzz", kPoolBytes).value();
    ORBITKV_CHECK(os::SealSize(made.get()).has_value());
    return made;
  }();
  static const std::unique_ptr<PoolMap> pool = PoolMap::Open(fd.get(), {.bytes = kPoolBytes}).value();
  return *pool;
}

void CheckSlots(std::vector<SlotRange> slots) {
  std::ranges::sort(slots, {}, &SlotRange::offset);
  std::uint64_t end = 0;
  for (const SlotRange& slot : slots) {
    ORBITKV_CHECK(slot.offset >= end && slot.offset <= kPoolBytes - slot.bytes);
    end = slot.offset + slot.bytes;
  }
}

void ReadPlanOf(std::uint16_t abi, std::span<const std::byte> payload, std::span<const AskedBlock> asked) {
  const auto plan = ReadPlan(abi, payload, Pool(), asked);
  if (!plan) return;
  ORBITKV_CHECK(plan->size() == asked.size());
  std::vector<SlotRange> slots;
  for (const wire::PlanEntry& entry : *plan) {
    const AskedBlock& block = asked[slots.size()];
    ORBITKV_CHECK(entry.group == block.group && entry.block == block.place && entry.slot_bytes == block.slot_bytes);
    slots.push_back({entry.offset, entry.slot_bytes});
  }
  CheckSlots(std::move(slots));
}

void ReadReservedOf(std::span<const std::byte> payload) {
  const auto entries = ReadReserved(payload, Pool(), kAsked);
  if (!entries) return;
  ORBITKV_CHECK(entries->size() == kAsked.count);
  std::vector<SlotRange> slots;
  for (const wire::ReserveEntry& entry : *entries) {
    if (static_cast<wire::ReserveStatus>(entry.status) != wire::ReserveStatus::kSlot) continue;
    slots.push_back({entry.offset, entry.slot_bytes});
  }
  CheckSlots(std::move(slots));
}

void CheckEnd(const TicketEnd& end) {
  for (const bool leased : {true, false}) {
    if (!IsPossible(end, kHashes, leased)) continue;
    ORBITKV_CHECK(end.found <= kHashes && (end.lease != 0) == (leased && end.found > 0));
    ORBITKV_CHECK(end.loaded <= end.found);
    ORBITKV_CHECK(std::ranges::is_sorted(end.boundaries));
    ORBITKV_CHECK(end.boundaries.empty() || (end.boundaries.front() > 0 && end.boundaries.back() == end.found));
  }
}

// The first sixteen bytes are the scalars.
void ReadLookUpOf(std::span<const std::byte> payload, bool discovery) {
  channel::Answer answer;
  if (payload.size() < 16) return;
  std::memcpy(&answer.scalar0, payload.data(), sizeof answer.scalar0);
  std::memcpy(&answer.scalar1, payload.data() + 8, sizeof answer.scalar1);
  answer.payload.Assign(payload.subspan(16));
  const auto end = discovery ? ReadDiscovered(answer, kHashes) : ReadFound(answer);
  if (!end) return;
  ORBITKV_CHECK(end->tiers.empty() || (discovery && end->tiers.size() == kHashes));
  for (const wire::Tier tier : end->tiers) ORBITKV_CHECK(tier <= wire::Tier::kBehind);
  CheckEnd(*end);
}

void ReadReplies(std::span<const std::byte> payload, bool refused) {
  const channel::FrameReply reply{.refused = refused, .payload = {payload.begin(), payload.end()}};
  std::string message;
  const auto registered = ReadRegistered(reply, &message);
  const Status done = ReadDone(reply, &message);
  const auto health = ReadHealth(reply);
  ORBITKV_CHECK(!refused || (!registered && !done && !health));
  if (health && health->incarnation.size() == 16) ORBITKV_CHECK(IncarnationFrom(health->incarnation).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const FuzzInput input(data, size);
  switch (input.choice % 9) {
    case 0:
      ReadPlanOf(2, input.payload, kOfTwoGroups);
      ReadPlanOf(2, input.payload, kOfOneGroup);
      break;
    case 1: ReadPlanOf(1, input.payload, kOfOneGroup); break;
    case 2: ReadReservedOf(input.payload); break;
    case 3:
      if (const auto outcomes = ReadCommitted(input.payload, kAsked.count)) {
        ORBITKV_CHECK(outcomes->size() == kAsked.count);
      }
      break;
    case 4: ReadLookUpOf(input.payload, false); break;
    case 5:
      if (const auto polled = ReadPolled(input.payload)) {
        for (const PolledTicket& one : *polled) CheckEnd(one.end);
      }
      break;
    case 6: ReadReplies(input.payload, false); break;
    case 7: ReadReplies(input.payload, true); break;
    default: ReadLookUpOf(input.payload, true); break;
  }
  return 0;
}
