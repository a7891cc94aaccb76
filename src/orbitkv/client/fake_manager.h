// A Manager for tests of the client: one dispatcher thread that keeps blocks in a map and does what a test scripts.
// Owns: the pool memfd, the socket (in a directory that the test gives), the threads. Threads: calls from the test;
// commands run on the dispatcher. Blocks: Stop joins; Seen waits, ten seconds at most.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::client {

class FakeManager : public channel::BootstrapEvents {
 public:
  // True: the test has answered the request itself, or swallowed it.
  using Script = std::function<bool(channel::ServerSession&, const channel::ReceivedRequest&)>;
  struct Options {
    Incarnation incarnation{1, 2};
    std::uint64_t pool_bytes = 8U << 20U;
    bool seal_pool = true;
    bool refuse_registration = false;
  };

  FakeManager(const std::string& socket_path, const Options& options);
  explicit FakeManager(const std::string& socket_path) : FakeManager(socket_path, Options()) {}
  ~FakeManager() override { Stop(); }

  void Stop();
  void SetScript(Script script) ORBITKV_EXCLUDES(mutex_);
  // While held, no request is looked at, as if the process were stopped.
  void Hold(bool hold);
  // Waits until `what` was seen this often: a command's name, "register", "unregister", "drained", "hangup",
  // "end ok", "end mismatch", "end failed", "release lease", "release grant".
  bool Seen(const std::string& what, std::size_t count = 1) ORBITKV_EXCLUDES(mutex_);
  std::size_t CountOf(const std::string& what) ORBITKV_EXCLUDES(mutex_);
  std::vector<std::uint64_t> drained_tokens() ORBITKV_EXCLUDES(mutex_);

  std::byte* pool() { return mapping_.data(); }
  // The offset of a stored block's slot.
  std::uint64_t OffsetOf(const state::BlockHash& hash) ORBITKV_EXCLUDES(mutex_);
  std::size_t stored() ORBITKV_EXCLUDES(mutex_);
  std::size_t reservations() ORBITKV_EXCLUDES(mutex_);
  std::size_t grants() ORBITKV_EXCLUDES(mutex_);

  void OnOpened(std::unique_ptr<channel::ServerSession> session) override;
  void OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind, std::vector<std::byte> payload) override;
  void OnHangup(SessionId session) override;
  void OnDeath(SessionId session) override;

 private:
  using Hashes = std::vector<state::BlockHash>;
  struct Stored {
    std::uint64_t offset = 0;
    std::uint64_t checksum = 0;
    std::uint32_t slot_bytes = 0;
  };
  struct Reservation {
    Hashes hashes;
    std::vector<std::uint64_t> offsets;
    std::uint32_t slot_bytes = 0;
  };

  void Note(const std::string& what) ORBITKV_EXCLUDES(mutex_);
  void Dispatch() ORBITKV_EXCLUDES(mutex_);
  void Execute(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Query(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Reserve(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Commit(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Begin(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Plan(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void End(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);
  void Release(channel::ServerSession& session, const channel::ReceivedRequest& request) ORBITKV_EXCLUDES(mutex_);

  const Options options_;
  os::UniqueFd pool_fd_;
  os::Mapping mapping_;
  std::unique_ptr<channel::DispatcherWaiter> waiter_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
  std::vector<std::unique_ptr<channel::ServerSession>> sessions_;  // the dispatcher's

  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<channel::BootstrapServer> server_ ORBITKV_GUARDED_BY(mutex_);  // set once
  Script script_ ORBITKV_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<channel::ServerSession>> arrivals_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> seen_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> drained_tokens_ ORBITKV_GUARDED_BY(mutex_);
  std::map<state::BlockHash, Stored> stored_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hashes> leases_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hashes> grants_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Reservation> reservations_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t next_id_ ORBITKV_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_offset_ ORBITKV_GUARDED_BY(mutex_) = 0;
  os::Thread dispatcher_;
};

}  // namespace orbitkv::client
