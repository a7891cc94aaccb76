// Ping and look-up with several clients at once, beside two busy processes, and what many clients cost while they idle.
// Owns: nothing after return. Threads: one for each client, tied to cpu 0; Manager and baseline server run on cpu 1.
// Blocks: for the whole measurement, about two minutes. Units: as each row says. Errors: end the program, as a wrong
// answer does.
#pragma once

#include <string>

#include "report.h"

namespace orbitkv::bench {

// Adds, for 1, 2, 8 and 32 clients, {ping,query.256}.clients_N_{p50,p99}_us, _kcalls (all clients together, thousands a
// second) and _asleep_{p50,p99}_us, each beside the same number of clients of a Unix socket that carries the same
// bytes; ping.two_hogs_{hot,asleep}_{p50,p99}_us beside a Unix socket under the same hogs;
// manager.idle_32_clients_cpu_percent and manager.kib_per_session.
void MeasureClients(const std::string& manager_program, const std::string& scratch, Report& report);

}  // namespace orbitkv::bench
