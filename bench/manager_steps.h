// What a million blocks cost the Manager: the longest step of its one deciding thread while they are inserted, and the
// memory that they take.
// Owns: nothing after return. Threads: the caller's; the real Manager of the memory figure runs on cpu 1.
// Blocks: about half a minute. Units: microseconds of processor time, so that what else runs on the machine does not
// count; MiB. Errors: end the program.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds dispatcher.worst_step_us.{512,4096}: reserves and commits of so many blocks (the native client sends at most
// 512, a request may name 4,096) through the Manager's deciding half, with evictions and its timers, but without the
// channel; query.rejected_100000_ns, a look-up that is not admitted, beside one of 256 hashes; and
// manager.mib_per_million_blocks, measured on a Manager process.
void MeasureManagerSteps(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
