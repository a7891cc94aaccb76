// A Manager for tests of the channel: bootstrap server, dispatcher thread, one handler for every request.
// Owns: a temporary directory with the socket, a pool memfd, the threads. Threads: Run-time counters are atomic; the
// handler runs on the dispatcher. Blocks: the destructor joins.
#pragma once

#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "orbitkv/base/check.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/channel/client_session.h"
#include "orbitkv/channel/server_session.h"
#include "orbitkv/channel/waiter.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/thread.h"

namespace orbitkv::channel {

// An echo: scalars and arguments come back.
inline void Echo(ServerSession& session, const ReceivedRequest& request) {
  session.Answer(request.handle, wire::AnswerStatus::kOk, request.scalar0, request.scalar1, request.args);
}

class TestManager : public BootstrapEvents {
 public:
  using Handler = std::function<void(ServerSession&, const ReceivedRequest&)>;
  static constexpr std::uint64_t kPoolBytes = 1U << 20U;

  explicit TestManager(Handler handler = Echo, std::uint64_t spin_ns = 0) : handler_(std::move(handler)) {
    directory_ = (std::filesystem::temp_directory_path() / "orbitkv-channel-XXXXXX").string();
    ORBITKV_CHECK(::mkdtemp(directory_.data()) != nullptr);
    waiter_ = DispatcherWaiter::Create({.incarnation = {7, 9}, .spin_ns = spin_ns}).value();
    pool_ = os::CreateMemfd("orbitkv-test-pool", kPoolBytes).value();
    ORBITKV_CHECK(os::SealSize(pool_.get()).has_value());
    options_.socket_path = directory_ + "/manager.sock";
    options_.incarnation = {7, 9};
    options_.manager_page_fd = waiter_->page_fd();
    options_.pool_fds = {pool_.get()};
    options_.pool_bytes = kPoolBytes;
  }
  ~TestManager() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }

  BootstrapOptions& options() { return options_; }
  const std::string& socket_path() const { return options_.socket_path; }
  BootstrapServer& server() { return *server_; }
  DispatcherWaiter& waiter() { return *waiter_; }

  Status Start() {
    ORBITKV_ASSIGN_OR_RETURN(server_, BootstrapServer::Start(options_, this));
    return dispatcher_.Start("dispatcher", [this] { Dispatch(); });
  }
  void Stop() {
    if (server_) server_->Stop();
    stopping_ = true;
    waiter_->Notify();
    dispatcher_.Join();
  }
  ConnectOptions Client() const {
    return {.socket_path = options_.socket_path, .name = "test", .deadline_ns = os::DeadlineAfter(10'000'000'000U)};
  }
  std::unique_ptr<ClientSession> Connect() { return ClientSession::Connect(Client()).value(); }

  // While held, the dispatcher serves nobody, as if it were stopped.
  void Hold(bool hold) {
    held_ = hold;
    waiter_->Notify();
  }
  // Waits until an event of this name was seen `count` times; false after ten seconds.
  bool Seen(const std::string& what, std::size_t count = 1) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    MutexLock lock(mutex_);
    while (seen_[what] < count) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      changed_.WaitUntil(mutex_, deadline);
    }
    return true;
  }
  std::size_t CountOf(const std::string& what) {
    MutexLock lock(mutex_);
    return seen_[what];
  }

  void OnOpened(std::unique_ptr<ServerSession> session) override {
    {
      MutexLock lock(mutex_);
      arrivals_.push_back(std::move(session));
    }
    Note("opened");
    waiter_->Notify();
  }
  void OnFrame(SessionId session, std::uint64_t frame_id, std::uint32_t kind, std::vector<std::byte> payload) override {
    Note("frame");
    if (kind == kIgnoredKind) return;
    server_->Reply(session, frame_id, payload, kind == kRefusedKind);
  }
  void OnHangup(SessionId) override { Note("hangup"); }
  void OnDeath(SessionId) override { Note("death"); }

  static constexpr std::uint32_t kRefusedKind = 77;
  static constexpr std::uint32_t kIgnoredKind = 78;

 private:
  void Note(const std::string& what) {
    {
      MutexLock lock(mutex_);
      ++seen_[what];
    }
    changed_.NotifyAll();
  }
  void Dispatch() {
    while (!stopping_) {
      {
        MutexLock lock(mutex_);
        while (!arrivals_.empty()) {
          ORBITKV_CHECK(waiter_->Watch(*arrivals_.front()).has_value());
          sessions_.push_back(std::move(arrivals_.front()));
          arrivals_.pop_front();
        }
      }
      if (!held_) {
        const std::uint64_t now = os::MonotonicNs();
        for (const auto& session : sessions_) {
          while (const auto request = session->Next(now)) handler_(*session, *request);
          session->FlushWake();
        }
      }
      waiter_->Sleep(os::kNoDeadline, [this] {
        if (held_) return false;
        for (const auto& session : sessions_) {
          if (session->HasRequests()) return true;
        }
        return false;
      });
    }
    for (const auto& session : sessions_) waiter_->Unwatch(*session);
  }

  Handler handler_;
  std::string directory_;
  std::unique_ptr<DispatcherWaiter> waiter_;
  os::UniqueFd pool_;
  BootstrapOptions options_;
  std::unique_ptr<BootstrapServer> server_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> held_{false};
  std::vector<std::unique_ptr<ServerSession>> sessions_;  // the dispatcher's
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<ServerSession>> arrivals_ ORBITKV_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> seen_ ORBITKV_GUARDED_BY(mutex_);
  os::Thread dispatcher_;
};

}  // namespace orbitkv::channel
