// A program that a test moves by lines on its standard input; each is answered by one line.
// Owns: the process (ended by the destructor). Threads: one. Blocks: every call, for kPatienceNs at most.
// Errors: a line that does not come is empty.
// Invariant: one line is answered before the next is sent.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "program.h"

#include "orbitkv/os/unique_fd.h"

namespace orbitkv::integration {

class DrivenProgram {
 public:
  DrivenProgram(const std::filesystem::path& directory, const std::vector<std::string>& command);

  Program& program() { return *program_; }
  const Program& program() const { return *program_; }
  // The next line that it prints.
  std::string Next();
  // Next, after it was told this.
  std::string Do(const std::string& line);

 private:
  os::UniqueFd input_;
  std::unique_ptr<Program> program_;
  std::size_t lines_ = 0;
};

}  // namespace orbitkv::integration
