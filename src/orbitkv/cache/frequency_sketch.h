// How often keys were seen lately, estimated in a fixed number of bytes: a count-min sketch of four-bit counters.
//
// Each key has a counter in each of four rows; its estimate is the least of them, so that it is never too low (up to
// 15). Only the counters that are the least are raised. When as many keys were added as sample_keys says, all counters
// are halved, so that old popularity fades; the halving is spread over the following additions.
// Owns: its counters, 16 bits for each key that it is sized for; nothing is allocated after construction.
// Threads: one. Never blocks. Errors: none.
// Invariants: the same calls give the same estimates; Add costs the same always, also while counters are halved.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace orbitkv::cache {

class FrequencySketch {
 public:
  static constexpr std::uint32_t kMaxEstimate = 15;
  static constexpr std::uint64_t kMaxKeys = std::uint64_t{1} << 32U;

  // keys: how many different ones it should tell apart, at most kMaxKeys. seed: with a secret one nobody can aim at
  // counters. sample_keys: additions from one halving to the next, 0 for ten times keys.
  explicit FrequencySketch(std::uint64_t keys, std::uint64_t seed = 0, std::uint64_t sample_keys = 0)
      : words_(std::bit_ceil(std::clamp<std::uint64_t>(keys, kCountersPerWord, kMaxKeys)) / kWordsDivisor),
        seed_(seed),
        sample_keys_(sample_keys == 0 ? 10 * std::max<std::uint64_t>(keys, 1) : sample_keys) {}

  // key: 64 bits of a hash of it, or any number that is different for each.
  void Add(std::uint64_t key) {
    const Place place = PlaceOf(key);
    const std::uint32_t least = EstimateAt(place);
    if (least < kMaxEstimate) {
      for (std::uint32_t row = 0; row < kRows; ++row) {
        if (CounterAt(place, row) == least) words_[place.word[row]] += std::uint64_t{1} << place.shift[row];
      }
    }
    if (++added_ >= sample_keys_ && halved_ >= words_.size()) {
      added_ = 0;
      halved_ = 0;
    }
    const std::size_t end = std::min(words_.size(), halved_ + kWordsPerAdd);
    for (; halved_ < end; ++halved_) words_[halved_] = (words_[halved_] >> 1U) & 0x7777'7777'7777'7777ULL;
  }

  // At most kMaxEstimate.
  std::uint32_t Estimate(std::uint64_t key) const { return EstimateAt(PlaceOf(key)); }

  std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

 private:
  static constexpr std::uint32_t kRows = 4;
  static constexpr std::uint64_t kCountersPerWord = 16;
  static constexpr std::uint64_t kWordsDivisor = kCountersPerWord / kRows;  // a counter per key and row
  static constexpr std::size_t kWordsPerAdd = 4;                            // so that a halving ends before the next

  struct Place {
    std::array<std::size_t, kRows> word;
    std::array<std::uint32_t, kRows> shift;
  };

  // All rows share the words; each row takes its counters from a quarter of a word of its own, so
  // that two rows never meet in one counter.
  Place PlaceOf(std::uint64_t key) const {
    std::uint64_t mixed = (key ^ seed_) * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 32U)) * 0xbf58476d1ce4e5b9ULL;
    mixed ^= mixed >> 29U;
    Place place{};
    for (std::uint32_t row = 0; row < kRows; ++row) {
      mixed = mixed * 0x94d049bb133111ebULL + 0x2545f4914f6cdd1dULL;
      const std::uint64_t drawn = mixed >> 24U;
      place.word[row] = static_cast<std::size_t>(drawn & (words_.size() - 1));
      place.shift[row] = static_cast<std::uint32_t>((row * kRows + ((drawn >> 36U) & 3U)) * 4);
    }
    return place;
  }

  std::uint32_t CounterAt(const Place& place, std::uint32_t row) const {
    return static_cast<std::uint32_t>((words_[place.word[row]] >> place.shift[row]) & 0xfU);
  }

  std::uint32_t EstimateAt(const Place& place) const {
    std::uint32_t least = kMaxEstimate;
    for (std::uint32_t row = 0; row < kRows; ++row) least = std::min(least, CounterAt(place, row));
    return least;
  }

  std::vector<std::uint64_t> words_;
  std::uint64_t seed_;
  std::uint64_t sample_keys_;
  std::uint64_t added_ = 0;
  std::size_t halved_ = words_.size();  // words that the present halving has done
};

}  // namespace orbitkv::cache
