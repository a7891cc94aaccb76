// Becoming another program.
// Owns: nothing. Threads: any; the caller's process ends with its threads when it works. Blocks: no.
// Errors: kNotFound when there is no such program, kIo otherwise; nothing has changed then.
#pragma once

#include <span>
#include <string>

#include "orbitkv/base/result.h"

namespace orbitkv::os {

// command: the program, looked for in PATH unless it has a slash, and its arguments. Returns only when it did not work.
Status Exec(std::span<const std::string> command);

}  // namespace orbitkv::os
