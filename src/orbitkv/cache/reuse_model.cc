// The estimates, from the general to the special; each level is what the next one leans on while it has seen little:
//  1. the pooled hazard by age, which leans on a log-normal time to the next use;
//  2. a multiplier for each value of each feature (turn and whether it was found; answer length), as if features acted
//     independently;
//  3. a multiplier for the class;
//  4. the hazard of the class in one bin.
// Blocks that are awaited lean on a log-normal time of their own, with the multiplier of their class.
// A class with little data so differs from the pool only by what its features say, and needs no data in every bin.
#include "orbitkv/cache/reuse_model.h"

#include <algorithm>
#include <cmath>

#include "orbitkv/base/check.h"

namespace orbitkv::cache {
namespace {

constexpr double kTicksPerSecond = 1e9 / static_cast<double>(1U << kTickShift);
constexpr double kFirstBinSeconds = 0.5;
constexpr double kBinGrowth = 1.35;  // 32 bins reach 1.5 hours

// The time to the next use, of the part of blocks that have one.
struct LogNormal {
  double chance = 0;
  double log_seconds = 0;
  double log_spread = 0;
};

// Before anything was seen: two blocks in five are used again, half of those within two and a half minutes.
constexpr LogNormal kPrior{.chance = 0.4, .log_seconds = 5.0, .log_spread = 1.1};
// What was brought ahead of a use: nine in ten are used, half of those within ten seconds.
constexpr LogNormal kAwaitedPrior{.chance = 0.9, .log_seconds = 2.3, .log_spread = 1.5};

// How much each level must see before it counts as much as what it leans on.
constexpr double kPriorBlocks = 20;  // watched through a bin
constexpr double kFeatureUses = 50;
constexpr double kClassUses = 50;
constexpr double kBinUses = 5;
constexpr double kMostBlocks = 2000;  // bounds the weight of a hazard near zero

constexpr std::array<std::uint32_t, ReuseModel::kAnswers - 2> kAnswerEdges{25, 100, 200, 500};

struct Stretch {
  double uses = 0;
  double time = 0;
  double survival = 1;
  double ratio() const { return uses / time; }
};

// The part of blocks whose next use has come by then.
double UsedBy(const LogNormal& prior, double seconds) {
  if (seconds <= 0) return 0;
  return prior.chance * 0.5 * std::erfc(-(std::log(seconds) - prior.log_seconds) / prior.log_spread * std::sqrt(0.5));
}

// Uses per tick between two ages.
double HazardBetween(const LogNormal& prior, Ticks from, Ticks to) {
  const double before = UsedBy(prior, from / kTicksPerSecond);
  const double after = UsedBy(prior, to / kTicksPerSecond);
  return (after - before) / ((1 - before) * static_cast<double>(to - from));
}

// Whether the class is one of turn and answer length.
bool IsTurn(std::uint32_t cls) { return cls >= ReuseModel::kPaces && !ReuseModel::IsAwaited(cls); }

// What a class is made of: its feature "turn and whether it was found", and its answer length (kAnswers for none).
std::uint32_t TurnFeature(std::uint32_t cls) {
  const std::uint32_t at = cls - ReuseModel::kPaces;
  return at / (1 + ReuseModel::kAnswers) * 2 + (at % (1 + ReuseModel::kAnswers) == 0 ? 0 : 1);
}
std::uint32_t AnswerFeature(std::uint32_t cls) {
  const std::uint32_t at = (cls - ReuseModel::kPaces) % (1 + ReuseModel::kAnswers);
  return at == 0 ? ReuseModel::kAnswers : at - 1;
}

}  // namespace

ReuseModel::ReuseModel() {
  double edge = kFirstBinSeconds * kTicksPerSecond;
  for (std::uint32_t bin = 1; bin <= kBins; ++bin, edge *= kBinGrowth) edges_[bin] = static_cast<Ticks>(edge);
  for (std::uint32_t bin = 0; bin < kBins; ++bin) {
    prior_[bin] = HazardBetween(kPrior, edges_[bin], edges_[bin + 1]);
    awaited_[bin] = HazardBetween(kAwaitedPrior, edges_[bin], edges_[bin + 1]);
  }
  Pool(0);
  for (std::uint32_t cls = 0; cls < kClasses; ++cls) MakeIndices(cls, 0);
}

std::uint8_t ReuseModel::PaceClass(std::uint32_t pace) {
  return static_cast<std::uint8_t>(std::min(pace, kBins - 1) * kPaces / kBins);
}

std::uint8_t ReuseModel::FoundClass(std::uint32_t turn) {
  return static_cast<std::uint8_t>(kPaces + (std::clamp(turn, 1U, kTurns) - 1) * (1 + kAnswers));
}

std::uint8_t ReuseModel::BroughtClass(std::uint32_t turn, std::uint32_t prompt_tokens, std::uint32_t answer_tokens) {
  std::uint32_t answer = 0;
  if (prompt_tokens != 0) {
    answer =
        1 + static_cast<std::uint32_t>(std::ranges::upper_bound(kAnswerEdges, answer_tokens) - kAnswerEdges.begin());
  }
  return static_cast<std::uint8_t>(FoundClass(turn) + 1 + answer);
}

std::uint32_t ReuseModel::BinOf(Ticks age) const {
  const auto above = std::upper_bound(edges_.begin() + 1, edges_.begin() + kBins, age);
  return static_cast<std::uint32_t>(above - edges_.begin()) - 1;
}

void ReuseModel::Enter(std::uint32_t cls, std::uint32_t bin, Ticks touched) {
  Cell& cell = cells_[cls][bin];
  cell.touched_sum += touched;
  ++cell.inside;
  has_awaited_ |= IsAwaited(cls);
}

void ReuseModel::Leave(std::uint32_t cls, std::uint32_t bin, Ticks touched, Ticks now, bool used) {
  Cell& cell = cells_[cls][bin];
  ORBITKV_CHECK(cell.inside > 0);
  cell.touched_sum -= touched;
  --cell.inside;
  const Ticks age = now - touched;
  cell.watched += age > edges_[bin] ? static_cast<double>(age - edges_[bin]) : 0;
  if (used) cell.uses += 1;
}

void ReuseModel::Fade() {
  for (auto& row : cells_) {
    for (Cell& cell : row) {
      cell.uses *= 0.5;
      cell.watched *= 0.5;
    }
  }
}

// Ticks that blocks of the class were watched at these ages, with those that are at them now.
double ReuseModel::Watched(std::uint32_t cls, std::uint32_t bin, Ticks now) const {
  const Cell& cell = cells_[cls][bin];
  const double inside = static_cast<double>(now) * cell.inside - static_cast<double>(cell.touched_sum) -
                        static_cast<double>(edges_[bin]) * cell.inside;
  return cell.watched + std::max(inside, 0.0);
}

void ReuseModel::Pool(Ticks now) {
  Row uses{};
  Row watched{};
  for (std::uint32_t cls = kPaces; cls < kAwaited; ++cls) {
    for (std::uint32_t bin = 0; bin < kBins; ++bin) {
      uses[bin] += cells_[cls][bin].uses;
      watched[bin] += Watched(cls, bin, now);
    }
  }
  for (std::uint32_t bin = 0; bin < kBins; ++bin) {
    const double weight = kPriorBlocks * Width(bin);
    pooled_[bin] = (uses[bin] + prior_[bin] * weight) / (watched[bin] + weight);
  }
  std::array<double, kClasses> class_uses{};
  std::array<double, kClasses> expected{};
  std::array<double, 2 * kTurns> turn_uses{};
  std::array<double, 2 * kTurns> turn_expected{};
  for (std::uint32_t cls = 0; cls < kClasses; ++cls) {
    for (std::uint32_t bin = 0; bin < kBins; ++bin) {
      class_uses[cls] += cells_[cls][bin].uses;
      expected[cls] += Base(cls, bin) * Watched(cls, bin, now);
    }
    multiplier_[cls] = 1;
    if (!IsTurn(cls)) continue;
    turn_uses[TurnFeature(cls)] += class_uses[cls];
    turn_expected[TurnFeature(cls)] += expected[cls];
  }
  std::array<double, kAnswers + 1> answer_uses{};
  std::array<double, kAnswers + 1> answer_expected{};
  for (std::uint32_t cls = kPaces; cls < kAwaited; ++cls) {
    const std::uint32_t turn = TurnFeature(cls);
    multiplier_[cls] = (turn_uses[turn] + kFeatureUses) / (turn_expected[turn] + kFeatureUses);
    answer_uses[AnswerFeature(cls)] += class_uses[cls];
    answer_expected[AnswerFeature(cls)] += expected[cls] * multiplier_[cls];
  }
  for (std::uint32_t cls = 0; cls < kClasses; ++cls) {
    if (IsTurn(cls)) {
      const std::uint32_t answer = AnswerFeature(cls);
      multiplier_[cls] *= (answer_uses[answer] + kFeatureUses) / (answer_expected[answer] + kFeatureUses);
    }
    multiplier_[cls] *= (class_uses[cls] + kClassUses) / (expected[cls] * multiplier_[cls] + kClassUses);
  }
}

// The best ratio from each bin on. Going back from the oldest bin, a stretch of bins is joined with the next one while
// that one has the better ratio; what remains is a list of stretches with falling ratios, and the first is the best.
void ReuseModel::MakeIndices(std::uint32_t cls, Ticks now) {
  std::array<Stretch, kBins> stretches;
  std::uint32_t count = 0;
  for (std::uint32_t bin = kBins; bin-- > 0;) {
    const double leaned_on = std::max(Base(cls, bin) * multiplier_[cls], 1e-12);
    const double weight = std::min(kBinUses / leaned_on, kMostBlocks * Width(bin));
    const double hazard = (cells_[cls][bin].uses + leaned_on * weight) / (Watched(cls, bin, now) + weight);
    const double used = -std::expm1(-hazard * Width(bin));
    Stretch here{.uses = used, .time = used / hazard, .survival = 1 - used};
    while (count > 0 && stretches[count - 1].ratio() > here.ratio()) {
      const Stretch& next = stretches[--count];
      here.uses += here.survival * next.uses;
      here.time += here.survival * next.time;
      here.survival *= next.survival;
    }
    stretches[count++] = here;
    indices_[cls][bin] = static_cast<float>(here.ratio());
  }
}

std::uint32_t ReuseModel::RefreshStep(Ticks now) {
  if (next_step_ == kClasses) {
    next_step_ = 0;
    Pool(now);
    return kClasses;
  }
  const std::uint32_t step = next_step_++;
  if (next_step_ == kAwaited && !has_awaited_) next_step_ = kClasses;
  MakeIndices(step, now);
  return step;
}

}  // namespace orbitkv::cache
