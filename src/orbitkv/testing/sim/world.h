// One simulated host from a seed: a Manager, its engines, what lies between them, and all that goes wrong.
//
// Every step does one thing of one party: a process works, the dispatcher gives a session its turn, something arrives,
// time passes, a fault happens. After each step the oracle looks. At the end everybody finishes, time goes past every
// deadline, and nothing may be left; then everybody leaves, and no session may be left.
//
// Owns: all parties. Threads: one; nothing here waits. Units: virtual nanoseconds from kEpochNs.
// Errors: a broken promise ends the life: history().violation().
// Invariant: everything follows from the seed; two worlds of one seed have the same history.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "orbitkv/base/prng.h"
#include "orbitkv/testing/sim/history.h"
#include "orbitkv/testing/sim/network.h"
#include "orbitkv/testing/sim/oracle.h"
#include "orbitkv/testing/sim/process.h"
#include "orbitkv/testing/sim/shape.h"

namespace orbitkv::sim {

// One engine as its processes see it: what they tell each other without the Manager.
struct EngineState {
  EngineShape shape;
  std::uint64_t next_grant = 1;
  std::vector<std::deque<Order>> mail;  // by process
  std::vector<state::BlockHash> last_saved;
};

// Where lives have been, so that a sweep can show that it went everywhere.
struct Coverage {
  std::uint64_t steps = 0;
  std::uint64_t restored = 0;
  std::uint64_t restored_groups = 0;   // of engines with several cache groups
  std::uint64_t restored_earlier = 0;  // with blocks of earlier lives
  std::uint64_t mismatched = 0;
  std::uint64_t false_alarms = 0;
  std::uint64_t late_answers = 0;
  std::uint64_t loading = 0;
  std::uint64_t loads_ok = 0;
  std::uint64_t loads_bad = 0;
  std::uint64_t claims = 0;
  std::uint64_t claims_by_others = 0;
  std::uint64_t unregistered = 0;
  std::uint64_t detached_holding = 0;
  std::uint64_t drained = 0;
  std::uint64_t power_losses = 0;
  std::uint64_t lost_sectors = 0;
  std::uint64_t recoveries = 0;  // lives that took over what was there
  std::uint64_t died_storing = 0;
  std::uint64_t died_recovering = 0;
  std::uint64_t adopted = 0;
  std::uint64_t unfinished = 0;
  std::uint64_t torn = 0;
  std::uint64_t held = 0;
  std::uint64_t earlier_died = 0;
  std::uint64_t earlier_drained = 0;
  std::uint64_t too_late = 0;
  std::uint64_t saves_ok = 0;
  std::uint64_t saves_bad = 0;
  std::uint64_t evicted_unsaved = 0;
  std::uint64_t given_up = 0;
  std::uint64_t process_crashes = 0;
  std::uint64_t manager_crashes = 0;
  std::uint64_t disconnects = 0;
  std::uint64_t damages = 0;
  std::uint64_t evictions = 0;
  std::uint64_t revoked = 0;
  std::uint64_t late_grants = 0;
  std::uint64_t grants = 0;
  std::uint64_t over_budget = 0;
  std::uint64_t stored = 0;
  std::uint64_t already_there = 0;
  std::uint64_t not_now = 0;
  std::uint64_t verified_different = 0;

  void Add(const Coverage& other);
};

class World {
 public:
  World(std::uint64_t seed, std::size_t history_lines);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The whole life, or up to the first violation.
  void Run();

  std::uint64_t now() const { return now_ns_; }
  Prng& prng() { return prng_; }
  const Shape& shape() const { return shape_; }
  History& history() { return history_; }
  const History& history() const { return history_; }
  Oracle& oracle() { return oracle_; }
  Network& network() { return network_; }
  ManagerLife* manager() { return manager_.get(); }
  EngineState& engine(std::size_t index) { return engines_[index]; }
  Coverage& coverage() { return coverage_; }
  bool settling() const { return settling_; }
  std::uint64_t NextNumber() { return next_number_++; }
  // A prompt of this engine: often one that it has just saved, or one that shares its beginning with others.
  std::vector<state::BlockHash> AnyChain(std::size_t engine);

 private:
  bool failed() const { return history_.violation().has_value(); }
  void Step();
  void StepOnce();
  void ManagerStep();
  bool IsAlive(std::int32_t process) const;
  void Fault();
  void StartManager();
  void CrashManager();
  void PowerLoss();
  void Damage();
  void TendStore();
  void PassTime();
  void Advance(std::uint64_t ns);
  void CountLife();
  void Settle();
  bool Settled();
  void Leave();

  const Shape shape_;
  Prng prng_;
  History history_;
  Oracle oracle_;
  Store store_;
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<testing::VirtualDisk> disk_;
  Network network_;
  std::uint64_t now_ns_ = kEpochNs;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_life_ = 1;
  bool settling_ = false;
  bool dies_while_shared_ = false;  // the Manager, once two processes touch one slot
  std::vector<EngineState> engines_;
  std::unique_ptr<ManagerLife> manager_;
  std::vector<std::unique_ptr<Process>> processes_;
  Coverage coverage_;
};

}  // namespace orbitkv::sim
