#include "policy_cost.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "replay.h"
#include "workloads.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kBlocks = 10'000;
double worst_call_us = 0;

// Times each call of the default policy.
class TimedPolicy final : public cache::EvictionPolicy {
 public:
  explicit TimedPolicy(std::unique_ptr<cache::EvictionPolicy> policy) : policy_(std::move(policy)) {}
  void AddLane() override { policy_->AddLane(); }
  void OnInsert(std::uint32_t block, const cache::BlockFacts& facts) override {
    Time([&] { policy_->OnInsert(block, facts); });
  }
  void OnTouch(std::uint32_t block, std::uint64_t now_ns) override {
    Time([&] { policy_->OnTouch(block, now_ns); });
  }
  void OnCandidate(std::uint32_t block) override {
    Time([&] { policy_->OnCandidate(block); });
  }
  void OnNoCandidate(std::uint32_t block) override {
    Time([&] { policy_->OnNoCandidate(block); });
  }
  void OnRemove(std::uint32_t block) override {
    Time([&] { policy_->OnRemove(block); });
  }
  std::optional<std::uint32_t> Victim(std::uint32_t lane) override {
    std::optional<std::uint32_t> victim;
    Time([&] { victim = policy_->Victim(lane); });
    return victim;
  }

 private:
  template <typename Call>
  static void Time(Call&& call) {
    const double from_s = ProcessorSeconds();
    call();
    worst_call_us = std::max(worst_call_us, (ProcessorSeconds() - from_s) * 1e6);
  }
  std::unique_ptr<cache::EvictionPolicy> policy_;
};

std::unique_ptr<cache::EvictionPolicy> MakeTimed(std::uint32_t max_blocks) {
  return std::make_unique<TimedPolicy>(cache::FindPolicy("default")(max_blocks));
}

}  // namespace

void MeasurePolicyCost(Report& report) {
  const Trace trace = Workloads().front().make();
  constexpr int kRounds = 5;
  std::vector<std::vector<double>> samples(cache::Policies().size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t at = 0; at < samples.size(); ++at) {
      samples[at].push_back(Replay(trace, cache::Policies()[at].make, kBlocks).us_per_block);
    }
  }
  for (std::size_t at = 0; at < samples.size(); ++at) {
    const std::string name(cache::Policies()[at].name);
    const bool ours = name == cache::kDefaultPolicy;
    report.Add({"policy.us_per_block." + name, Quantile(samples[at], 0.5), "us", ours ? "the aim" : "", ours ? 1.0 : 0,
                static_cast<std::size_t>(kRounds)});
  }
  Replay(trace, &MakeTimed, kBlocks);
  report.Add({"policy.worst_call_us.reuse", worst_call_us, "us", "the aim for a turn", 1000, 1});
}

}  // namespace orbitkv::bench
