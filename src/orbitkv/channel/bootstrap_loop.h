// The bootstrap server itself: its thread, its listener, and every connection from its first byte to its end.
//
// bootstrap_server.cc has the thread, who is let in, and the ends; bootstrap_greeting.cc what makes a connection a
// session; bootstrap_frames.cc the bytes of both directions.
// Owns: as bootstrap_server.h. Threads: Give and Stop any; all the rest is the server's own thread's. Included by these
// sources alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "orbitkv/base/log.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/admission.h"
#include "orbitkv/channel/bootstrap_connection.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/epoll.h"
#include "orbitkv/os/eventfd.h"
#include "orbitkv/os/file.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::channel {

inline constexpr const char* kBootstrapLog = "bootstrap";

class BootstrapServer::Impl {
 public:
  Impl(const BootstrapOptions& options, BootstrapEvents* events, std::optional<os::FileLock> lock)
      : options_(options),
        events_(events),
        lock_(std::move(lock)),
        pace_(options.pace),
        accepts_(options.accept_pace),
        frames_(options.frame_pace) {}

  Status Start();
  void Give(Order order) ORBITKV_EXCLUDES(mutex_);
  void Stop() ORBITKV_EXCLUDES(mutex_);
  std::size_t session_count() const { return session_count_.load(std::memory_order_relaxed); }
  BootstrapStats stats() const { return counts_.Read(); }

 private:
  static constexpr auto kComplaintInterval = std::chrono::milliseconds(200);
  using Connections = std::map<std::uint64_t, Connection>;

  void Run();
  std::uint64_t NextDeadline() const;
  void Accept();
  void PauseAccepting(const Error& error);
  void RestListener(std::uint64_t until_ns);
  void MakeRoomForOne();
  void Obey() ORBITKV_EXCLUDES(mutex_);
  void OnSocket(std::uint64_t id, std::uint32_t events);
  void OnPidfd(std::uint64_t id);
  void Expire();
  Status Read(std::uint64_t id, Connection& connection);
  Status ReadFrames(std::uint64_t id, Connection& connection, bool& whole);
  Status TakeFrames(std::uint64_t id, Connection& connection, bool& whole);
  void SetReadDeadline(Connection& connection, bool whole) const;
  Status OnMessage(std::uint64_t id, Connection& connection, wire::BootstrapMessage message);
  Status OnHello(std::uint64_t id, Connection& connection, const wire::Hello& hello);
  Places CountPlaces(bool admin) const;
  Result<std::unique_ptr<ServerSession>> MakeSession(std::uint64_t id, Connection& connection,
                                                     const wire::Hello& hello);
  Status Open(std::uint64_t id, Connection& connection, std::unique_ptr<ServerSession> server);
  Status OnLifecycle(std::uint64_t id, Connection& connection, wire::Lifecycle frame);
  Status HandOn(Connection& connection, wire::Lifecycle frame);
  void Resume(std::uint64_t id);
  Status Watch(std::uint64_t id, const Connection& connection);
  Status Send(std::uint64_t id, Connection& connection, const wire::BootstrapMessage& message);
  Status Flush(std::uint64_t id, Connection& connection);
  void Drop(std::uint64_t id);
  void Forget(std::uint64_t id);
  void Complain(log::RateLimit& limit, const Connection& connection, std::string_view what);

  const BootstrapOptions options_;
  BootstrapEvents* const events_;
  std::optional<os::FileLock> lock_;
  os::UniqueFd listener_;
  os::EventFd wake_;
  os::Epoll epoll_;
  std::atomic<std::size_t> session_count_{0};
  BootstrapCounts counts_;

  Mutex mutex_;
  std::deque<Order> orders_ ORBITKV_GUARDED_BY(mutex_);
  bool stopping_ ORBITKV_GUARDED_BY(mutex_) = false;

  // Below: the server's thread only.
  SessionPace pace_;
  Pace accepts_;
  Pace frames_;
  Connections connections_;
  std::map<SessionId, std::uint64_t> by_session_;
  std::uint64_t next_connection_ = 1;
  std::uint64_t next_session_ = 1;
  std::uint64_t accept_again_ns_ = os::kNoDeadline;  // while the listener is left alone
  log::RateLimit closings_{kComplaintInterval};
  log::RateLimit refusals_{kComplaintInterval};
  bool stop_seen_ = false;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(64U << 10U);

  os::Thread thread_;
};

}  // namespace orbitkv::channel
