// What eviction policies cost per block that is touched, inserted or evicted.
// Owns: nothing after return. Threads: the caller's. Blocks: about 5 s.
// Units: microseconds of processor time, so that what else the machine does hardly counts.
// Errors: none.
#pragma once

#include "report.h"

namespace orbitkv::bench {

// Adds policy.us_per_block.NAME for all policies and policy.worst_call_us.reuse.
void MeasurePolicyCost(Report& report);

}  // namespace orbitkv::bench
