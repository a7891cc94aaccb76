// A Cache Manager: one object that holds the pool, the deciding core, the threads and the socket of one host.
//
// Owns: everything of one Manager life. Threads: Start and Stop by the owner; Stop is idempotent. Its own threads are
//       the bootstrap server's, the dispatcher, the verifier, the pool's reserver and those of the backing.
// Blocks: Start, while a killed Manager's lock or memory is torn down, at most Config::lock_wait_ms for each; Stop,
//         until every thread has ended.
// Errors: Start says in one line for people what is wrong and what to do, and leaves nothing behind.
// Invariant: after Stop the socket is gone, the lock file stays and is free.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <string>

#include "orbitkv/base/units.h"
#include "orbitkv/manager/backing.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/os/unique_fd.h"

namespace orbitkv::manager {

struct StartError {
  std::string text;
  bool bad_configuration = false;  // the same settings fail again on this machine
};

// What the service manager that started this process keeps for it.
struct Keeper {
  std::string notify_socket;                   // where to leave descriptors; empty: there is none
  std::map<std::string, os::UniqueFd> passed;  // that an earlier process has left, by name
};

class Manager {
 public:
  // backing: where blocks may be had that are not in the pool; null for nowhere.
  static std::expected<std::unique_ptr<Manager>, StartError> Start(const Config& config,
                                                                   std::unique_ptr<Backing> backing = nullptr,
                                                                   Keeper keeper = {});
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  void Stop();

  Incarnation incarnation() const;
  std::uint64_t pool_bytes() const;
  // "orbitkv-manager ready socket=PATH pool_bytes=N pid=N"
  std::string ReadyLine() const;

 private:
  struct Parts;
  explicit Manager(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace orbitkv::manager
