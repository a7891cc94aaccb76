// The segments of a store: which are free, which one is being written, which of the sealed ones is the oldest.
//
// Owns: for each segment the list of its index entries, four bytes a record. Threads: one. Blocks: no.
// Units: counts. Errors: none.
// Invariant: a segment is freed only when nobody reads or writes it. No two segments are ever begun under one sequence:
//            each life of the store skips some, at random. The next one after those on the device may have been used
//            before, by a Manager that died when records and summary had reached the device and the header had not.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "orbitkv/store/index.h"

namespace orbitkv::store {

struct Segment {
  enum class State : std::uint8_t { kFree, kOpen, kSealed };
  State state = State::kFree;
  std::uint64_t sequence = 0;
  std::vector<EntryId> entries;
  std::uint32_t readers = 0;
  std::uint32_t writers = 0;
};

class Segments {
 public:
  // skip: sequences, random for each opening of the store.
  Segments(std::uint32_t count, std::uint32_t skip) : segments_(count), skip_(skip) {}

  Segment& at(std::uint32_t index) { return segments_[index]; }
  const Segment& at(std::uint32_t index) const { return segments_[index]; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(segments_.size()); }
  std::uint32_t free_count() const { return static_cast<std::uint32_t>(free_.size()); }

  // As it was found on disk. Once for each segment, before anything else.
  void Found(std::uint32_t index, Segment::State state, std::uint64_t sequence);
  // The segment that has been free for longest is open from now on, under the next sequence.
  std::optional<std::uint32_t> Open();
  void Seal(std::uint32_t index) { segments_[index].state = Segment::State::kSealed; }
  void Free(std::uint32_t index);
  // Sealed and not being written.
  std::optional<std::uint32_t> Oldest() const;
  // Of two records of a key the one that lies later in the log counts, in whatever order their writes end.
  bool Later(Location one, Location other) const;

 private:
  std::vector<Segment> segments_;
  std::deque<std::uint32_t> free_;
  std::uint32_t skip_;
  std::uint64_t last_sequence_ = 0;
};

}  // namespace orbitkv::store
