// How fast pages move between an engine's memory and the pool, with checksums, beside plain copies of the same pages.
// Owns: nothing after return. Threads: the caller's and two pinned ones for each side, which sleep between runs.
// Blocks: for the whole measurement, about half a minute. Units: 1e9 payload bytes a second. Errors: end the program,
// also when a copy leaves a wrong byte.
#pragma once

#include "report.h"

namespace orbitkv::bench {

// Adds publish.gbps.SHAPE and restore.gbps.SHAPE.{ordinary,nt} on a populated mapping of the pool, and the same with
// .cold on one made for the run. SHAPE is 30x24KiB (128 blocks of 30 pages), 64KiB or 1MiB (256 blocks of one page).
void MeasureCopyRates(Report& report);

}  // namespace orbitkv::bench
