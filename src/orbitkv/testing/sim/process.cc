#include "orbitkv/testing/sim/process.h"

#include <algorithm>
#include <atomic>

#include "orbitkv/base/check.h"
#include "orbitkv/testing/sim/jobs.h"
#include "orbitkv/testing/sim/world.h"

namespace orbitkv::sim {
namespace {

constexpr std::size_t kMaxJobs = 6;
// The dispatcher never sleeps here, so that no doorbell is rung.
const std::atomic<std::uint32_t> kAwake{0};

}  // namespace

World& Job::world() const { return process_.world(); }
std::uint64_t Job::now() const { return process_.world().now(); }
bool Job::CopyRests() const { return !world().settling() && world().prng().Below(world().shape().copy_turns) != 0; }

Process::Process(World& world, std::size_t engine, std::uint32_t index)
    : world_(world),
      engine_(engine),
      index_(index),
      shape_(world.engine(engine).shape),
      registration_(shape_.RegistrationOf(index)),
      rules_(shape_.groups()) {
  if (registration_.representation) {
    space_ = state::NamespaceDigest(registration_.computation, *registration_.representation, registration_.groups,
                                    registration_.shard_count);
  }
  Start();
}

void Process::Start() {
  number_ = world_.NextNumber();
  alive_ = true;
  world_.history().Note("process: starts", {{"process", number_}, {"engine", engine_}, {"index", index_}});
}

void Process::Crash() {
  world_.history().Note("process: dies", {{"process", number_}});
  world_.network().Kill(this);
  jobs_.clear();
  life_.reset();
  old_.clear();
  begun_.clear();
  world_.engine(engine_).mail[index_].clear();
  alive_ = false;
}

// ---- the connection -------------------------------------------------------------------------------------------------

ClientEnd Process::Open(ClientLife& life, service::Purpose purpose) {
  ClientEnd end;
  end.token = world_.NextNumber();
  const channel::ServerSession& server =
      world_.manager()->Connect(purpose, end.token, shape_.abi, static_cast<std::int32_t>(number_));
  end.id = server.id();
  const wire::SessionGeometry& geometry = world_.shape().geometry;
  auto mapping = os::Mapping::Map(server.session_fd(), geometry.total_bytes(), os::Access::kReadWrite);
  ORBITKV_CHECK(mapping.has_value());
  end.mapping = std::move(*mapping);
  channel::ClientRings::Options options;
  options.geometry = geometry;
  options.session = end.id;
  options.abi = shape_.abi;
  options.late_answer = [this, &life](const channel::LateAnswer& late) { TakeLate(life, late); };
  end.rings = std::make_unique<channel::ClientRings>(options, end.mapping.data(), &kAwake);
  world_.network().Open(life.number, end.id, this);
  world_.history().Note("process: connects", {{"process", number_},
                                              {"session", end.id.value()},
                                              {"publish", purpose == service::Purpose::kPublish ? 1U : 0U}});
  return end;
}

void Process::Connect() {
  ManagerLife* manager = world_.manager();
  if (manager == nullptr) return;
  life_ = std::make_shared<ClientLife>();
  life_->number = manager->number();
  life_->memory = manager->memory();
  life_->first_generation = manager->first_generation();
  life_->control = Open(*life_, service::Purpose::kControl);
  for (const OldSession& old : old_) {
    world_.network().Send(life_->number, {.kind = Frame::Kind::kDrained,
                                          .session = life_->control->id,
                                          .registration = {},
                                          .token = old.token,
                                          .life = old.life});
  }
  Register(*life_->control, life_->number);
}

void Process::Register(const ClientEnd& end, std::uint64_t life) {
  world_.network().Send(
      life, {.kind = Frame::Kind::kRegister, .session = end.id, .registration = registration_, .token = 0, .life = 0});
}

void Process::OpenPublish(ClientLife& life) {
  if (life.lost || life.publish || world_.manager() == nullptr || world_.manager()->number() != life.number) return;
  life.publish = Open(life, service::Purpose::kPublish);
  Register(*life.publish, life.number);
}

void Process::Receive(std::uint64_t life, const Reply& reply) {
  if (!alive_ || life_ == nullptr || life_->number != life) return;
  switch (reply.kind) {
    case Reply::Kind::kRegistered:
      for (auto* end : {&life_->control, &life_->publish}) {
        if (*end && (*end)->id == reply.session) (*end)->registered = true;
      }
      break;
    case Reply::Kind::kUnregistered:
      for (auto* end : {&life_->control, &life_->publish}) {
        if (*end && (*end)->id == reply.session) Register(**end, life);
      }
      break;
    case Reply::Kind::kRefused:
    case Reply::Kind::kClosed: MarkLost(); break;
    case Reply::Kind::kDone:
      // Replies come in the order of the reports; what is not acknowledged is reported again.
      if (life_->control->id == reply.session && !old_.empty()) old_.erase(old_.begin());
      break;
  }
}

void Process::Disconnect() {
  if (alive_ && life_ != nullptr && !life_->lost) MarkLost();
}

void Process::MarkLost() {
  if (life_->lost) return;
  world_.history().Note("process: has lost its Manager", {{"process", number_}, {"life", life_->number}});
  life_->lost = true;
  begun_.clear();  // they end with the session
  for (auto* end : {&life_->control, &life_->publish}) {
    if (!*end) continue;
    (*end)->rings->Shutdown();
    world_.network().HangUp(life_->number, (*end)->id);
    old_.push_back({life_->number, (*end)->token});
  }
}

void Process::TendLink() {
  if (life_ == nullptr) {
    // At the end only who has something to report connects again.
    if (!world_.settling() || !old_.empty()) Connect();
    if (world_.manager() == nullptr && !world_.shape().survives) old_.clear();
    return;
  }
  if (!life_->lost && !world_.settling() && world_.prng().Below(48) == 0) Unregister();
  // The old memory is let go when the last copy has ended, and only then a new Manager is asked.
  if (life_->lost && life_.use_count() == 1) life_.reset();
}

// An engine that reconfigures itself: it has nothing in hand and registers again.
void Process::Unregister() {
  if (!jobs_.empty() || pending() > 0 || !life_->control->registered) return;
  const bool both = world_.prng().Below(2) == 0;
  for (auto* end : {&life_->control, &life_->publish}) {
    if (!*end || !(*end)->registered || (end == &life_->publish && !both)) continue;
    (*end)->registered = false;
    world_.history().Note("process: unregisters", {{"process", number_}, {"session", (*end)->id.value()}});
    world_.network().Send(
        life_->number,
        {.kind = Frame::Kind::kUnregister, .session = (*end)->id, .registration = {}, .token = 0, .life = 0});
  }
}

void Process::TakeLate(ClientLife& life, const channel::LateAnswer& late) {
  world_.history().Note(
      "process: a late answer",
      {{"process", number_}, {"command", static_cast<std::uint64_t>(late.command)}, {"told0", late.answer->scalar0}});
  ++world_.coverage().late_answers;
  if (late.command == wire::Command::kPublishReserve && late.answer->scalar0 != 0) {
    (void)life.publish->rings->PostNeverLost(wire::Command::kPublishAbort, late.answer->scalar0, 0, {});
  }
  if ((late.command == wire::Command::kQuerySubmit || late.command == wire::Command::kQueryClaim) &&
      late.answer->scalar0 != 0) {
    // Harmless where a later answer has replaced it.
    (void)life.control->rings->PostNeverLost(
        wire::Command::kRelease, static_cast<std::uint64_t>(wire::ReleaseKind::kLease), late.answer->scalar0, {});
  }
}

// ---- its work -------------------------------------------------------------------------------------------------------

void Process::Step() {
  if (!alive_) return;
  switch (world_.prng().Below(8)) {
    case 0: TendLink(); break;
    case 1: Pump(); break;
    case 2: ReadMail(); break;
    case 3: StartJob(); break;
    default:
      for (std::uint64_t times = 1 + world_.prng().Below(4); times > 0; --times) AdvanceJob();
      break;
  }
}

void Process::Pump() {
  if (life_ == nullptr) return;
  for (auto* end : {&life_->control, &life_->publish}) {
    if (*end) (*end)->rings->Pump();
  }
  if (world_.settling() || world_.prng().Below(8) == 0) ReleaseBegun(world_.settling());
}

// Requests that ended in the engine give up their restores, whoever still waits for a plan.
void Process::ReleaseBegun(bool all) {
  while (!begun_.empty()) {
    const auto [life, grant] = begun_.front();
    if (life_ != nullptr && !life_->lost && life_->number == life) {
      const Status kept = life_->control->rings->PostNeverLost(
          wire::Command::kRelease, static_cast<std::uint64_t>(wire::ReleaseKind::kGrant), grant, {});
      if (!kept) return;
    }
    begun_.erase(begun_.begin());
    if (!all) return;
  }
}

void Process::AdvanceJob() {
  if (jobs_.empty()) return;
  const std::size_t at = world_.prng().Below(jobs_.size());
  if (!jobs_[at]->Advance()) return;
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(at));
}

