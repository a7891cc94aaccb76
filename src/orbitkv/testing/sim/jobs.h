// The pieces of work of a simulated engine process: save blocks, look up and restore, copy by a plan, ping.
// Owns: what is known of one piece of work; its process owns the job. Threads: one. Blocks: no.
// Units: virtual nanoseconds. Errors: as in process.h.
// Invariant: a job that has reserved, found or been granted something gives it up or hands it on before it is over, if
// its Manager lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "orbitkv/testing/sim/process.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::sim {

// A request whose answer is awaited until a deadline, then given up.
class Call {
 public:
  enum class State : std::uint8_t { kWaiting, kAnswered, kOver };  // kOver: given up, or the session has ended

  // False when rings or arena are full: try again later.
  bool Post(World& world, ClientEnd& end, const channel::Request& request);
  State Look(World& world, ClientEnd& end);
  bool posted() const { return id_.has_value(); }
  const channel::Answer& answer() const { return answer_; }

 private:
  std::optional<channel::RequestId> id_;
  std::uint64_t deadline_ns_ = 0;
  channel::Answer answer_;
};

// A plan as the session's version of the ABI has it.
Result<std::vector<wire::PlanEntry>> ReadPlan(std::span<const std::byte> payload, std::uint16_t abi);

class PingJob final : public Job {
 public:
  using Job::Job;
  bool Advance() override;

 private:
  Call call_;
};

class PublishJob final : public Job {
 public:
  PublishJob(Process& process, std::shared_ptr<ClientLife> life, Order order);
  bool Advance() override;

 private:
  enum class Stage : std::uint8_t { kStart, kReserving, kCopying, kCommitting };

  bool Reserve();
  bool TakeReserved();
  bool Copy();
  bool CopyPage();
  bool Commit();
  bool TakeCommitted();
  void Abort();

  const Order order_;
  const std::uint64_t give_up_ns_;
  Stage stage_ = Stage::kStart;
  Call call_;
  std::uint64_t reservation_ = 0;
  std::vector<wire::ReserveEntry> entries_;
  std::vector<wire::CommitEntry> commits_;
  std::size_t block_ = 0;
  std::uint32_t page_ = 0;
  std::uint64_t write_ = 0;  // of the block that is being copied
  std::vector<std::uint64_t> page_hashes_;
  bool partial_ = false;  // not all slots are committed
  Touching touching_{life_->memory};
};

// A look-up, sometimes as an operation that may load, and what the scheduler makes of its answer.
class QueryJob final : public Job {
 public:
  QueryJob(Process& process, std::shared_ptr<ClientLife> life, std::uint64_t request)
      : Job(process, std::move(life)), request_(request) {}
  // Takes over what another process has had prepared.
  QueryJob(Process& process, std::shared_ptr<ClientLife> life, const Order& order);
  bool Advance() override;

 private:
  enum class Stage : std::uint8_t {
    kStart,
    kAsking,
    kLoading,
    kPolling,
    kToClaim,  // another process's preparation
    kClaiming,
    kCancelling,
    kFound,
    kBeginning
  };

  bool Ask();
  void ChooseDemand();
  void ChooseViews();
  bool Submit();
  bool TakeFound();
  bool Load();
  bool TakePolled();
  bool Claim();
  bool HandOver();
  bool TakeCancelled();
  bool Found(std::uint64_t lease, std::uint64_t found, std::span<const std::uint32_t> boundaries);
  bool Decide();
  std::uint32_t ChooseBoundary();
  std::vector<BlockName> BlocksUpTo(std::uint32_t boundary) const;
  bool Begin();
  bool TakeBegun();

  const std::uint64_t request_;
  Stage stage_ = Stage::kStart;
  Call call_;
  wire::QueryHeader header_;
  std::vector<state::BlockHash> behind_;  // the prefix
  std::vector<wire::HashView> views_;
  std::vector<state::BlockHash> hashes_;  // demanded
  std::uint64_t operation_ = 0;
  std::uint32_t revision_ = 0;
  std::uint64_t lease_ = 0;
  std::uint32_t found_ = 0;
  std::vector<std::uint32_t> boundaries_;  // that may be taken; empty: every one up to found_
  std::uint64_t grant_ = 0;
};

class RestoreJob final : public Job {
 public:
  RestoreJob(Process& process, std::shared_ptr<ClientLife> life, Order order);
  bool Advance() override;

 private:
  bool Plan();
  bool TakePlan(const channel::Answer& answer);
  bool CopyPage();
  void CheckBlock(const wire::PlanEntry& entry);
  bool End(wire::EndResult result, const std::vector<std::uint32_t>& indices);

  const Order order_;
  const std::uint64_t deadline_ns_;
  std::uint64_t next_try_ns_ = 0;
  Call call_;
  std::vector<wire::PlanEntry> plan_;
  std::size_t block_ = 0;
  std::uint32_t page_ = 0;
  std::vector<std::byte> pages_;  // of the block that is being copied
  std::vector<std::uint64_t> page_hashes_;
  std::vector<std::uint32_t> mismatched_;
  Touching touching_{life_->memory};
};

}  // namespace orbitkv::sim
