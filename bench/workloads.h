// Request traces made from a seed: shapes of load that the recorded traces do not have.
//
// Owns: what a call returns. Threads: any. Blocks: no. Errors: none. Invariant: the same name gives the same trace.
#pragma once

#include <span>
#include <string_view>

#include "trace.h"

namespace orbitkv::bench {

struct Workload {
  std::string_view name;
  Trace (*make)();
};

// flood: conversations, and now and then a stream of long prompts that nobody asks again.
// shift: prompts of Zipf popularity whose ranks change every few minutes.
// prompts: hundreds of short system prompts, each with many single questions.
// agents: long contexts that grow by tool calls every few seconds, then end.
std::span<const Workload> Workloads();

}  // namespace orbitkv::bench
