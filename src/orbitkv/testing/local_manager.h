// A whole Manager in the test's process, on a socket that the test names, for tests of what talks to one.
// Owns: the Manager. Threads: the Manager's own; Start and destruction by the test. Blocks: both, as manager::Manager.
// Units: bytes. Errors: what cannot start ends the test. Invariant: nothing is left behind after the destructor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "orbitkv/manager/manager.h"

namespace orbitkv::testing {

class LocalManager {
 public:
  LocalManager(const std::string& socket_path, std::uint64_t pool_bytes);
  ~LocalManager();
  LocalManager(const LocalManager&) = delete;
  LocalManager& operator=(const LocalManager&) = delete;

 private:
  std::unique_ptr<manager::Manager> manager_;
};

}  // namespace orbitkv::testing
