#include "orbitkv/store/segments.h"

#include <algorithm>
#include <utility>

#include "orbitkv/base/check.h"

namespace orbitkv::store {

void Segments::Found(std::uint32_t index, Segment::State state, std::uint64_t sequence) {
  segments_[index].state = state;
  segments_[index].sequence = sequence;
  last_sequence_ = std::max(last_sequence_, sequence);
  if (state == Segment::State::kFree) free_.push_back(index);
}

std::optional<std::uint32_t> Segments::Open() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t index = free_.front();
  free_.pop_front();
  segments_[index].state = Segment::State::kOpen;
  last_sequence_ += std::uint64_t{1} + std::exchange(skip_, 0);
  segments_[index].sequence = last_sequence_;
  return index;
}

void Segments::Free(std::uint32_t index) {
  Segment& segment = segments_[index];
  ORBITKV_CHECK(segment.state == Segment::State::kSealed && segment.readers == 0 && segment.writers == 0);
  segment.state = Segment::State::kFree;
  std::vector<EntryId>().swap(segment.entries);
  free_.push_back(index);
}

std::optional<std::uint32_t> Segments::Oldest() const {
  std::optional<std::uint32_t> oldest;
  for (std::uint32_t index = 0; index < segments_.size(); ++index) {
    const Segment& segment = segments_[index];
    if (segment.state != Segment::State::kSealed || segment.writers > 0) continue;
    if (!oldest || segment.sequence < segments_[*oldest].sequence) oldest = index;
  }
  return oldest;
}

bool Segments::Later(Location one, Location other) const {
  if (one.segment == other.segment) return one.sector > other.sector;
  return segments_[one.segment].sequence > segments_[other.segment].sequence;
}

}  // namespace orbitkv::store
