// One life of a simulated Manager: the real pool, cache, service, command decoding and session rings, and around them
// what the dispatcher's, bootstrap's and verifier's threads do, one piece for each call.
//
// A client connects and gets its session at once; that the dispatcher learns of it, as of frames, hang-ups and deaths,
// is an event that waits until TakeEvent. Requests lie in the session's ring until Turn.
//
// Owns: everything of this life but its memory, which clients keep and the next life may find. Tells the oracle what it
// decides. Threads: one. Blocks: no. Units: virtual nanoseconds. Errors: ManagerDied out of whatever stores into the
// tables, when they say so: the life is over then, as it is. What
//         needs memory only fails the simulation through ORBITKV_CHECK.
// Invariant: a life that is destroyed has answered nothing more; what lies in its rings is lost.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "orbitkv/channel/server_session.h"
#include "orbitkv/manager/session_turn.h"
#include "orbitkv/service/core_state.h"
#include "orbitkv/service/service.h"
#include "orbitkv/testing/ram_source.h"
#include "orbitkv/testing/sim/disk.h"
#include "orbitkv/testing/sim/history.h"
#include "orbitkv/testing/sim/host_memory.h"
#include "orbitkv/testing/sim/shape.h"
#include "orbitkv/testing/sim/store.h"

namespace orbitkv::sim {

class Oracle;

// A lifecycle frame on a session's socket, or what the bootstrap thread sees of that socket.
struct Frame {
  enum class Kind : std::uint8_t { kOpened, kRegister, kUnregister, kDrained, kHungUp, kDied };
  Kind kind = Kind::kOpened;
  SessionId session{};
  service::Registration registration{};  // kRegister
  std::uint64_t token = 0;               // kDrained, with the life it is about
  std::uint64_t life = 0;
};

// What goes back: the reply to a frame, or the end of the connection.
struct Reply {
  enum class Kind : std::uint8_t { kRegistered, kUnregistered, kRefused, kDone, kClosed };
  Kind kind = Kind::kDone;
  SessionId session{};
  service::RegisterOutcome outcome{};
};

// Paths of a life that its service does not count.
struct LifeCounts {
  std::uint64_t unregistered = 0;
  std::uint64_t earlier_died = 0;      // sessions of earlier lives whose processes ended
  std::uint64_t earlier_drained = 0;   // and those whose processes said that nothing moves any more
  std::uint64_t detached_holding = 0;  // connections lost by processes that may be copying
  std::uint64_t drained = 0;           // sessions that ended because their client said so
};

// Everything about one request, kept until it is answered.
struct SimRequest {
  wire::Command command = wire::Command::kPing;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  std::span<const std::byte> args;  // the session keeps them until the answer
  bool stepped = false;             // it took several turns: parts of its answer are older than others
  std::size_t decided = 0;          // entries of a commit whose outcome the model knows
};

class ManagerLife {
 public:
  // What outlives it. store: what earlier lives have saved; this one loads from it. alive: whether a process lives.
  struct Surroundings {
    HostMemory& memory;
    Store& store;
    testing::VirtualDisk* disk = nullptr;  // instead of the store, where there is one
    Prng* prng = nullptr;
    std::function<bool(std::int32_t)> alive;
  };
  // Takes over what earlier lives have left. ManagerDied, when the memory says so.
  ManagerLife(const Shape& shape, std::uint64_t number, const Surroundings& around, Oracle& oracle, History& history,
              std::uint64_t now_ns);
  ~ManagerLife();
  ManagerLife(const ManagerLife&) = delete;
  ManagerLife& operator=(const ManagerLife&) = delete;

  std::uint64_t number() const { return number_; }
  const std::shared_ptr<PoolMemory>& memory() const { return memory_; }
  service::Service& service() { return service_; }
  const cache::BlockCache& cache() const { return state_->cache(); }
  // Of slots.
  std::span<const std::byte> table() const;
  std::uint64_t first_generation() const { return wire::FirstGeneration(state_->report().life); }
  const service::RecoveryReport& report() const { return state_->report(); }
  // By the tables.
  std::optional<NamespaceRow> RowOf(const state::Digest& space) const;
  std::span<const std::byte> tables() const { return table_.bytes(); }
  const LifeCounts& counts() const { return counts_; }

