// A Manager for tests of the channel and of the client: a bootstrap server and one dispatcher thread that keeps blocks
// in a map, or gives every request back as it came, and does what a test scripts. Owns: the pool memfd, the threads,
// and a directory for the socket unless the test names one. Threads: calls from the test; commands and scripts run on
// the dispatcher, frames on the server's thread. Blocks: Stop joins; Seen waits, ten seconds at most. Errors: those of
// BootstrapServer::Start; everything else that fails ends the test. Invariant: a socket file that this object bound is
// gone after Stop.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/os/mapping.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/testing/temporary_directory.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::testing {

struct FakeManagerOptions {
  std::string socket_path{};  // empty: a directory of its own, removed by the destructor
  Incarnation incarnation{7, 9};
  std::uint64_t pool_bytes = 8U << 20U;
  bool seal_pool = true;
  bool refuse_registration = false;
  bool echo = false;  // requests and frames come back with what they carried; no block is kept
};

class FakeManager : public channel::BootstrapEvents {
 public:
  // True: the test has answered the request itself, or swallowed it.
  using Script = std::function<bool(channel::ServerSession&, const channel::ReceivedRequest&)>;
  using Options = FakeManagerOptions;
  // Frames that an echoing Manager refuses, and those that it never answers.
  static constexpr std::uint32_t kRefusedKind = 77;
  static constexpr std::uint32_t kIgnoredKind = 78;

  explicit FakeManager(const Options& options = {});
  ~FakeManager() override;

  // What the bootstrap server will be started with; to be changed before Start.
  channel::BootstrapOptions& bootstrap() { return bootstrap_; }
  const std::string& socket_path() const { return bootstrap_.socket_path; }
  Status Start() ORBITKV_EXCLUDES(mutex_);
  void Stop() ORBITKV_EXCLUDES(mutex_);
  // Ten seconds to connect, the defaults otherwise.
  channel::ConnectOptions Client() const;
  std::unique_ptr<channel::ClientSession> Connect() const;
  // Started and not stopped.
  channel::BootstrapServer& server() ORBITKV_EXCLUDES(mutex_);

  void SetScript(Script script) ORBITKV_EXCLUDES(mutex_);
  // While held, no request is looked at, as if the process were stopped.
  void Hold(bool hold) ORBITKV_EXCLUDES(serving_);
  // Waits until `what` was seen this often: "opened", "hangup", "death"; unless it only echoes, a command's name,
  // "register", "unregister", "drained", "end ok", "end mismatch", "end failed", "release lease", "release grant".
  bool Seen(const std::string& what, std::size_t count = 1) ORBITKV_EXCLUDES(mutex_);
  std::size_t CountOf(const std::string& what) ORBITKV_EXCLUDES(mutex_);
  std::vector<std::uint64_t> drained_tokens() ORBITKV_EXCLUDES(mutex_);

  std::byte* pool() { return mapping_.data(); }
  // The offset of a stored block's slot, and its checksum.
  std::uint64_t OffsetOf(const state::BlockHash& hash) ORBITKV_EXCLUDES(mutex_);
  std::uint64_t ChecksumOf(const state::BlockHash& hash) ORBITKV_EXCLUDES(mutex_);
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
  void ReplyTo(std::uint32_t kind, std::span<const std::byte> payload, std::string& reply, bool& refused)
      ORBITKV_EXCLUDES(mutex_);
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
  std::unique_ptr<TemporaryDirectory> own_directory_;
  channel::BootstrapOptions bootstrap_;
  os::UniqueFd pool_fd_;
  os::Mapping mapping_;
  std::unique_ptr<channel::DispatcherWaiter> waiter_;
  std::atomic<bool> stopping_{false};
  Mutex serving_;  // while requests are taken, so that none is once Hold(true) has returned; before mutex_
  std::atomic<bool> held_{false};
  std::vector<std::unique_ptr<channel::ServerSession>> sessions_;  // the dispatcher's

  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<channel::BootstrapServer> server_ ORBITKV_GUARDED_BY(mutex_);  // set once
  Script script_ ORBITKV_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<channel::ServerSession>> arrivals_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> seen_ ORBITKV_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> drained_tokens_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, SessionId> by_token_ ORBITKV_GUARDED_BY(mutex_);
  std::map<state::BlockHash, Stored> stored_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hashes> leases_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Hashes> grants_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Reservation> reservations_ ORBITKV_GUARDED_BY(mutex_);
  std::uint64_t next_id_ ORBITKV_GUARDED_BY(mutex_) = 1;
  std::uint64_t next_offset_ ORBITKV_GUARDED_BY(mutex_) = 0;
  os::Thread dispatcher_;
};

}  // namespace orbitkv::testing
