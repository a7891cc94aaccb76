#include "orbitkv/testing/sim/rules.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace orbitkv::sim {

Rules::Rules(std::vector<state::GroupShape> groups) : groups_(std::move(groups)) {
  if (groups_.empty()) return;
  hash_tokens_ = groups_.front().hash_block_tokens;
  if (hash_tokens_ != 0) return;
  for (const state::GroupShape& group : groups_) hash_tokens_ = std::gcd(hash_tokens_, group.block_tokens);
}

bool Rules::IsBoundary(std::uint32_t position) const {
  return position > 0 && std::ranges::all_of(groups_, [&](const state::GroupShape& group) {
           return std::uint64_t{position} * hash_tokens_ % group.block_tokens == 0;
         });
}

// Whether the next token reads a block whose last token is block_end - 1.
bool Rules::Reads(const state::GroupShape& group, std::uint64_t next_token, std::uint64_t block_end) const {
  const std::uint64_t last = block_end - 1;
  switch (group.kind) {
    case state::GroupKind::kFullAttention: return true;
    case state::GroupKind::kSlidingWindow: return next_token - last < group.span_tokens;
    case state::GroupKind::kRecurrent: return block_end == next_token;
    case state::GroupKind::kChunkedLocal: return last / group.span_tokens == next_token / group.span_tokens;
  }
  return true;
}

std::vector<Place> Rules::Needs(std::uint32_t prefix, std::uint32_t boundary) const {
  std::vector<Place> needs;
  const std::uint64_t next_token = std::uint64_t{prefix + boundary} * hash_tokens_;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    const std::uint32_t ratio = RatioOf(group);
    for (std::uint32_t end = (prefix / ratio + 1) * ratio; end <= prefix + boundary; end += ratio) {
      if (Reads(groups_[group], next_token, std::uint64_t{end} * hash_tokens_)) {
        needs.push_back({group, end - 1 - prefix});
      }
    }
  }
  return needs;
}

std::vector<std::uint32_t> Rules::Boundaries(std::uint32_t prefix, std::uint32_t hashes,
                                             const std::function<bool(Place)>& there) const {
  // Asked once each: who answers may have to search.
  std::vector<std::vector<bool>> has(groups_.size(), std::vector<bool>(hashes));
  std::uint32_t end = hashes;  // no boundary lies behind a hole in what is needed whole
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    for (std::uint32_t index = 0; index < end; ++index) {
      if ((prefix + index + 1) % RatioOf(group) != 0) continue;
      has[group][index] = there({group, index});
      if (has[group][index] || groups_[group].kind != state::GroupKind::kFullAttention) continue;
      end = index;
    }
  }
  std::vector<std::uint32_t> boundaries;
  for (std::uint32_t boundary = 1; boundary <= end; ++boundary) {
    if (!IsBoundary(prefix + boundary)) continue;
    const auto needs = Needs(prefix, boundary);
    if (std::ranges::all_of(needs, [&](Place place) { return has[place.group][place.index]; })) {
      boundaries.push_back(boundary);
    }
  }
  return boundaries;
}

}  // namespace orbitkv::sim
