// Look-ups of 256 resident blocks through the native client.
// Owns: nothing after return. Threads: the caller's, tied to cpu 0; the Manager runs on cpu 1. Blocks: about 10 s.
// Units: microseconds. Errors: end the program; every answer is checked for all 256 blocks.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds query.256_hot_p50_us and query.256_asleep_p50_us.
void MeasureLookup(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
