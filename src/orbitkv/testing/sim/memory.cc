#include "orbitkv/testing/sim/memory.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/base/prng.h"

namespace orbitkv::sim {

void FillPage(std::uint64_t write, std::uint32_t page, std::span<std::byte> out) {
  Prng prng(write * 0x9e3779b97f4a7c15ULL + page);
  for (std::size_t at = 0; at < out.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = prng.Next();
    std::memcpy(out.data() + at, &word, std::min(sizeof(word), out.size() - at));
  }
}

void Touching::Add(std::uint64_t generation) {
  if (++memory_->touched[generation] == 2) ++memory_->shared;
  generations_.push_back(generation);
}

void Touching::Clear() {
  for (const std::uint64_t generation : generations_) {
    const auto found = memory_->touched.find(generation);
    const std::uint32_t left = --found->second;
    if (left == 1) --memory_->shared;
    if (left == 0) memory_->touched.erase(found);
  }
  generations_.clear();
}

}  // namespace orbitkv::sim
