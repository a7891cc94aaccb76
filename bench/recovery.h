// How long a Manager takes to serve what an earlier one left: a pool of 4 GiB, killed and started again.
// Threads: one. Blocks: for the processes that it starts. Units: milliseconds. Errors: ends the program.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

void MeasureRecovery(const std::string& manager_program, Report& report);

}  // namespace orbitkv::bench
