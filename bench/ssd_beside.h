// How fast blocks come back from RAM while the Manager writes others to its SSD as fast as that takes them.
// Owns: its store below the scratch folder while it runs, 2 GiB, and a Manager with 2 GiB of pool. Threads: the
// caller's and the client's. Blocks: for the whole measurement, about half a minute. Units: 1e9 payload bytes a second.
// Errors: end the program, also when a block does not come back as it was.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds restore.gbps.1MiB.beside_ssd_writes (baseline: the same restores in turn with them, when nothing is written) and
// ssd.write_gbps.beside_restores.
void MeasureRestoreBesideSsdWrites(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