  // ---- the bootstrap thread ----
  // A new session; the caller maps its memory.
  const channel::ServerSession& Connect(service::Purpose purpose, std::uint64_t token, std::uint16_t abi,
                                        std::int32_t pid);
  void Post(Frame frame) { events_.push_back(std::move(frame)); }
  std::vector<Reply> TakeReplies() { return std::exchange(replies_, {}); }

  // ---- the dispatcher ----
  bool has_events() const { return !events_.empty(); }
  void TakeEvent(std::uint64_t now_ns);
  std::size_t session_count() const { return sessions_.size(); }
  // One session's turn; index < session_count(). Whether it had something to do.
  bool Turn(std::size_t index, std::uint64_t now_ns);
  void TickIfDue(std::uint64_t now_ns);
  bool stepping() const;

  // ---- loading ----
  testing::RamSource& source() { return source_; }
  // Whether it is behind the pool by now.
  bool Behind(const service::ComponentKey& key) const;
  DiskSource* disk() { return disk_.get(); }
  bool loading() const {
    return service_.HasWork() || (disk_ != nullptr && !disk_->idle()) || source_.reads() + source_.saves() > 0 ||
           !loaded_.empty() || !saved_.empty();
  }
  // A share of the work behind tickets; hands reads and saves to the source.
  void Work(std::uint64_t now_ns);
  // The source does what is due.
  void Read(std::uint64_t now_ns);
  // The dispatcher hears of one read and one save that have ended.
  void TakeLoaded(std::uint64_t now_ns);
  void TakeSaved(std::uint64_t now_ns);

  // ---- earlier lives ----
  // The death of a process of an earlier life is seen, if there is one.
  void TendEarlier();
  // A step of the look through what was taken over.
  void Scrub(std::uint64_t now_ns);
  bool tending() { return service_.gauges().earlier_sessions > 0 || service_.scrubbing() || service_.resaving(); }

  // ---- the verifier ----
  bool has_verifications() const { return !verifying_.empty(); }
  void Verify(std::uint64_t now_ns);

 private:
  struct Session {
    Session(std::unique_ptr<channel::ServerSession> opened, service::Service& service)
        : id(opened->id()), channel(std::move(opened)), turn(service, *channel) {}
    const SessionId id;
    std::unique_ptr<channel::ServerSession> channel;
    manager::SessionTurn turn;
    std::optional<std::uint32_t> row;  // in the session table
    SimRequest request;
  };
  struct TurnHost;

  Session* Find(SessionId id);
  void Opened(const Frame& frame, std::uint64_t now_ns);
  void HungUp(SessionId id, std::uint64_t now_ns);
  void End(SessionId id, std::uint64_t now_ns);
  void Registered(const Frame& frame, std::uint64_t now_ns);
  void Unregistered(const Frame& frame, std::uint64_t now_ns);
  void Drained(const Frame& frame, std::uint64_t now_ns);
  void Close(Session& session, std::uint64_t now_ns);
  void Forget(SessionId id, std::uint64_t now_ns);
  void Keep(const service::SaveRequest& request);
  void LoadFrom(const service::LoadRequest& request, std::uint64_t now_ns);
  Status OpenInService(Session& session, service::Purpose purpose);
  void TakeFreedRows();

  const Shape& shape_;
  Store& store_;
  const std::uint64_t number_;
  Oracle& oracle_;
  History& history_;
  const std::function<bool(std::int32_t)> alive_;
  const std::shared_ptr<PoolMemory> memory_;
  MortalTable& table_;
  testing::RamSource source_;
  std::unique_ptr<DiskSource> disk_;  // or null
  std::map<std::uint64_t, service::LoadRequest> reading_;
  std::map<std::uint64_t, service::SaveRequest> saving_;
  std::vector<testing::RamSource::Done> loaded_;  // ended, not heard of yet
  std::vector<testing::RamSource::Saved> saved_;  // likewise
  const std::unique_ptr<service::CoreState> state_;
  service::Service& service_;
  std::set<std::uint32_t> free_rows_;

  struct Opening {
    std::unique_ptr<channel::ServerSession> channel;
    service::Purpose purpose;
  };
  std::uint64_t next_session_ = 1;
  std::vector<Opening> opening_;  // connected, their event not taken yet
  std::vector<std::unique_ptr<Session>> sessions_;
  std::deque<Frame> events_;
  std::vector<Reply> replies_;
  std::vector<service::VerifyRequest> verifying_;
  LifeCounts counts_;
};

}  // namespace orbitkv::sim
