// Tells a process that was forked from the one that made an object, for the price of one load.
// Shared mappings are absent from a forked child and its threads do not exist, so calls on inherited objects are
// refused; objects that the child makes itself work. Threads: any. Blocks: no.
#pragma once

#include <cstdint>

namespace orbitkv::os {

// Counts the forks between this process and the first one that asked.
std::uint32_t ForkGeneration();

class ForkGuard {
 public:
  ForkGuard() : generation_(ForkGeneration()) {}
  bool InChild() const { return ForkGeneration() != generation_; }

 private:
  std::uint32_t generation_;
};

}  // namespace orbitkv::os
