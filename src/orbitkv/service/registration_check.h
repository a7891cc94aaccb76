// Whether a registration makes sense by itself, and whether it agrees with the instance that it names.
// Owns: nothing. Threads: pure functions. Blocks: no. Units: none.
// Errors: a text for people that names the remedy, with both values where two disagree; empty when all is well.
#pragma once

#include <string>

#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

std::string CheckRegistration(const Registration& registration, const Limits& limits);
std::string CheckAgreement(const Registration& registration, const Instance& instance);

// Whether every rank would be live and no namespace is formed yet; instance is null for the first of its name.
bool CompletesRanks(const Registration& registration, const Instance* instance);
// Of a registration that completes the ranks: whether every shard has a rank.
std::string CheckCoverage(const Registration& registration, const Instance* instance);

}  // namespace orbitkv::service
