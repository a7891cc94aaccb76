// orbitkv-bench replay: how often a request trace would have hit under an eviction policy.
// Owns: nothing. Threads: one. Blocks: reads the trace, computes for up to seconds per policy and size.
// Units: blocks. Errors: printed, exit status 1. Invariant: with --json nothing but JSON is on standard output.
#pragma once

namespace orbitkv::bench {

// argv[0] is "replay".
int RunReplay(int argc, char** argv);

}  // namespace orbitkv::bench
