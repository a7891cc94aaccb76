// How fast blocks of 1 MiB go to an SSD store and come back, beside fio on a file of the same file system, and what
// finding the store's contents at start takes. Owns: its files below the scratch folder while it runs, 13 GiB. Threads:
// the caller's and the store's. Blocks: for the whole measurement, about a minute. Units: 1e9 bytes a second. Errors:
// end the program, also when a block comes back wrong.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds ssd.write_gbps and ssd.read_gbps (baseline: fio with the same size and depth on a file that was written once;
// the bare device through the transfer engine where fio is not installed), ssd.recovery_s_per_100gib (a store of 8 GiB,
// scaled) and ssd.index_bytes_per_block.
void MeasureSsdRates(const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
