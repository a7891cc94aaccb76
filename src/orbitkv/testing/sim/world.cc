#include "orbitkv/testing/sim/world.h"

#include <algorithm>

namespace orbitkv::sim {
namespace {

// Everybody together needs far fewer steps than this to finish what is in hand.
constexpr int kSettleRounds = 4000;
// Steps between two looks at what recovery would make of the tables.
constexpr std::uint64_t kCompareEvery = 97;

}  // namespace

void Coverage::Add(const Coverage& other) {
  steps += other.steps;
  restored += other.restored;
  restored_groups += other.restored_groups;
  restored_earlier += other.restored_earlier;
  mismatched += other.mismatched;
  false_alarms += other.false_alarms;
  late_answers += other.late_answers;
  loading += other.loading;
  loads_ok += other.loads_ok;
  loads_bad += other.loads_bad;
  claims += other.claims;
  claims_by_others += other.claims_by_others;
  unregistered += other.unregistered;
  detached_holding += other.detached_holding;
  drained += other.drained;
  power_losses += other.power_losses;
  lost_sectors += other.lost_sectors;
  recoveries += other.recoveries;
  died_storing += other.died_storing;
  died_recovering += other.died_recovering;
  adopted += other.adopted;
  unfinished += other.unfinished;
  torn += other.torn;
  held += other.held;
  earlier_died += other.earlier_died;
  earlier_drained += other.earlier_drained;
  too_late += other.too_late;
  saves_ok += other.saves_ok;
  saves_bad += other.saves_bad;
  evicted_unsaved += other.evicted_unsaved;
  given_up += other.given_up;
  process_crashes += other.process_crashes;
  manager_crashes += other.manager_crashes;
  disconnects += other.disconnects;
  damages += other.damages;
  evictions += other.evictions;
  revoked += other.revoked;
  late_grants += other.late_grants;
  grants += other.grants;
  over_budget += other.over_budget;
  stored += other.stored;
  already_there += other.already_there;
  not_now += other.not_now;
  verified_different += other.verified_different;
}

World::World(std::uint64_t seed, std::size_t history_lines)
    : shape_(MakeShape(seed)), prng_(seed), history_(history_lines), oracle_(shape_, history_) {
  for (const EngineShape& engine : shape_.engines) {
    EngineState& state = engines_.emplace_back();
    state.shape = engine;
    state.mail.resize(engine.processes());
  }
  memory_ = std::make_unique<HostMemory>(shape_.core(0).shape());
  if (shape_.disk) disk_ = std::make_unique<testing::VirtualDisk>(shape_.disk->bytes());
  StartManager();
  for (std::size_t engine = 0; engine < engines_.size(); ++engine) {
    for (std::uint32_t index = 0; index < engines_[engine].shape.processes(); ++index) {
      processes_.push_back(std::make_unique<Process>(*this, engine, index));
    }
  }
}

World::~World() = default;

void World::Run() {
  for (std::uint64_t step = 0; step < shape_.steps && !failed(); ++step) Step();
  if (!failed()) Settle();
  if (!failed()) Leave();
  if (manager_ != nullptr) CountLife();
}

void World::Step() {
  try {
    StepOnce();
  } catch (const ManagerDied&) {
    // In the middle of what it did, and of what the model was told of it.
    ++coverage_.died_storing;
    CrashManager();
  }
}

void World::StepOnce() {
  ++coverage_.steps;
  Advance(1000);
  const std::uint64_t what = prng_.Below(100);
  if (what < 40) {
    processes_[prng_.Below(processes_.size())]->Step();
  } else if (what < 88) {
    ManagerStep();
  } else if (what < 94) {
    network_.Deliver(prng_, manager_.get());
  } else if (what < 98) {
    PassTime();
  } else if (shape_.backed && disk_ == nullptr && manager_ != nullptr && !settling_) {
    TendStore();
  }
  if (!settling_ && prng_.Below(1000) < shape_.faults) Fault();
  if (!settling_ && dies_while_shared_ && manager_ != nullptr && manager_->memory()->shared > 0) {
    dies_while_shared_ = false;
    CrashManager();
  }
  if (manager_ == nullptr) {
    if (settling_ || prng_.Below(20) == 0) StartManager();
    return;
  }
  network_.Take(manager_->number(), manager_->TakeReplies());
  oracle_.Check();
  if (coverage_.steps % kCompareEvery == 0) oracle_.CheckRecovery(now_ns_);
}

void World::ManagerStep() {
  if (manager_ == nullptr) return;
  const std::uint64_t what = prng_.Below(20);
  if (what == 18) {
    manager_->TendEarlier();
  } else if (what == 19) {
    manager_->Scrub(now_ns_);
  } else if (what == 0 && manager_->has_verifications()) {
    manager_->Verify(now_ns_);
  } else if (what == 1) {
    manager_->Work(now_ns_);
  } else if (what == 2) {
    manager_->Read(now_ns_);
    manager_->TakeLoaded(now_ns_);
    manager_->TakeSaved(now_ns_);
  } else if (what < 7) {
    if (manager_->has_events()) manager_->TakeEvent(now_ns_);
  } else if (manager_->session_count() > 0) {
    manager_->Turn(prng_.Below(manager_->session_count()), now_ns_);
  }
}

void World::Advance(std::uint64_t ns) {
  now_ns_ += ns;
  history_.SetTime(now_ns_ - kEpochNs);
  if (manager_ != nullptr) manager_->TickIfDue(now_ns_);
}

void World::PassTime() {
  const std::uint64_t kind = prng_.Below(64);
  if (kind == 0) return Advance(prng_.Below(15 * kSecond));
  if (kind < 3) return Advance(prng_.Below(kSecond));
  if (kind < 12) return Advance(prng_.Below(40 * kMs));
  Advance(prng_.Below(kMs / 5));
}

// ---- faults ---------------------------------------------------------------------------------------------------------

void World::Fault() {
  Process& process = *processes_[prng_.Below(processes_.size())];
  const std::uint64_t what = prng_.Below(16);
  if (what < 2) {
    if (!shape_.manager_crashes || manager_ == nullptr) return;
    if (what == 0) return disk_ != nullptr && prng_.Below(4) == 0 ? PowerLoss() : CrashManager();
    if (shape_.survives && prng_.Below(2) == 0) {
      dies_while_shared_ = true;
    } else {
      memory_->table().DieAfter(prng_.Below(60));
    }
  } else if (what < 8) {
    if (process.alive()) {
      process.Crash();
      ++coverage_.process_crashes;
    } else {
      process.Start();
    }
  } else if (what < 11) {
    process.Disconnect();
    ++coverage_.disconnects;
  } else if (shape_.corrupting && manager_ != nullptr) {
    Damage();
  }
  for (const auto& dead : processes_) {
    if (!dead->alive() && prng_.Below(4) == 0) dead->Start();
  }
}

void World::StartManager() {
  if (!shape_.survives && next_life_ > 1) memory_ = std::make_unique<HostMemory>(shape_.core(0).shape());
  // It may die again before it is there.
  const bool dies = shape_.survives && !settling_ && next_life_ > 1 && prng_.Below(4) == 0;
  memory_->table().DieAfter(dies ? std::optional(prng_.Below(200)) : std::nullopt);
  try {
    manager_ = std::make_unique<ManagerLife>(
        shape_, next_life_++,
        ManagerLife::Surroundings{.memory = *memory_,
                                  .store = store_,
                                  .disk = disk_.get(),
                                  .prng = &prng_,
                                  .alive = [this](std::int32_t process) { return IsAlive(process); }},
        oracle_, history_, now_ns_);
  } catch (const ManagerDied&) {
    ++coverage_.died_recovering;
    history_.Note("manager: dies before it is there", {{"life", next_life_ - 1}});
    return;
  }
  memory_->table().DieAfter(std::nullopt);
  manager_->source().set_delay([this](const service::ComponentKey&) { return prng_.Below(150 * kMs); });
  manager_->source().set_fault([this](const service::ComponentKey&) {
    using Fault = testing::RamSource::Fault;
    constexpr Fault kFaults[] = {Fault::kShort, Fault::kFailed, Fault::kWrongBytes};
    const std::uint64_t what = prng_.Below(24);
    return what < std::size(kFaults) ? kFaults[what] : Fault::kNone;
  });
  manager_->source().set_save_delay([this](const service::ComponentKey&) { return prng_.Below(80 * kMs); });
  manager_->source().set_save_fault([this](const service::ComponentKey&) {
    const std::uint64_t what = prng_.Below(24);
    return what == 0   ? service::SaveResult::kFailed
           : what == 1 ? service::SaveResult::kNoRoom
                       : service::SaveResult::kSaved;
  });
  const service::RecoveryReport& report = manager_->report();
  history_.Note("manager: starts", {{"life", manager_->number()},
                                    {"adopted", report.adopted},
                                    {"held", report.held_slots},
                                    {"damaged", report.damaged}});
  if (report.life > 1) ++coverage_.recoveries;
  coverage_.adopted += report.adopted;
  coverage_.unfinished += report.unfinished;
  coverage_.torn += report.damaged;
  coverage_.held += report.held_slots;
  oracle_.StartLife(*manager_);
}

bool World::IsAlive(std::int32_t process) const {
  return std::ranges::any_of(processes_, [process](const auto& one) {
    return one->alive() && one->number() == static_cast<std::uint64_t>(process);
  });
}

void World::CrashManager() {
  history_.Note("manager: dies", {{"life", manager_->number()}});
  ++coverage_.manager_crashes;
  CountLife();
  network_.ManagerGone(manager_->number());
  oracle_.EndLife();
  manager_.reset();
  memory_->table().DieAfter(std::nullopt);
}

// The host goes down: everybody dies, memory is lost, and of what was not synced any part.
void World::PowerLoss() {
  for (const auto& process : processes_) {
    if (process->alive()) process->Crash();
  }
  CrashManager();
  memory_ = std::make_unique<HostMemory>(shape_.core(0).shape());
  ++coverage_.power_losses;
  coverage_.lost_sectors += disk_->unsynced().size();
  history_.Note("fault: the power goes", {{"unsynced", disk_->unsynced().size()}});
  disk_->PowerLoss([this](std::size_t) { return prng_.Below(2) == 0; });
  oracle_.PowerLost();
}

// A stray write into a slot that holds a block.
void World::Damage() {
  const std::uint64_t pick = prng_.Next();
  const auto read = prng_.Below(2) == 0 ? oracle_.AnyRead(pick) : std::nullopt;
  const auto generation = read ? read : oracle_.AnyStored(pick);
  // Damaged twice at one byte, it would be whole again.
  if (!generation || !manager_->memory()->damaged.insert(*generation).second) return;
  ++coverage_.damages;
  const std::uint64_t at = oracle_.OffsetOf(*generation) + prng_.Below(96);
  manager_->memory()->bytes()[at] ^= std::byte{0x40};
  history_.Note("fault: damages a slot", {{"generation", *generation}, {"at", at}});
}

// Blocks are forgotten behind the pool, without regard to what the Manager does. Where it saves none itself, they come
// there from elsewhere.
void World::TendStore() {
  const bool saves = shape_.limits.save_policy != service::SavePolicy::kOff;
  if (saves && prng_.Below(4) != 0) return;
  if (saves || prng_.Below(4) == 0) {
    if (const Saved* saved = store_.Any(prng_.Next()); saved != nullptr) {
      history_.Note("store: forgets", {{"write", saved->write}});
      const service::ComponentKey key = saved->key;
      manager_->source().Erase(key);
      store_.Erase(key);
    }
    return;
  }
  for (int i = 0; i < 4; ++i) {
    const auto generation = oracle_.AnyStored(prng_.Next());
    if (!generation) return;
    const Saved& saved = store_.Save(oracle_.Describe(*generation), oracle_.GroupOf(*generation));
    history_.Note("store: saves", {{"generation", *generation}, {"write", saved.write}});
    manager_->source().Put(saved.key, saved.record, saved.bytes);
  }
}

void World::CountLife() {
  const service::Counters& service = manager_->service().counters();
  coverage_.evictions += manager_->cache().counters().evictions;
  coverage_.revoked += service.leases_revoked;
  coverage_.late_grants += service.grants_late;
  coverage_.grants += service.grants;
  coverage_.over_budget += service.query_blocks_over_budget + service.blocks_over_budget;
  coverage_.stored += service.blocks_stored;
  coverage_.already_there += service.blocks_already_there;
  coverage_.not_now += service.blocks_not_now;
  coverage_.verified_different += service.verified_different;
  coverage_.loads_ok += service.loads_ok;
  coverage_.loads_bad += service.loads_short + service.loads_failed + service.loads_mismatch;
  coverage_.claims += service.claims;
  coverage_.too_late += service.tickets_late;
  coverage_.saves_ok += service.saves_ok;
  coverage_.saves_bad += service.saves_failed + service.saves_no_room;
  coverage_.evicted_unsaved += manager_->cache().counters().evicted_unsaved;
  coverage_.claims_by_others += oracle_.claims_by_others();
  coverage_.unregistered += manager_->counts().unregistered;
  coverage_.detached_holding += manager_->counts().detached_holding;
  coverage_.drained += manager_->counts().drained;
  coverage_.earlier_died += manager_->counts().earlier_died;
  coverage_.earlier_drained += manager_->counts().earlier_drained;
}

std::vector<state::BlockHash> World::AnyChain(std::size_t engine) {
  if (prng_.Below(2) == 0 && !engines_[engine].last_saved.empty()) return engines_[engine].last_saved;
  std::size_t length = 1 + prng_.Below(shape_.longest);
  if (prng_.Below(64) == 0) length = 130 + prng_.Below(40);  // more than one slot of the arena takes
  const std::uint64_t branch_at = prng_.Below(3) == 0 ? prng_.Below(length) : length;
  const std::uint64_t family = prng_.Below(shape_.families);
  const std::uint64_t branch = 1 + prng_.Below(3);
  return MakeChain(family, branch, branch_at, length);
}

// ---- the end --------------------------------------------------------------------------------------------------------

bool World::Settled() {
  return network_.idle() && !manager_->has_events() && !manager_->has_verifications() && !manager_->stepping() &&
         !manager_->loading() && !manager_->tending() &&
         std::ranges::all_of(processes_, [](const auto& process) { return process->settled(); });
}

// Everybody finishes; whoever waits for something gets it, or its deadline.
void World::Settle() {
  settling_ = true;
  memory_->table().DieAfter(std::nullopt);
  history_.Note("world: settles");
  if (manager_ == nullptr) StartManager();
  for (int round = 0; round < kSettleRounds && !failed() && !Settled(); ++round) {
    for (int i = 0; i < 16; ++i) Step();
  }
  if (failed()) return;
  if (!Settled()) {
    std::uint64_t jobs = 0;
    std::uint64_t pending = 0;
    for (const auto& process : processes_) {
      jobs += process->job_count();
      pending += process->pending();
    }
    history_.Violation("something is never answered or never ends",
                       {{"jobs", jobs}, {"pending", pending}, {"network_idle", network_.idle() ? 1U : 0U}});
    return;
  }
  Advance(shape_.limits.remembered_ns + kSecond);
  // A round over the pool may be due since, and put blocks in line.
  for (int round = 0; round < kSettleRounds && !failed() && !Settled(); ++round) Step();
  if (!failed()) oracle_.CheckQuiet(false);
}

void World::Leave() {
  history_.Note("world: leaves");
  for (const auto& process : processes_) {
    if (process->alive()) process->Crash();
  }
  for (int i = 0; i < 100'000 && !(network_.idle() && !manager_->has_events()); ++i) {
    network_.Deliver(prng_, manager_.get());
    while (manager_->has_events()) manager_->TakeEvent(now_ns_);
    network_.Take(manager_->number(), manager_->TakeReplies());
  }
  oracle_.Check();
  oracle_.CheckQuiet(true);
}

}  // namespace orbitkv::sim
