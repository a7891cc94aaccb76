// The channel's commands as calls of the service: decodes what a session asked, lets the service decide, encodes the
// answer.
//
// A command that concerns more blocks than one turn may look at is answered over several turns: Start says
// kMore, and Continue is called in later turns of the session until it says kDone. The session starts nothing else in
// between. A command whose deadline passes between two steps is given up and answered so, except a commit: what its
// first steps stored is there for all to see, the bytes of the rest are written too, and half an answer would leave its
// sender without knowing which is which.
//
// Owns: the state of one session's stepped command and its answer buffer, which is reused. Refers to the service, which
// outlives it. Threads: one (the dispatcher). Blocks: no.
// Errors: everything that is wrong with a request becomes its answer's status; nothing is passed on.
// Invariant: arguments are private copies; they are decoded before the service sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/service/service.h"
#include "orbitkv/wire/descriptor.h"

namespace orbitkv::manager {

struct CommandRequest {
  wire::Command command = wire::Command::kPing;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  std::span<const std::byte> args;  // 8-byte aligned
};

struct CommandAnswer {
  wire::AnswerStatus status = wire::AnswerStatus::kOk;
  std::uint64_t scalar0 = 0;
  std::uint64_t scalar1 = 0;
  std::span<const std::byte> payload;  // valid until the runner's next call
};

class CommandRunner {
 public:
  enum class Progress : std::uint8_t { kDone, kMore };

  // abi: what the session speaks.
  CommandRunner(service::Service& service, SessionId session, std::uint16_t abi = wire::kAbiMax)
      : service_(service), session_(session), abi_(abi) {}

  Progress Start(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  // deadline_ns: of the request that was started.
  Progress Continue(std::uint64_t deadline_ns, std::uint64_t now_ns, CommandAnswer& answer);
  // Gives up a stepped command whose answer nobody can get any more.
  void Cancel(std::uint64_t now_ns);
  // Of the commit that is being stepped or was the last one, as far as it is decided.
  std::span<const std::uint32_t> outcomes() const { return outcomes_; }
  // Of the step that ran last, against the dispatcher's share of one session.
  std::uint32_t last_cost_hashes() const { return cost_; }

 private:
  Progress Query(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  void Poll(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  void Claim(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  void Cancel(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  Progress QueryStep(const Result<service::QueryOutcome>& outcome, CommandAnswer& answer);
  Progress Reserve(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  Progress ReserveStep(const Result<service::ReserveOutcome>& outcome, CommandAnswer& answer);
  Progress Commit(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  Progress CommitStep(const Result<service::CommitProgress>& progress, CommandAnswer& answer);
  Progress Begin(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  Progress BeginStep(const Result<service::BeginProgress>& progress, CommandAnswer& answer);
  Progress Plan(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  Progress PlanStep(const Result<service::PlanProgress>& progress, CommandAnswer& answer);
  std::uint32_t Cost(std::size_t blocks) const;
  void End(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);
  void Release(const CommandRequest& request, std::uint64_t now_ns, CommandAnswer& answer);

  service::Service& service_;
  const SessionId session_;
  const std::uint16_t abi_;
  wire::Command running_ = wire::Command::kPing;
  std::uint32_t cost_ = 0;
  std::vector<wire::ReserveEntry> entries_;
  std::vector<wire::PlanEntry> plan_;
  std::vector<wire::PlanEntryV1> plan_v1_;
  std::vector<wire::PollEntry> polled_;
  std::vector<std::uint32_t> boundaries_;
  std::vector<std::byte> payload_;
  std::vector<std::uint32_t> outcomes_;
  std::vector<wire::EndEntry> mismatches_;
};

}  // namespace orbitkv::manager
