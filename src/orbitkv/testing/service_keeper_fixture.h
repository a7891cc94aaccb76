// What a service manager does for a service: keeps the descriptors that it is sent, by name, and passes them on.
// Owns: its socket and what it keeps. Threads: one. Blocks: no. Errors: a broken check where the system refuses.
#pragma once

#include <map>
#include <string>

#include "orbitkv/os/unique_fd.h"

namespace orbitkv::testing {

class ServiceKeeper {
 public:
  // path: of the socket that it is told at.
  explicit ServiceKeeper(std::string path);
  ~ServiceKeeper();
  ServiceKeeper(const ServiceKeeper&) = delete;
  ServiceKeeper& operator=(const ServiceKeeper&) = delete;

  // Takes what was sent.
  void Receive();
  const std::string& path() const { return path_; }
  std::map<std::string, os::UniqueFd>& kept() { return kept_; }
  bool ready() const { return ready_; }
  std::map<std::string, os::UniqueFd> Copies() const;
  // In a child before exec: the environment and descriptors that the service finds.
  void PassOn() const;

 private:
  const std::string path_;
  os::UniqueFd socket_;
  std::map<std::string, os::UniqueFd> kept_;
  bool ready_ = false;
};

}  // namespace orbitkv::testing
