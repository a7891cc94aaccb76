// What a control round trip is compared with: a bare ring of descriptors, an eventfd ping-pong, a gRPC callback
// service. Each starts a peer process tied to one cpu and times single round trips from the calling thread. Owns: the
// peer and the memory or sockets shared with it. Threads: one (gRPC has its own). Blocks: for each round trip. Units:
// microseconds. Errors: end the program, a benchmark without its baseline says nothing.
#pragma once

#include <memory>
#include <string>

namespace orbitkv::bench {

class RoundTrip {
 public:
  virtual ~RoundTrip() = default;
  virtual void Call() = 0;
};

// Two 64-byte descriptor slots in shared memory; both sides spin; the peer dozes between bursts of calls.
std::unique_ptr<RoundTrip> MakeBareRing(int peer_cpu);
// A wake-up each way through two eventfds; both sides sleep.
std::unique_ptr<RoundTrip> MakeEventFdPingPong(int peer_cpu);
// A unary call of a callback service over a Unix socket. Made last: the process has gRPC's threads afterwards.
std::unique_ptr<RoundTrip> MakeGrpcEcho(int peer_cpu, const std::string& socket_path);

}  // namespace orbitkv::bench
