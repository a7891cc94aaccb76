// A process with the real client (client_driver.cc) that a test moves step by step.
// Owns: the process (ended by the destructor). Threads: one. Blocks: every call, for kPatienceNs at most.
// Errors: gtest failures; an answer that does not come is empty.
// Invariant: one line is answered before the next is sent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "driven_program.h"

namespace orbitkv::integration {

class DrivenClient {
 public:
  // Until it is connected and registered. A deadline of the client's calls that is missed shows; the default never is.
  DrivenClient(const std::filesystem::path& directory, const std::string& socket, const std::string& instance,
               std::uint64_t deadline_ms = 20'000);

  Program& program() { return driven_.program(); }
  std::string Do(const std::string& line) { return driven_.Do(line); }
  // Do, and a failure unless the answer is this.
  void Expect(const std::string& line, const std::string& answer);
  // A whole save or load of the four blocks of a chain: "save ok", "load ok", or what came instead.
  std::string Save(std::uint32_t chain);
  std::string Load(std::uint32_t chain);

  // How many requests its sessions have put into their rings.
  std::uint64_t Posted() const;
  std::size_t Sockets() const;

 private:
  DrivenProgram driven_;
};

}  // namespace orbitkv::integration
