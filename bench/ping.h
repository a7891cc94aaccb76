// Round trips through the channel beside their baselines, and what an idle Manager costs.
// Owns: nothing after return. Threads: the caller's, tied to cpu 0; the Manager's dispatcher runs on cpu 1.
// Blocks: for the whole measurement, about 25 s. Units: microseconds, percent of one cpu. Errors: end the program.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds ping.hot_p50_us (twice: against gRPC and against a bare ring), ping.asleep_p50_us and manager.idle_cpu_percent.
void MeasurePing(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
