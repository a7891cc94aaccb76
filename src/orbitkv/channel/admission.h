// Which greetings are taken, and what those are told that are not.
// Owns: nothing. Threads: any; pure but for looking at the pidfd. Blocks: no.
// Errors: none; a refusal names what the client or the operator can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "orbitkv/channel/bootstrap_server.h"
#include "orbitkv/os/unique_fd.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/wire/frame.h"

namespace orbitkv::channel {

struct Greeting {
  const os::PeerCredentials& peer;
  const wire::Hello& hello;
  std::span<const os::UniqueFd> fds;
};

// Sessions of the kind that the greeting asks for.
struct Places {
  std::size_t attached = 0;
  std::size_t detached = 0;  // without a connection, until their process ends or has drained

  // Those without a connection have as many places of their own, so that a client whose earlier sessions still wait
  // finds room for the next one.
  std::size_t taken(std::size_t limit) const { return attached + (detached > limit ? detached - limit : 0); }
};

// wait_ns: until the process may open another session for its pace.
std::optional<wire::Refusal> JudgeGreeting(const BootstrapOptions& options, const Greeting& greeting,
                                           const Places& places, std::uint64_t wait_ns);
wire::Refusal RefusalOf(const BootstrapOptions& options, Code code, std::string text);

}  // namespace orbitkv::channel
