// What the model test of this folder remembers of the engines that it plays.
// Owns: plain values. Threads: values. Blocks: no. Units: blocks. Errors: none.
// Invariant: none; the model keeps them in step with the Service.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/service/types.h"
#include "orbitkv/state/state_key.h"
#include "orbitkv/wire/commands.h"

namespace orbitkv::service {

struct Engine {
  std::string name;
  std::uint32_t world = 1;
  bool other_model = false;
};

struct Peer {
  SessionId id{};
  std::size_t engine = 0;
  std::uint32_t rank = 0;
  bool detached = false;
};

struct Writing {
  SessionId session;
  std::uint32_t shard = 0;
  ReservationId id;
  std::vector<state::BlockHash> hashes;
  std::vector<wire::ReserveEntry> entries;
};

struct Restore {
  std::size_t engine = 0;
  SessionId beginner;
  std::uint64_t blocks = 0;
  std::map<std::uint32_t, SessionId> open;  // rank -> session that armed it, or none
  std::map<std::uint32_t, std::vector<wire::PlanEntry>> plans;
};

// A look-up that was answered "loading".
struct Waiting {
  SessionId session;
  std::size_t engine = 0;
  Ticket ticket;
  bool prepared = false;
};

}  // namespace orbitkv::service