void Process::ReadMail() {
  std::deque<Order>& mail = world_.engine(engine_).mail[index_];
  if (mail.empty() || jobs_.size() >= kMaxJobs + 2) return;
  const Order order = std::move(mail.front());
  mail.pop_front();
  if (life_ == nullptr || life_->lost) return;
  switch (order.kind) {
    case Order::Kind::kPublish:
      if (!world_.settling()) StartPublish(order);
      break;
    case Order::Kind::kRestore:
      if (order.life == life_->number) jobs_.push_back(std::make_unique<RestoreJob>(*this, life_, order));
      break;
    case Order::Kind::kClaim:
      if (order.life == life_->number) jobs_.push_back(std::make_unique<QueryJob>(*this, life_, order));
      break;
  }
}

void Process::StartPublish(const Order& order) { jobs_.push_back(std::make_unique<PublishJob>(*this, life_, order)); }

void Process::StartJob() {
  if (world_.settling() || life_ == nullptr || life_->lost || !life_->control->registered) return;
  if (jobs_.size() >= kMaxJobs) return;
  const std::uint64_t what = world_.prng().Below(16);
  if (what == 0) {
    jobs_.push_back(std::make_unique<PingJob>(*this, life_));
  } else if (shape_.IsWorker(index_) && (what < 8 || !shape_.IsScheduler(index_))) {
    StartSaving();
  } else if (shape_.IsScheduler(index_)) {
    jobs_.push_back(std::make_unique<QueryJob>(*this, life_, world_.NextNumber()));
  }
}

