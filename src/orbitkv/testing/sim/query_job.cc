// Look-ups of a simulated scheduler.
#include <algorithm>

#include "orbitkv/testing/sim/jobs.h"
#include "orbitkv/testing/sim/world.h"

namespace orbitkv::sim {
namespace {

constexpr std::uint64_t kQueryNs = 50 * kMs;
constexpr std::uint64_t kBeginNs = 200 * kMs;

}  // namespace

QueryJob::QueryJob(Process& process, std::shared_ptr<ClientLife> life, const Order& order)
    : Job(process, std::move(life)),
      request_(order.header.request_key_lo),
      stage_(Stage::kToClaim),
      header_(order.header),
      hashes_(order.hashes),
      operation_(order.operation),
      revision_(order.revision) {}

bool QueryJob::Advance() {
  if (life_->lost) return true;
  switch (stage_) {
    case Stage::kStart: return Ask();
    case Stage::kToClaim: return world().prng().Below(32) == 0 || Claim();
    case Stage::kAsking:
    case Stage::kClaiming: return TakeFound();
    case Stage::kLoading: return Load();
    case Stage::kPolling: return TakePolled();
    case Stage::kCancelling: return TakeCancelled();
    case Stage::kFound: return Decide();
    case Stage::kBeginning: return TakeBegun();
  }
  return true;
}

bool QueryJob::Ask() {
  ChooseDemand();
  operation_ = 0;
  revision_ = 0;
  if (process_.shape().abi > 1 && world().prng().Below(2) == 0) {
    // Now and then by a number that was used already: that is refused.
    operation_ = life_->next_operation > 1 && world().prng().Below(16) == 0 ? life_->next_operation - 1
                                                                            : life_->next_operation++;
    revision_ = 1;
    header_.wait_ns = world().prng().Below(4) * 100 * kMs;
  } else if (header_.mode == wire::QueryMode::kPrepare) {
    header_.mode = wire::QueryMode::kLeasedRead;  // only an operation can be prepared
  }
  if (header_.mode == wire::QueryMode::kPrepare) {
    header_.consumer_key_hi = process_.number();
    header_.consumer_key_lo = request_;
  }
  return Submit();
}

void QueryJob::ChooseDemand() {
  Prng& prng = world().prng();
  const std::vector<state::BlockHash> prompt = world().AnyChain(process_.engine());
  header_ = {};
  header_.request_key_hi = process_.engine();
  header_.request_key_lo = request_;
  header_.group = process_.rules().single() ? 0 : wire::kAllGroups;
  // The engine may have the beginning of the prompt already.
  header_.prefix_blocks = prng.Below(4) == 0 ? static_cast<std::uint32_t>(prng.Below(prompt.size())) : 0;
  behind_.assign(prompt.begin() + header_.prefix_blocks, prompt.end());
  constexpr wire::QueryMode kModes[] = {wire::QueryMode::kFullPrefix, wire::QueryMode::kDiscovery,
                                        wire::QueryMode::kSelected, wire::QueryMode::kWarmUp,
                                        wire::QueryMode::kPrepare};
  const std::uint64_t which = prng.Below(10);
  header_.mode = process_.shape().abi > 1 && which < std::size(kModes) ? kModes[which] : wire::QueryMode::kLeasedRead;
  views_.clear();
  hashes_ = behind_;
  if (header_.mode == wire::QueryMode::kSelected) ChooseViews();
}

// Of one group any blocks; of several all that a boundary demands, now and then with an error.
void QueryJob::ChooseViews() {
  Prng& prng = world().prng();
  const Rules& rules = process_.rules();
  if (rules.single()) {
    const auto first = static_cast<std::uint32_t>(prng.Below(behind_.size()));
    const auto count = static_cast<std::uint32_t>(1 + prng.Below(behind_.size() - first));
    views_.push_back({.group = 0, .first = first, .count = count, .reserved = 0});
    hashes_.assign(behind_.begin() + first, behind_.begin() + first + count);
    return;
  }
  std::vector<std::uint32_t> ends;
  for (std::uint32_t end = 1; end <= behind_.size(); ++end) {
    if (rules.IsBoundary(header_.prefix_blocks + end)) ends.push_back(end);
  }
  if (ends.empty()) {
    header_.mode = wire::QueryMode::kLeasedRead;
    return;
  }
  behind_.resize(ends[prng.Below(ends.size())]);
  for (const Place place : rules.Needs(header_.prefix_blocks, static_cast<std::uint32_t>(behind_.size()))) {
    if (views_.empty() || views_.back().group != place.group) {
      views_.push_back({.group = place.group, .first = place.index, .count = 0, .reserved = 0});
    }
    ++views_.back().count;
  }
  if (prng.Below(16) == 0) views_.pop_back();
  hashes_ = behind_;
}

bool QueryJob::Submit() {
  const auto args = process_.shape().abi > 1 ? wire::EncodeQuery(header_, behind_, views_)
                                             : wire::EncodeQueryV1({.request_key_hi = header_.request_key_hi,
                                                                    .request_key_lo = header_.request_key_lo,
                                                                    .attempt = 0,
                                                                    .group = header_.group,
                                                                    .prefix_blocks = header_.prefix_blocks,
                                                                    .hash_count = 0},
                                                                   behind_);
  if (call_.Post(world(), *life_->control,
                 {.command = wire::Command::kQuerySubmit,
                  .scalar0 = operation_,
                  .scalar1 = revision_,
                  .args = args,
                  .deadline_ns = now() + kQueryNs})) {
    stage_ = Stage::kAsking;
  }
  return false;
}

bool QueryJob::TakeFound() {
  const Call::State state = call_.Look(world(), *life_->control);
  if (state == Call::State::kWaiting) return false;
  if (state == Call::State::kOver) return true;
  if (operation_ != 0 && call_.answer().status == wire::AnswerStatus::kNotYet) {
    if (stage_ == Stage::kClaiming) {
      stage_ = Stage::kToClaim;
      return false;
    }
    ++world().coverage().loading;
    // Whom it is prepared for asks when it likes.
    if (header_.mode == wire::QueryMode::kPrepare && world().prng().Below(4) == 0) return HandOver();
    stage_ = Stage::kLoading;
    return false;
  }
  if (!call_.answer().ok()) return true;
  const auto boundaries = wire::DecodeBoundaries(call_.answer().payload.bytes());
  if (!boundaries) {
    world().history().Violation("a client cannot read the answer to its query");
    return true;
  }
  return Found(call_.answer().scalar0, call_.answer().scalar1, *boundaries);
}

bool QueryJob::Found(std::uint64_t lease, std::uint64_t found, std::span<const std::uint32_t> boundaries) {
  lease_ = lease;
  found_ = static_cast<std::uint32_t>(found);
  boundaries_.assign(boundaries.begin(), boundaries.end());
  if (lease_ == 0 || found_ == 0 || found_ > hashes_.size()) return true;
  stage_ = Stage::kFound;
  return false;
}

// Of an operation that loads: asks how far it is, changes its mind, or gives up.
bool QueryJob::Load() {
  Prng& prng = world().prng();
  const std::uint64_t what = prng.Below(16);
  if (what == 0) return true;  // forgotten: the Manager ends it
  if (what == 1) {
    ++revision_;
    header_.wait_ns = prng.Below(4) * 100 * kMs;
    return Submit();
  }
  if (what == 2) {
    if (call_.Post(world(), *life_->control,
                   {.command = wire::Command::kQueryCancel,
                    .scalar0 = operation_,
                    .scalar1 = revision_,
                    .deadline_ns = now() + kQueryNs})) {
      stage_ = Stage::kCancelling;
    }
    return false;
  }
  if (what == 3 && revision_ > 1) {  // late: another revision is live, and it goes on
    call_.Post(world(), *life_->control,
               {.command = wire::Command::kQueryCancel,
                .scalar0 = operation_,
                .scalar1 = revision_ - 1,
                .deadline_ns = now() + kQueryNs});
    if (call_.posted()) stage_ = Stage::kCancelling;
    return false;
  }
  if (what < 8) return false;
  // Beside its own, now and then one that is unknown and a revision that is not live.
  std::vector<wire::PollRequest> polled = {{.operation = operation_, .revision = revision_}};
  if (prng.Below(4) == 0) polled.push_back({.operation = operation_ + 1000, .revision = 1});
  if (prng.Below(4) == 0) polled.push_back({.operation = operation_, .revision = revision_ + 1});
  const auto args = wire::EncodePoll(polled);
  if (call_.Post(world(), *life_->control,
                 {.command = wire::Command::kQueryPoll, .args = args, .deadline_ns = now() + kQueryNs})) {
    stage_ = Stage::kPolling;
  }
  return false;
}

bool QueryJob::TakePolled() {
  const Call::State state = call_.Look(world(), *life_->control);
  if (state == Call::State::kWaiting) return false;
  if (state == Call::State::kOver) return true;
  stage_ = Stage::kLoading;
  if (!call_.answer().ok()) return false;
  const auto told = wire::DecodePollAnswer(call_.answer().payload.bytes());
  if (!told || told->entries.empty()) {
    world().history().Violation("a client cannot read the answer to its poll");
    return true;
  }
  const wire::PollEntry& entry = told->entries.front();
  switch (static_cast<wire::TicketState>(entry.state)) {
    case wire::TicketState::kLoading: return false;
    case wire::TicketState::kReady:
      if (header_.mode == wire::QueryMode::kPrepare) return world().prng().Below(2) == 0 ? Claim() : HandOver();
      return Found(entry.lease, entry.found, told->boundaries.first(entry.boundary_count));
    default: return true;
  }
}

// What was prepared is taken over. When rings are full it is polled again first.
bool QueryJob::Claim() {
  const auto args = wire::EncodeClaim({.consumer_key_hi = header_.consumer_key_hi,
                                       .consumer_key_lo = header_.consumer_key_lo,
                                       .operation = operation_,
                                       .revision = revision_,
                                       .reserved = 0});
  if (call_.Post(world(), *life_->control,
                 {.command = wire::Command::kQueryClaim, .args = args, .deadline_ns = now() + kQueryNs})) {
    stage_ = Stage::kClaiming;
  }
  return false;
}

// Another process claims it: one of its engine, or, by mistake, one of another engine.
bool QueryJob::HandOver() {
  Prng& prng = world().prng();
  Order order;
  order.kind = Order::Kind::kClaim;
  order.life = life_->number;
  order.hashes = hashes_;
  order.header = header_;
  order.operation = prng.Below(4) == 0 ? 0 : operation_;
  order.revision = prng.Below(16) == 0 ? revision_ + 1 : revision_;
  const std::size_t to = prng.Below(16) == 0 ? prng.Below(world().shape().engines.size()) : process_.engine();
  EngineState& engine = world().engine(to);
  engine.mail[prng.Below(engine.mail.size())].push_back(std::move(order));
  return true;
}

bool QueryJob::TakeCancelled() {
  if (call_.Look(world(), *life_->control) == Call::State::kWaiting) return false;
  return true;
}

bool QueryJob::Decide() {
  const std::uint64_t what = world().prng().Below(32);
  if (world().settling() || what == 0) {  // the request was withdrawn
    (void)life_->control->rings->PostNeverLost(wire::Command::kRelease,
                                               static_cast<std::uint64_t>(wire::ReleaseKind::kLease), lease_, {});
    return true;
  }
  if (what == 1) return true;  // forgotten: the lease ends by itself
  if (what < 4) {
    stage_ = Stage::kStart;  // asked again
    return false;
  }
  return what < 12 ? Begin() : false;
}

std::uint32_t QueryJob::ChooseBoundary() {
  Prng& prng = world().prng();
  if (boundaries_.empty()) {
    return static_cast<std::uint32_t>(prng.Below(4) == 0 ? 1 + prng.Below(found_) : found_);
  }
  if (prng.Below(32) == 0) return static_cast<std::uint32_t>(1 + prng.Below(found_));  // none perhaps: refused
  return prng.Below(3) == 0 ? boundaries_[prng.Below(boundaries_.size())] : found_;
}

// As the plan will name them.
std::vector<BlockName> QueryJob::BlocksUpTo(std::uint32_t boundary) const {
  std::vector<BlockName> blocks;
  if (header_.mode == wire::QueryMode::kSelected && process_.rules().single()) {
    for (std::uint32_t i = 0; i < boundary; ++i) blocks.push_back({.group = 0, .hash = hashes_[i]});
    return blocks;
  }
  for (const Place place : process_.rules().Needs(header_.prefix_blocks, boundary)) {
    blocks.push_back({.group = place.group, .hash = hashes_[place.index]});
  }
  return blocks;
}

// The grant travels to the ranks with the engine's own messages, before the Manager has answered.
bool QueryJob::Begin() {
  EngineState& engine = world().engine(process_.engine());
  const std::uint32_t boundary = ChooseBoundary();
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < engine.shape.world; ++rank) ranks.push_back(rank);
  const std::uint64_t grant = engine.next_grant;
  const auto args = wire::EncodeBegin(boundary, ranks);
  if (!call_.Post(world(), *life_->control,
                  {.command = wire::Command::kRestoreBegin,
                   .scalar0 = lease_,
                   .scalar1 = grant,
                   .args = args,
                   .deadline_ns = now() + kBeginNs})) {
    return false;
  }
  grant_ = engine.next_grant++;
  process_.Begun(life_->number, grant);
  Order order;
  order.kind = Order::Kind::kRestore;
  order.life = life_->number;
  order.grant = grant;
  order.blocks = BlocksUpTo(boundary);
  for (std::uint32_t other = 0; other < engine.shape.processes(); ++other) {
    if (engine.shape.IsWorker(other)) engine.mail[other].push_back(order);
  }
  stage_ = Stage::kBeginning;
  return false;
}

bool QueryJob::TakeBegun() { return call_.Look(world(), *life_->control) != Call::State::kWaiting; }

}  // namespace orbitkv::sim
