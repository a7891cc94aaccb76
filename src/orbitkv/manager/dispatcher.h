// The one thread that decides: takes requests from every session's ring and events from other threads, asks the
// service, answers, and sleeps when there is nothing to do.
//
// Each round gives every session one turn (session_turn.h), in turn order. Nothing here waits for a client: answers go
// into its ring or are dropped.
//
// Owns: the channel sessions, the service's state of them, its thread. Refers to core, waiter, bootstrap
//       server, verifier and backing, which outlive it.
// Threads: the On... calls and Post... any; Attach, Start and Stop the owner, Start and Stop idempotent; everything
// else
//          is the dispatcher's own.
// Blocks: Stop, for one round.
// Errors: what is wrong with a request or a frame is answered to its sender.
// Invariant: a session's grants and reserved slots end when its process has died, drained, or hung up holding none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/manager/backing.h"
#include "orbitkv/manager/core.h"
#include "orbitkv/manager/events.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/manager/verifier.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::manager {

class Dispatcher final : public channel::BootstrapEvents {
 public:
  struct Parts {
    Core* core = nullptr;
    channel::DispatcherWaiter* waiter = nullptr;
    Metrics* metrics = nullptr;
    Incarnation incarnation;
    std::function<void(std::uint32_t)> row_freed{};  // of a session of an earlier life
  };

  explicit Dispatcher(const Parts& parts);
  ~Dispatcher() override;
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // Before Start.
  void Attach(channel::BootstrapServer* server, Verifier* verifier, Backing* backing);
  Status Start();
  // Answers what has arrived, then ends the thread.
  void Stop();

  void OnOpened(std::unique_ptr<channel::ServerSession> session) override;
  void OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind, std::vector<std::byte> payload) override;
  void OnHangup(SessionId session) override;
  void OnDeath(SessionId session) override;
  void PostReserved(std::uint64_t bytes);
  void PostVerdict(std::uint64_t request_id, bool equal);
  void PostEarlierGone(std::uint32_t row);
  void PostLoaded(std::uint64_t id, service::LoadResult result, std::uint64_t checksum);
  void PostSaved(std::uint64_t id, service::SaveResult result);

 private:
  struct Session;

  void Post(Event event);
  void Run();
  bool Round();
  bool HasWork() const;
  std::uint64_t NextDeadline() const;
  void Tick(std::uint64_t now_ns);
  // Stops listening for a while to the doorbells of sessions that ring for nothing.
  void JudgeRings();
  // Whether the session had something to do.
  bool Turn(Session& session);
  bool HandleEvents();
  void Handle(SessionOpened& event, std::uint64_t now_ns);
  void Handle(FrameArrived& event, std::uint64_t now_ns);
  void Handle(SessionHungUp& event, std::uint64_t now_ns);
  void Handle(SessionDied& event, std::uint64_t now_ns);
  void Handle(MemoryReserved& event, std::uint64_t now_ns);
  void Handle(SlotVerified& event, std::uint64_t now_ns);
  void Handle(EarlierSessionGone& event, std::uint64_t now_ns);
  Status OpenInService(Session& session);
  void FreeEarlierRows();
  void Handle(SlotLoaded& event, std::uint64_t now_ns);
  void Handle(SlotSaved& event, std::uint64_t now_ns);
  void Register(const Session& session, const FrameArrived& frame, std::uint64_t now_ns);
  void Drained(const FrameArrived& frame, std::uint64_t now_ns);
  void Unregister(const Session& session, const FrameArrived& frame, std::uint64_t now_ns);
  void ReplyHealth(const FrameArrived& frame, std::uint64_t now_ns);
  void ReplyError(const FrameArrived& frame, Code code, std::string_view text);
  void SendToVerifier();
  // A little of what was taken over, when no client has asked for anything for a while.
  void Scrub();
  // Whether there was something to do behind the look-ups.
  bool Load();
  void SignalCompletions();
  void AddFigures();
  Session* Find(SessionId id);
  void CloseChannel(Session& session, std::uint64_t now_ns);
  void Forget(SessionId id, std::uint64_t now_ns);

  Core& core_;
  service::Service& service_;
  channel::DispatcherWaiter& waiter_;
  Metrics& metrics_;
  const Incarnation incarnation_;
  const std::function<void(std::uint32_t)> row_freed_;
  const std::uint64_t started_ns_;
  channel::BootstrapServer* server_ = nullptr;
  Verifier* verifier_ = nullptr;
  Backing* backing_ = nullptr;  // or null

  EventQueue queue_;
  std::vector<Event> taken_;
  std::vector<std::unique_ptr<Session>> sessions_;  // in the order they were opened, which is the order of turns
  std::size_t first_turn_ = 0;
  channel::ServerSessionStats past_;  // of sessions whose channel is closed
  std::uint64_t events_ = 0;
  std::uint64_t rounds_ = 0;
  std::uint64_t mutes_ = 0;
  std::uint64_t requests_expired_in_steps_ = 0;
  std::uint64_t last_request_ns_ = 0;
  std::uint64_t next_scrub_ns_ = 0;

  os::Thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace orbitkv::manager