// A prompt's blocks, group by group. What is stored whole is saved from its start, mostly; windows and states where a
// prompt may be taken up again.
void Process::StartSaving() {
  Prng& prng = world_.prng();
  const std::vector<state::BlockHash> prompt = world_.AnyChain(engine_);
  world_.engine(engine_).last_saved = prompt;
  for (std::uint32_t group = 0; group < rules_.groups().size(); ++group) {
    const std::uint32_t ratio = rules_.RatioOf(group);
    Order order;
    order.group = group;
    for (std::size_t end = ratio; end <= prompt.size(); end += ratio) order.hashes.push_back(prompt[end - 1]);
    if (order.hashes.empty() || (group > 0 && prng.Below(16) == 0)) continue;
    if (rules_.groups()[group].kind == state::GroupKind::kFullAttention) {
      order.first = prng.Below(3) == 0 ? static_cast<std::uint32_t>(prng.Below(order.hashes.size())) : 0;
    } else {
      if (prng.Below(3) == 0) order.hashes.resize(1 + prng.Below(order.hashes.size()));
      const auto saved = static_cast<std::uint32_t>(1 + prng.Below(std::min<std::size_t>(order.hashes.size(), 5)));
      order.first = static_cast<std::uint32_t>(order.hashes.size()) - saved;
    }
    StartPublish(order);
    for (std::uint32_t other = 0; other < shape_.processes(); ++other) {
      if (other != index_ && shape_.IsWorker(other) && prng.Below(8) != 0) {
        world_.engine(engine_).mail[other].push_back(order);
      }
    }
  }
}

std::size_t Process::pending() const {
  if (life_ == nullptr || life_->lost) return 0;
  return life_->control->rings->pending() + (life_->publish ? life_->publish->rings->pending() : 0);
}

bool Process::settled() const {
  if (!alive_) return true;
  const bool link_done = (life_ == nullptr || !life_->lost) && old_.empty();
  return jobs_.empty() && link_done && begun_.empty() && pending() == 0 && world_.engine(engine_).mail[index_].empty();
}

}  // namespace orbitkv::sim
