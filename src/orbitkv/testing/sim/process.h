// One simulated engine process: its connection to the Manager, and the work it has in hand.
//
// It speaks the real client's protocol through the real client's rings: a control session at once, a publish session at
// the first save; what must not be lost is sent again until it is acknowledged; what comes late is given back; after a
// lost connection it finishes its copies, connects again and reports the old sessions drained.
//
// Owns: its sessions, with the old ones that are to be reported, and its jobs. Refers to the world.
// Threads: one. Blocks: no. Units: virtual nanoseconds.
// Errors: what a Manager may answer ends the job; what it may not is a violation.
// Invariant: a dead process holds nothing and does nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "orbitkv/channel/client_rings.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/testing/sim/manager.h"
#include "orbitkv/testing/sim/rules.h"
#include "orbitkv/testing/sim/shape.h"
#include "orbitkv/wire/query.h"

namespace orbitkv::sim {

class World;
class Process;

// The client's end of one session.
struct ClientEnd {
  SessionId id;
  std::uint64_t token = 0;
  os::Mapping mapping;
  std::unique_ptr<channel::ClientRings> rings;
  bool registered = false;
};

// One connection to one Manager life. Jobs keep it until they have finished with its memory.
struct ClientLife {
  std::uint64_t number = 0;
  std::shared_ptr<PoolMemory> memory;
  std::optional<ClientEnd> control;
  std::optional<ClientEnd> publish;
  std::uint64_t first_generation = 0;  // of slots that were given out in this life
  std::uint64_t next_operation = 1;
  bool lost = false;
};

struct BlockName {
  std::uint32_t group = 0;
  state::BlockHash hash{};
};

// What a process tells the others of its engine.
struct Order {
  enum class Kind : std::uint8_t { kPublish, kRestore, kClaim };
  Kind kind = Kind::kPublish;
  std::uint64_t life = 0;  // of the grant or the preparation
  // kRestore
  std::uint64_t grant = 0;
  std::vector<BlockName> blocks;  // in the order of the plan
  // kPublish: a group's blocks from the prompt's start; those before `first` are not saved. kClaim: what was asked for.
  std::vector<state::BlockHash> hashes;
  std::uint32_t group = 0;
  std::uint32_t first = 0;
  // kClaim
  wire::QueryHeader header;
  std::uint64_t operation = 0;
  std::uint32_t revision = 0;
};

class Job {
 public:
  Job(Process& process, std::shared_ptr<ClientLife> life) : process_(process), life_(std::move(life)) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  // One piece of work, or a look at what is awaited. True when the job is over.
  virtual bool Advance() = 0;

 protected:
  World& world() const;
  std::uint64_t now() const;
  // A copy makes no progress this time.
  bool CopyRests() const;

  Process& process_;
  const std::shared_ptr<ClientLife> life_;
};

class Process {
 public:
  Process(World& world, std::size_t engine, std::uint32_t index);

  World& world() { return world_; }
  std::uint64_t number() const { return number_; }
  std::size_t engine() const { return engine_; }
  std::uint32_t index() const { return index_; }
  const EngineShape& shape() const { return shape_; }
  const service::Registration& registration() const { return registration_; }
  const state::Digest& space() const { return space_; }  // of a worker
  const Rules& rules() const { return rules_; }
  bool alive() const { return alive_; }

  // One random piece of its work.
  void Step();
  void Receive(std::uint64_t life, const Reply& reply);
  // The process dies between two of its steps; Start begins a new one in its place.
  void Crash();
  void Start();
  // Its connection breaks while it lives.
  void Disconnect();

  // For jobs.
  void OpenPublish(ClientLife& life);
  void TakeLate(ClientLife& life, const channel::LateAnswer& late);
  void Begun(std::uint64_t life, std::uint64_t grant) { begun_.emplace_back(life, grant); }

  // Nothing is awaited, nothing is to be told.
  bool settled() const;
  std::size_t job_count() const { return jobs_.size(); }
  std::size_t pending() const;

 private:
  ClientEnd Open(ClientLife& life, service::Purpose purpose);
  void Connect();
  void Register(const ClientEnd& end, std::uint64_t life);
  void Unregister();
  void MarkLost();
  void TendLink();
  void Pump();
  void ReadMail();
  void StartJob();
  void StartSaving();
  void StartPublish(const Order& order);
  void ReleaseBegun(bool all);
  void AdvanceJob();

  World& world_;
  const std::size_t engine_;
  const std::uint32_t index_;
  const EngineShape& shape_;
  const service::Registration registration_;
  const Rules rules_;
  state::Digest space_{};

  std::uint64_t number_ = 0;  // of this process; a new one after a crash
  bool alive_ = false;
  std::shared_ptr<ClientLife> life_;
  struct OldSession {
    std::uint64_t life;
    std::uint64_t token;
  };
  std::vector<OldSession> old_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> begun_;  // life, grant
};

}  // namespace orbitkv::sim
