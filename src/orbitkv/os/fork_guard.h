// Tells a process that was forked from the one that called ForkGuard first, for the price of one load.
// Shared mappings are absent from a forked child and its threads do not exist, so calls on inherited objects are
// refused. Threads: any. Blocks: no.
#pragma once

namespace orbitkv::os {

// Call once before fork could happen; repeated calls do nothing.
void ArmForkGuard();
// True in a child of a process that had armed the guard.
bool Forked();

}  // namespace orbitkv::os
