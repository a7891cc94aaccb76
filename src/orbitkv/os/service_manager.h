// What a service manager (systemd) and its service tell each other: readiness, and descriptors that it keeps for the
// service's next start. The protocol is a datagram of lines to a socket, and descriptors from number 3 on.
// Owns: nothing. Threads: Notify any; TakePassedFds once, before any thread. Blocks: no.
// Errors: kInvalid for a socket path that is none, kUnavailable when nobody listens, kIo otherwise.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "orbitkv/base/result.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::os {

// socket: the value of NOTIFY_SOCKET; text: lines such as "READY=1".
Status NotifyServiceManager(const std::string& socket, std::string_view text, std::span<const int> fds = {});

using GetEnv = std::function<std::optional<std::string>(std::string_view)>;
// The descriptors that this process was started with, by name; the first of a name counts, and those that are not for
// this process (LISTEN_PID) are none. They are closed on exec from now on.
std::map<std::string, UniqueFd> TakePassedFds(const GetEnv& get_env);

}  // namespace orbitkv::os
