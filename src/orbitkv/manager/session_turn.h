// One session's turn at the dispatcher: which of its requests are taken, how far each goes, and when the turn is over.
//
// A turn takes at most kTurnRequests requests and about as many hashes as one step of the service. A command that needs
// more goes on in the session's next turn, and nothing else of the session is taken in between. Time comes from the
// host, asked for each request right before it is judged: the process may have been stopped since the round began.
//
// Host, which the turn is for, has
//   std::uint64_t Now();                                  nanoseconds of the monotonic clock
//   void Begins(const channel::ReceivedRequest&);         a request was taken and is about to be started
//   void Continues();                                     the one that was begun in an earlier turn is about to go on
//   void Stepped(const CommandAnswer&, std::uint64_t);    it went on; stepping() says whether it is answered with this
//
// Owns: the state of the command that takes several turns. Refers to the service, which outlives it.
// Threads: one (the dispatcher). Blocks: no. Errors: what is wrong with a request becomes its answer's status.
// Invariant: a request is open exactly while stepping().
#pragma once

#include <cstdint>

#include "orbitkv/channel/server_session.h"
#include "orbitkv/manager/commands.h"

namespace orbitkv::manager {

class SessionTurn {
 public:
  static constexpr std::uint32_t kTurnRequests = 64;

  // A session that was opened to ask for health is unknown to the service: only its pings are answered.
  SessionTurn(service::Service& service, const channel::ServerSession& channel)
      : service_(service),
        admin_(channel.purpose() == wire::Purpose::kAdmin),
        runner_(service, channel.id(), channel.abi()) {}

  bool admin() const { return admin_; }
  bool stepping() const { return stepping_; }
  const CommandRunner& runner() const { return runner_; }

  // Whether the session had something to do.
  template <typename Host>
  bool Take(channel::ServerSession& channel, Host& host) {
    bool worked = false;
    std::uint32_t hashes = 0;
    if (stepping_) {
      if (!GoOn(channel, host)) return true;
      worked = true;
      hashes = service_.limits().step_hashes;
    }
    for (std::uint32_t i = 0; i < kTurnRequests && hashes < service_.limits().step_hashes; ++i) {
      if (!channel.HasRequests()) break;
      worked = true;
      const std::uint64_t now_ns = host.Now();
      const auto request = channel.Next(now_ns);
      if (!request) break;
      host.Begins(*request);
      if (!Begin(channel, host, *request, now_ns)) break;
      hashes += runner_.last_cost_hashes();
    }
    if (worked) channel.FlushWake();
    return worked;
  }

  // The channel is about to go.
  void Close(std::uint64_t now_ns) {
    if (stepping_) runner_.Cancel(now_ns);
    stepping_ = false;
  }

 private:
  // Whether it is answered.
  template <typename Host>
  bool Begin(channel::ServerSession& channel, Host& host, const channel::ReceivedRequest& request,
             std::uint64_t now_ns) {
    CommandAnswer answer;
    if (admin_ && request.command != wire::Command::kPing) {
      answer.status = wire::AnswerStatus::kRefused;
    } else {
      const CommandRequest command{request.command, request.scalar0, request.scalar1, request.args};
      stepping_ = runner_.Start(command, now_ns, answer) == CommandRunner::Progress::kMore;
    }
    host.Stepped(answer, now_ns);
    if (!stepping_) {
      Answer(channel, request.handle, answer);
      return true;
    }
    handle_ = request.handle;
    deadline_ns_ = request.deadline_ns;
    return false;
  }

  template <typename Host>
  bool GoOn(channel::ServerSession& channel, Host& host) {
    CommandAnswer answer;
    const std::uint64_t now_ns = host.Now();
    host.Continues();
    stepping_ = runner_.Continue(deadline_ns_, now_ns, answer) == CommandRunner::Progress::kMore;
    host.Stepped(answer, now_ns);
    if (!stepping_) Answer(channel, handle_, answer);
    return !stepping_;
  }

  static void Answer(channel::ServerSession& channel, channel::RequestHandle handle, const CommandAnswer& answer) {
    channel.Answer(handle, answer.status, answer.scalar0, answer.scalar1, answer.payload);
  }

  service::Service& service_;
  const bool admin_;
  CommandRunner runner_;
  bool stepping_ = false;
  channel::RequestHandle handle_;
  std::uint64_t deadline_ns_ = 0;
};

}  // namespace orbitkv::manager
