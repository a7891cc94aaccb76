#include "orbitkv/testing/sim/jobs.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/testing/sim/world.h"

namespace orbitkv::sim {
namespace {

constexpr std::uint64_t kCallNs = 200 * kMs;
constexpr std::uint64_t kLoadNs = 2000 * kMs;

std::uint64_t RankAnd(std::uint32_t rank, wire::EndResult result) {
  return rank | static_cast<std::uint64_t>(result) << 32U;
}

}  // namespace

// ---- calls ----------------------------------------------------------------------------------------------------------

bool Call::Post(World& world, ClientEnd& end, const channel::Request& request) {
  const auto posted = end.rings->Post(request);
  if (!posted) return false;
  id_ = *posted;
  deadline_ns_ = request.deadline_ns;
  // Sometimes whoever asked cannot wait as long as the Manager may take: the answer comes late.
  if (world.prng().Below(8) == 0) deadline_ns_ = world.now() + world.prng().Below(request.deadline_ns - world.now());
  world.history().Note("process: asks", {{"session", end.id.value()},
                                         {"command", static_cast<std::uint64_t>(request.command)},
                                         {"asked0", request.scalar0},
                                         {"asked1", request.scalar1},
                                         {"bytes", request.args.size()}});
  return true;
}

Call::State Call::Look(World& world, ClientEnd& end) {
  const auto taken = end.rings->TryTakeInto(*id_, &answer_);
  if (!taken) {
    if (taken.error().code != Code::kUnavailable) {
      world.history().Violation("a request has no answer and is not pending", {{"session", end.id.value()}});
    }
    id_.reset();
    return State::kOver;
  }
  if (*taken) {
    id_.reset();
    return State::kAnswered;
  }
  if (world.now() < deadline_ns_) return State::kWaiting;
  end.rings->Abandon(*id_);
  id_.reset();
  ++world.coverage().given_up;
  return State::kOver;
}

Result<std::vector<wire::PlanEntry>> ReadPlan(std::span<const std::byte> payload, std::uint16_t abi) {
  std::vector<wire::PlanEntry> entries;
  if (abi > 1) {
    ORBITKV_ASSIGN_OR_RETURN(const auto plan, wire::DecodePlan(payload));
    entries.assign(plan.begin(), plan.end());
    return entries;
  }
  ORBITKV_ASSIGN_OR_RETURN(const auto plan, wire::DecodePlanV1(payload));
  for (const wire::PlanEntryV1& entry : plan) {
    entries.push_back({.offset = entry.offset,
                       .generation = entry.generation,
                       .slot_checksum = entry.slot_checksum,
                       .slot_bytes = entry.slot_bytes,
                       .slab = entry.slab,
                       .group = 0,
                       .block = static_cast<std::uint32_t>(entries.size())});
  }
  return entries;
}

bool PingJob::Advance() {
  if (life_->lost) return true;
  if (!call_.posted()) {
    return !call_.Post(world(), *life_->control,
                       {.command = wire::Command::kPing, .scalar0 = now(), .deadline_ns = now() + kCallNs});
  }
  return call_.Look(world(), *life_->control) != Call::State::kWaiting;
}

// ---- publish --------------------------------------------------------------------------------------------------------

PublishJob::PublishJob(Process& process, std::shared_ptr<ClientLife> life, Order order)
    : Job(process, std::move(life)), order_(std::move(order)), give_up_ns_(now() + 1000 * kMs) {}

bool PublishJob::Advance() {
  switch (stage_) {
    case Stage::kStart: return Reserve();
    case Stage::kReserving: return TakeReserved();
    case Stage::kCopying: return Copy();
    case Stage::kCommitting: return TakeCommitted();
  }
  return true;
}

bool PublishJob::Reserve() {
  if (life_->lost || now() >= give_up_ns_) return true;
  process_.OpenPublish(*life_);
  if (!life_->publish || !life_->publish->registered) return false;
  const service::Registration& registration = process_.registration();
  wire::ReserveHeader header{};
  if (order_.first > 0) header.parent = order_.hashes[order_.first - 1];
  const state::GroupShape& group = registration.groups[order_.group];
  header.group = order_.group;
  header.shard = registration.shard;
  header.first_depth = order_.first;
  header.prompt_tokens = static_cast<std::uint32_t>(order_.hashes.size() * group.block_tokens);
  header.slot_bytes = static_cast<std::uint32_t>(copy::SlotBytes(group.page_count, group.page_bytes));
  const auto args = wire::EncodeReserve(header, std::span(order_.hashes).subspan(order_.first));
  if (call_.Post(world(), *life_->publish,
                 {.command = wire::Command::kPublishReserve, .args = args, .deadline_ns = now() + kCallNs})) {
    stage_ = Stage::kReserving;
  }
  return false;
}

bool PublishJob::TakeReserved() {
  const Call::State state = call_.Look(world(), *life_->publish);
  if (state == Call::State::kWaiting) return false;
  if (state == Call::State::kOver || !call_.answer().ok()) return true;
  const auto entries = wire::DecodeReserveAnswer(call_.answer().payload.bytes());
  if (!entries || entries->size() != order_.hashes.size() - order_.first) {
    world().history().Violation("a client cannot read the answer to its reserve");
    return true;
  }
  entries_.assign(entries->begin(), entries->end());
  for (const wire::ReserveEntry& entry : entries_) {
    if (entry.status == static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) touching_.Add(entry.generation);
  }
  reservation_ = call_.answer().scalar0;
  stage_ = Stage::kCopying;
  return reservation_ == 0;
}

bool PublishJob::Copy() {
  if (CopyRests()) return false;
  for (std::uint64_t pages = 1 + world().prng().Below(6); pages > 0 && stage_ == Stage::kCopying; --pages) {
    if (CopyPage()) return true;
  }
  return false;
}

// Copies one page, or goes on behind the last one.
bool PublishJob::CopyPage() {
  while (block_ < entries_.size() &&
         entries_[block_].status != static_cast<std::uint32_t>(wire::ReserveStatus::kSlot)) {
    ++block_;
  }
  if (block_ == entries_.size()) return Commit();
  if (page_ == 0 && world().prng().Below(64) == 0) {  // the engine takes its pages back
    Abort();
    return true;
  }
  const state::GroupShape& group = process_.registration().groups[order_.group];
  const wire::ReserveEntry& entry = entries_[block_];
  const std::span<std::byte> slot = life_->memory->bytes().subspan(entry.offset, entry.slot_bytes);
  if (page_ == 0) {
    write_ = world().NextNumber();
    page_hashes_.clear();
  }
  std::vector<std::byte> page(group.page_bytes);
  FillPage(write_, page_, page);
  page_hashes_.push_back(
      copy::CopyAndHash(slot.data() + page_ * group.page_bytes, page.data(), page.size(), copy::Stores::kOrdinary));
  if (++page_ < group.page_count) return false;
  copy::WriteList(slot.data(), group.page_bytes, page_hashes_);
  const state::BlockHash& hash = order_.hashes[order_.first + block_];
  const std::uint64_t checksum =
      copy::SlotChecksum({process_.space(), hash, order_.group, process_.registration().shard},
                         copy::PayloadBytes(group.page_count, group.page_bytes), page_hashes_);
  life_->memory->writes[entry.generation] = write_;
  world().oracle().Written(life_->number, entry.generation, write_, checksum);
  commits_.push_back({checksum, entry.generation, static_cast<std::uint32_t>(block_), 0});
  page_ = 0;
  ++block_;
  return false;
}

bool PublishJob::Commit() {
  touching_.Clear();
  if (life_->lost || commits_.empty()) return true;
  if (world().prng().Below(16) == 0) {  // not everything was copied in time
    commits_.resize(1 + world().prng().Below(commits_.size()));
    partial_ = true;
  }
  const auto args = wire::EncodeCommit(commits_);
  if (call_.Post(world(), *life_->publish,
                 {.command = wire::Command::kPublishCommit,
                  .scalar0 = reservation_,
                  .args = args,
                  .deadline_ns = now() + kCallNs})) {
    stage_ = Stage::kCommitting;
  }
  return false;
}

bool PublishJob::TakeCommitted() {
  const Call::State state = call_.Look(world(), *life_->publish);
  if (state == Call::State::kWaiting) return false;
  const bool committed = state == Call::State::kAnswered && call_.answer().ok();
  if (!committed || partial_) Abort();
  return true;
}

void PublishJob::Abort() {
  touching_.Clear();
  if (life_->lost) return;
  (void)life_->publish->rings->PostNeverLost(wire::Command::kPublishAbort, reservation_, 0, {});
}

// ---- restore --------------------------------------------------------------------------------------------------------

RestoreJob::RestoreJob(Process& process, std::shared_ptr<ClientLife> life, Order order)
    : Job(process, std::move(life)), order_(std::move(order)), deadline_ns_(now() + kLoadNs) {}

bool RestoreJob::Advance() {
  if (plan_.empty()) return Plan();
  if (CopyRests()) return false;
  for (std::uint64_t pages = 1 + world().prng().Below(6); pages > 0; --pages) {
    if (CopyPage()) return true;
  }
  return false;
}

bool RestoreJob::Plan() {
  if (life_->lost) return true;
  if (call_.posted()) {
    const Call::State state = call_.Look(world(), *life_->control);
    if (state == Call::State::kWaiting) return false;
    // A plan that comes after this has armed the rank, and the end behind it ends that.
    if (state == Call::State::kOver) return End(wire::EndResult::kFailed, {});
    return TakePlan(call_.answer());
  }
  if (now() >= deadline_ns_) return End(wire::EndResult::kFailed, {});
  // A process that registers anew has promised to copy nothing meanwhile.
  if (now() < next_try_ns_ || !life_->control->registered) return false;
  call_.Post(world(), *life_->control,
             {.command = wire::Command::kRestorePlan,
              .scalar0 = order_.grant,
              .scalar1 = process_.registration().rank.value(),
              .deadline_ns = deadline_ns_});
  return false;
}

bool RestoreJob::TakePlan(const channel::Answer& answer) {
  if (answer.status == wire::AnswerStatus::kNotYet || answer.status == wire::AnswerStatus::kBusy) {
    next_try_ns_ = now() + kMs;
    return false;
  }
  if (answer.status != wire::AnswerStatus::kOk) return End(wire::EndResult::kFailed, {});
  const auto plan = ReadPlan(answer.payload.bytes(), process_.shape().abi);
  if (!plan || plan->size() != order_.blocks.size()) {
    world().history().Violation("a client cannot read its plan", {{"grant", order_.grant}});
    return true;
  }
  plan_ = *plan;
  for (const wire::PlanEntry& entry : plan_) touching_.Add(entry.generation);
  return false;
}

bool RestoreJob::CopyPage() {
  if (block_ == plan_.size()) {
    if (!mismatched_.empty()) return End(wire::EndResult::kMismatch, mismatched_);
    if (world().prng().Below(24) == 0) {  // it blames a block that is right
      ++world().coverage().false_alarms;
      return End(wire::EndResult::kMismatch, {static_cast<std::uint32_t>(world().prng().Below(plan_.size()))});
    }
    ++world().coverage().restored;
    if (process_.rules().groups().size() > 1) ++world().coverage().restored_groups;
    const bool earlier = std::ranges::any_of(
        plan_, [this](const wire::PlanEntry& entry) { return life_->first_generation > entry.generation; });
    if (earlier) ++world().coverage().restored_earlier;
    return End(wire::EndResult::kOk, {});
  }
  if (world().prng().Below(256) == 0) return End(wire::EndResult::kFailed, {});
  const wire::PlanEntry& entry = plan_[block_];
  const state::GroupShape& group = process_.registration().groups[order_.blocks[block_].group];
  if (page_ == 0) {
    pages_.assign(group.page_count * group.page_bytes, std::byte{0});
    page_hashes_.clear();
  }
  const std::span<std::byte> slot = life_->memory->bytes().subspan(entry.offset, entry.slot_bytes);
  page_hashes_.push_back(copy::CopyAndHash(pages_.data() + page_ * group.page_bytes,
                                           slot.data() + page_ * group.page_bytes, group.page_bytes,
                                           copy::Stores::kOrdinary));
  if (++page_ < group.page_count) return false;
  CheckBlock(entry);
  page_ = 0;
  ++block_;
  return false;
}

// A block that passes its checksums is the one that was saved under this key; one that does not was damaged.
void RestoreJob::CheckBlock(const wire::PlanEntry& entry) {
  const BlockName& name = order_.blocks[block_];
  const state::GroupShape& group = process_.registration().groups[name.group];
  const std::byte* const slot = life_->memory->bytes().data() + entry.offset;
  std::vector<std::uint64_t> list(group.page_count);
  copy::ReadList(slot, group.page_bytes, list);
  const bool good =
      list == page_hashes_ &&
      copy::SlotChecksum({process_.space(), name.hash, name.group, process_.registration().shard},
                         copy::PayloadBytes(group.page_count, group.page_bytes), list) == entry.slot_checksum;
  const auto write = life_->memory->writes.find(entry.generation);
  const bool damaged = life_->memory->damaged.contains(entry.generation);
  if (!good) {
    ++world().coverage().mismatched;
    mismatched_.push_back(static_cast<std::uint32_t>(block_));
    if (!damaged) {
      world().history().Violation("the bytes of a granted slot have changed",
                                  {{"generation", entry.generation}, {"grant", order_.grant}});
    }
    return;
  }
  std::vector<std::byte> expected(pages_.size());
  for (std::uint32_t page = 0; write != life_->memory->writes.end() && page < group.page_count; ++page) {
    FillPage(write->second, page, std::span(expected).subspan(page * group.page_bytes, group.page_bytes));
  }
  if (expected != pages_) {
    world().history().Violation("a wrong byte was restored", {{"generation", entry.generation}, {"block", block_}});
  }
}

bool RestoreJob::End(wire::EndResult result, const std::vector<std::uint32_t>& indices) {
  touching_.Clear();
  if (life_->lost) return true;
  std::vector<wire::EndEntry> mismatches;
  for (const std::uint32_t index : indices) {
    mismatches.push_back({.generation = plan_[index].generation, .index = index});
  }
  const auto args = wire::EncodeEndFor(process_.shape().abi, mismatches);
  const Status kept = life_->control->rings->PostNeverLost(wire::Command::kRestoreEnd, order_.grant,
                                                           RankAnd(process_.registration().rank.value(), result), args);
  if (!kept) world().history().Violation("a client could not keep the end of its restore");
  return true;
}

}  // namespace orbitkv::sim
