// What the process tests share: a directory of their own, Managers that run in it, and clients of those.
// Owns: the directory and every program of the test. Threads: one. Blocks: as Program and RawClient do.
// Errors: gtest failures.
#pragma once

#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "program.h"

#include "orbitkv/testing/raw_client.h"

namespace orbitkv::integration {

class ManagerWorld : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::vector<std::string> Command(const std::vector<std::string>& more = {}) const;
  // Not waited for.
  std::unique_ptr<Program> Launch(const std::vector<std::string>& more = {},
                                  const std::function<void()>& before_exec = {});
  // Until its ready line; null, with a failure, when there is none.
  std::unique_ptr<Program> StartManager(const std::vector<std::string>& more = {},
                                        const std::function<void()>& before_exec = {});
  std::unique_ptr<Program> Tool(const std::vector<std::string>& arguments);
  std::string ReadyLine(const Program& manager) const;

  testing::RawClientOptions Options(const std::string& instance = "engine") const;
  std::unique_ptr<testing::RawClient> Open(const testing::RawClientOptions& options);
  double Figure(testing::RawClient& client, const std::string& name);
  bool Becomes(testing::RawClient& client, const std::string& name, double value);

  // Runs `work` in a forked process until it says ready, and returns that process's pid; it then waits to be killed.
  pid_t Fork(const std::function<bool()>& work);
  void Kill(pid_t pid);

  std::filesystem::path directory_;
  std::string socket_;
  std::string pool_ = "16MiB";
};

}  // namespace orbitkv::integration
