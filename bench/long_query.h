// Look-ups of a very long prompt: what a hash costs, and what another client notices of them.
// Owns: nothing after return. Threads: the caller's on cpu 0; the Manager runs on cpu 1. Blocks: about ten seconds.
// Units: nanoseconds per hash, microseconds. Errors: end the program; every answer is
// checked for all blocks.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds query.100000_per_hash_ns beside the same of 10,000 hashes, and query.256_{hot,asleep}_beside_100000_p50_us, the
// look-up of 256 blocks while another client's look-up of 100,000 is under way, beside the same look-up undisturbed.
void MeasureLongQueries(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
