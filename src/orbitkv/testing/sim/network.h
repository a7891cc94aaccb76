// The sockets between clients and the Manager, and how late things arrive on them.
//
// What one socket carries arrives in order; different sockets know nothing of each other, and the death of a process
// may be seen before what it sent last. Requests and answers do not pass here: they lie in the session's rings until
// somebody looks.
//
// Owns: what is under way. Threads: one. Blocks: no.
// Errors: none; what is sent on a socket that is closed is lost.
// Invariant: a socket delivers nothing to the Manager after its process was seen to have died.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "orbitkv/base/prng.h"
#include "orbitkv/testing/sim/manager.h"

namespace orbitkv::sim {

class Process;

class Network {
 public:
  void Open(std::uint64_t life, SessionId session, Process* process);
  void Send(std::uint64_t life, const Frame& frame);
  // The client closes its end; its process may live on.
  void HangUp(std::uint64_t life, SessionId session);
  // The process is gone: it hears nothing more, and the Manager will see that it died.
  void Kill(Process* process);
  void Take(std::uint64_t life, std::vector<Reply> replies);
  // The Manager is gone: whoever is connected to it will see the end of the connection.
  void ManagerGone(std::uint64_t life);

  bool idle() const;
  // Delivers one thing on a random socket. manager: null when there is none.
  void Deliver(Prng& prng, ManagerLife* manager);

 private:
  using Key = std::pair<std::uint64_t, SessionId>;
  struct Socket {
    Process* process = nullptr;  // null when it has died
    bool open = true;            // the client has not hung up
    std::deque<Frame> up;
    std::deque<Reply> down;
    bool dying = false;
    bool manager_gone = false;
  };

  std::map<Key, Socket> sockets_;
};

}  // namespace orbitkv::sim
