// What a control round trip is compared with: a bare ring of descriptors, an eventfd ping-pong, a Unix socket, a gRPC
// callback service. The peer is a process tied to one cpu (-1: any); single round trips are made by the calling thread.
// Owns: the peer and the memory or sockets shared with it. Threads: one (gRPC has its own). Blocks: for each round
// trip. Units: bytes. Errors: end the program, a benchmark without its baseline says nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "child.h"

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
// A server on a Unix socket that answers each request with 64 bytes, for any number of clients, and one such client.
// The request is at least 64 bytes and at most 64 KiB.
Child StartSocketEcho(int peer_cpu, const std::string& path);
std::unique_ptr<RoundTrip> MakeSocketTrip(const std::string& path, std::size_t request_bytes);
// A unary call of a callback service over a Unix socket. Made last: the process has gRPC's threads afterwards.
std::unique_ptr<RoundTrip> MakeGrpcEcho(int peer_cpu, const std::string& socket_path);

}  // namespace orbitkv::bench
