// How likely blocks of a kind are used again, by the time since their last use, learned while it runs.
//
// Blocks are told apart by class: how many requests in a row have continued the prompt (its turn), whether the last
// request found the block or brought it, and how long the answer of the request that brought it was. Blocks that many
// prompts continue, or that are used all the time, are told apart by their pace instead: how long it usually takes to
// their next use; and blocks that were brought ahead of a use are a class of their own until it comes. Of each class
// and bin of ages the model knows the uses and the time that blocks were watched without one, which is right also for
// blocks whose next use has not come yet. From these it makes an index for each class and bin: the best ratio, over all
// times to give up, of the chance of a use to the time that the block would be kept for it (a Gittins index). The block
// with the lowest index is worth least.
//
// Owns: its tables, of constant size. Threads: one. Never blocks.
// Units: ticks of 2^24 ns (about 17 ms), which last for two years; hazards are uses per tick.
// Errors: none; a Leave without its Enter is a broken invariant of the caller.
// Invariants: the same calls give the same indices; no call does more work than one pass over the table's classes.
#pragma once

#include <array>
#include <cstdint>

namespace orbitkv::cache {

using Ticks = std::uint32_t;
inline constexpr std::uint32_t kTickShift = 24;

class ReuseModel {
 public:
  static constexpr std::uint32_t kBins = 32;
  static constexpr std::uint32_t kTurns = 3;                                   // the last one and all later ones
  static constexpr std::uint32_t kAnswers = 6;                                 // not known, and five lengths
  static constexpr std::uint32_t kPaces = 8;                                   // bins of ages, four at a time
  static constexpr std::uint32_t kAwaited = kPaces + kTurns * (1 + kAnswers);  // the first of two
  static constexpr std::uint32_t kClasses = kAwaited + 2;

  ReuseModel();

  // pace: the usual bin of the ages at which the block is used.
  static std::uint8_t PaceClass(std::uint32_t pace);
  // turn counts from 1.
  static std::uint8_t FoundClass(std::uint32_t turn);
  static std::uint8_t BroughtClass(std::uint32_t turn, std::uint32_t prompt_tokens, std::uint32_t answer_tokens);
  // Of a block that is known by its pace, or by its turn.
  static std::uint8_t AwaitedClass(bool has_pace) { return static_cast<std::uint8_t>(kAwaited + (has_pace ? 1 : 0)); }
  static bool HasPace(std::uint32_t cls) { return cls < kPaces || cls == kAwaited + 1; }
  static bool IsAwaited(std::uint32_t cls) { return cls >= kAwaited; }

  Ticks edge(std::uint32_t bin) const { return edges_[bin]; }
  std::uint32_t BinOf(Ticks age) const;
  float index(std::uint32_t cls, std::uint32_t bin) const { return indices_[cls][bin]; }

  // A block's age enters a bin and leaves it, by getting older or by a use.
  void Enter(std::uint32_t cls, std::uint32_t bin, Ticks touched);
  void Leave(std::uint32_t cls, std::uint32_t bin, Ticks touched, Ticks now, bool used);

  // Makes indices anew in small steps, a class each; the first of a round looks at all classes. Returns the class whose
  // indices changed, or kClasses.
  std::uint32_t RefreshStep(Ticks now);
  // Halves the weight of what was seen up to now.
  void Fade();

 private:
  struct Cell {
    double uses = 0;
    double watched = 0;             // ticks, of blocks that have left the bin
    std::uint64_t touched_sum = 0;  // of those that are in it
    std::uint32_t inside = 0;
  };
  using Row = std::array<double, kBins>;

  double Watched(std::uint32_t cls, std::uint32_t bin, Ticks now) const;
  double Base(std::uint32_t cls, std::uint32_t bin) const { return IsAwaited(cls) ? awaited_[bin] : pooled_[bin]; }
  double Width(std::uint32_t bin) const { return static_cast<double>(edges_[bin + 1] - edges_[bin]); }
  void Pool(Ticks now);
  void MakeIndices(std::uint32_t cls, Ticks now);

  std::array<Ticks, kBins + 1> edges_{};
  std::array<std::array<Cell, kBins>, kClasses> cells_{};
  std::array<std::array<float, kBins>, kClasses> indices_{};
  Row prior_{};                                // hazard of any block, before anything was seen
  Row awaited_{};                              // the same, of a block that was brought ahead of a use
  Row pooled_{};                               // hazard of the classes that are made of turns and answers
  std::array<double, kClasses> multiplier_{};  // of that, by the class's features
  std::uint32_t next_step_ = 0;
  bool has_awaited_ = false;  // there were blocks of those classes: until then their indices stay as they are
};

}  // namespace orbitkv::cache
