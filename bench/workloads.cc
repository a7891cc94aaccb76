#include "workloads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "orbitkv/base/prng.h"

namespace orbitkv::bench {
namespace {

constexpr std::uint32_t kBlockTokens = 512;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : prng_(seed) {}
  std::uint64_t Below(std::uint64_t bound) { return prng_.Below(bound); }
  double Unit() { return static_cast<double>(prng_.Next() >> 11U) * 0x1p-53; }
  bool Chance(double chance) { return Unit() < chance; }
  double Exponential(double mean) { return -mean * std::log1p(-Unit()); }
  std::uint64_t Fresh() { return prng_.Next() | 1U; }

 private:
  Prng prng_;
};

// Things that happen later, in the order of their times.
class Agenda {
 public:
  using Action = std::function<void(double now)>;
  void At(double when, Action action) {
    actions_.push_back(std::move(action));
    order_.emplace(when, actions_.size() - 1);
  }
  void Run(double until) {
    while (!order_.empty() && order_.top().first < until) {
      const auto [when, which] = order_.top();
      order_.pop();
      const Action action = std::move(actions_[which]);
      action(when);
    }
  }

 private:
  using Entry = std::pair<double, std::size_t>;
  std::vector<Action> actions_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> order_;
};

void Ask(TraceBuilder& trace, double now, const std::vector<std::uint64_t>& ids, std::uint32_t answer_tokens) {
  trace.Add(now, static_cast<std::uint32_t>(ids.size()) * kBlockTokens, answer_tokens, ids);
}

void Extend(std::vector<std::uint64_t>& ids, std::uint64_t blocks, Dice& dice) {
  for (std::uint64_t i = 0; i < blocks; ++i) ids.push_back(dice.Fresh());
}

// A conversation: asks, waits, asks again with more, and ends at some turn.
void Converse(Agenda& agenda, TraceBuilder& trace, Dice& dice, std::vector<std::uint64_t> ids, double now,
              double go_on_chance, double pause_s) {
  Ask(trace, now, ids, static_cast<std::uint32_t>(100 + dice.Below(500)));
  if (!dice.Chance(go_on_chance)) return;
  agenda.At(now + 10 + dice.Exponential(pause_s),
            [&, ids = std::move(ids), go_on_chance, pause_s](double later) mutable {
              Extend(ids, 1 + dice.Below(3), dice);
              Converse(agenda, trace, dice, std::move(ids), later, go_on_chance, pause_s);
            });
}

Trace Flood() {
  constexpr double kUntil = 3000;
  Dice dice(1);
  Agenda agenda;
  TraceBuilder trace("flood");
  for (double now = 0; now < kUntil; now += dice.Exponential(1.0)) {
    agenda.At(now, [&](double start) {
      std::vector<std::uint64_t> ids{1};
      Extend(ids, 4 + dice.Below(16), dice);
      Converse(agenda, trace, dice, std::move(ids), start, 0.6, 90);
    });
  }
  // Each flood: two minutes of documents that are read once.
  for (double flood = 200; flood < kUntil; flood += 500) {
    for (double now = flood; now < flood + 120; now += dice.Exponential(0.5)) {
      agenda.At(now, [&](double start) {
        std::vector<std::uint64_t> ids;
        Extend(ids, 40 + dice.Below(80), dice);
        Ask(trace, start, ids, 50);
      });
    }
  }
  agenda.Run(kUntil);
  return trace.Take();
}

Trace Shift() {
  constexpr std::uint64_t kPrompts = 2000;
  Dice dice(2);
  TraceBuilder trace("shift");
  std::vector<double> below{0};
  for (std::uint64_t rank = 1; rank <= kPrompts; ++rank) below.push_back(below.back() + 1 / std::pow(rank, 0.9));
  for (double now = 0; now < 3600; now += dice.Exponential(0.25)) {
    const auto era = static_cast<std::uint64_t>(now / 400);
    const auto rank =
        static_cast<std::uint64_t>(std::ranges::upper_bound(below, dice.Unit() * below.back()) - below.begin());
    const std::uint64_t prompt = (rank * 7919 + era * 104'729) % kPrompts;
    Dice body(1000 + prompt);
    std::vector<std::uint64_t> ids;
    Extend(ids, 2 + body.Below(20), body);
    Extend(ids, 1, dice);  // the question
    Ask(trace, now, ids, static_cast<std::uint32_t>(dice.Below(400)));
  }
  return trace.Take();
}

Trace SystemPrompts() {
  constexpr std::uint64_t kPrompts = 600;
  Dice dice(3);
  TraceBuilder trace("prompts");
  for (double now = 0; now < 3600; now += dice.Exponential(0.2)) {
    const double skewed = dice.Unit() * dice.Unit();
    Dice body(5000 + static_cast<std::uint64_t>(skewed * kPrompts));
    std::vector<std::uint64_t> ids;
    Extend(ids, 2 + body.Below(6), body);
    Extend(ids, 1 + dice.Below(6), dice);
    Ask(trace, now, ids, static_cast<std::uint32_t>(20 + dice.Below(300)));
  }
  return trace.Take();
}

// One step of an agent: the context so far with the last tool's result.
void Step(Agenda& agenda, TraceBuilder& trace, Dice& dice, std::vector<std::uint64_t> ids, double now,
          std::uint64_t steps) {
  Ask(trace, now, ids, static_cast<std::uint32_t>(20 + dice.Below(80)));
  if (steps == 0) return;
  const double pause_s = dice.Chance(0.1) ? 30 + dice.Exponential(60) : 2 + dice.Exponential(4);
  agenda.At(now + pause_s, [&, ids = std::move(ids), steps](double later) mutable {
    Extend(ids, 1 + dice.Below(4), dice);
    Step(agenda, trace, dice, std::move(ids), later, steps - 1);
  });
}

Trace Agents() {
  constexpr double kUntil = 3000;
  Dice dice(4);
  Agenda agenda;
  TraceBuilder trace("agents");
  for (double now = 0; now < kUntil; now += dice.Exponential(6)) {
    agenda.At(now, [&](double start) {
      Dice tools(9000 + dice.Below(5));
      std::vector<std::uint64_t> ids;
      Extend(ids, 8, tools);
      Extend(ids, 2 + dice.Below(10), dice);
      Step(agenda, trace, dice, std::move(ids), start, 3 + dice.Below(30));
    });
  }
  agenda.Run(kUntil);
  return trace.Take();
}

}  // namespace

std::span<const Workload> Workloads() {
  static constexpr std::array<Workload, 4> kWorkloads{
      {{"flood", &Flood}, {"shift", &Shift}, {"prompts", &SystemPrompts}, {"agents", &Agents}}};
  return kWorkloads;
}

}  // namespace orbitkv::bench
