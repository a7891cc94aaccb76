// A Manager process from its command line to its end.
#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "manager_world.h"
#include <nlohmann/json.hpp>

#include "orbitkv/os/file.h"

#if defined(__SANITIZE_ADDRESS__)
#define ORBITKV_TEST_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ORBITKV_TEST_UNDER_ASAN 1
#endif
#endif

namespace orbitkv::integration {
namespace {

using ::testing::AllOf;
using testing::Chain;
using ::testing::HasSubstr;
using testing::RawClient;

class ManagerProcess : public ManagerWorld {
 protected:
  // Runs to its end: the exit status, with exactly one line of complaint.
  std::pair<int, std::string> Complaint(Program& program) {
    const auto status = program.WaitExit();
    EXPECT_TRUE(status) << "still running";
    std::string text = program.error();
    const std::size_t at = text.find("orbitkv");
    EXPECT_EQ(program.output(), "");
    text = at == std::string::npos ? text : text.substr(at);
    EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
    return {status.value_or(-1), text};
  }
};

TEST_F(ManagerProcess, SaysReadyOnceAndLeavesOnlyItsLockFile) {
  for (const int signal : {SIGTERM, SIGINT}) {
    auto manager = StartManager();
    ASSERT_TRUE(manager);
    struct stat info = {};
    ASSERT_EQ(::stat(socket_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
    ASSERT_EQ(::stat((directory_ / "run").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0700U);
    auto client = Open(Options());
    ASSERT_TRUE(client && client->Ping());
    manager->Signal(signal);
    EXPECT_EQ(manager->WaitExit(), 0);
    EXPECT_EQ(manager->output(), ReadyLine(*manager) + "\n");
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "run")) {
      left.push_back(entry.path().filename());
    }
    EXPECT_THAT(left, ::testing::ElementsAre("m.sock.lock"));
  }
}

TEST_F(ManagerProcess, AReaderOfItsOutputThatGoesAwayEndsNothing) {
  auto manager = StartManager();
  ASSERT_TRUE(manager);
  manager->Signal(SIGPIPE);
  auto client = Open(Options());
  EXPECT_TRUE(client && client->Ping());
  manager->Signal(SIGTERM);
  EXPECT_EQ(manager->WaitExit(), 0);
}

TEST_F(ManagerProcess, ASecondOneOnTheSameSocketIsRefusedNamingThePid) {
  auto manager = StartManager();
  ASSERT_TRUE(manager);
  auto second = Launch();
  const auto [status, text] = Complaint(*second);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, AllOf(HasSubstr("pid " + std::to_string(manager->pid())), HasSubstr(socket_)));
  auto client = Open(Options());
  EXPECT_TRUE(client && client->Ping());
}

TEST_F(ManagerProcess, ANewOneStartsAfterAKill) {
  for (int i = 0; i < 3; ++i) {
    auto manager = StartManager();
    ASSERT_TRUE(manager);
    auto client = Open(Options());
    EXPECT_EQ(client->Publish(Chain(1, 4)).value(), 4U);
    manager->Signal(SIGKILL);
    EXPECT_EQ(manager->WaitExit(), 128 + SIGKILL);
    EXPECT_TRUE(std::filesystem::exists(socket_));
  }
}

TEST_F(ManagerProcess, WaitsForALockThatIsHeldWithoutAnAnswer) {
  std::filesystem::create_directories(directory_ / "run");
  auto held = os::FileLock::TryAcquire(socket_ + ".lock");
  ASSERT_TRUE(held && *held);
  auto impatient = Launch({"--lock-wait-ms", "100"});
  const auto [status, text] = Complaint(*impatient);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, HasSubstr(socket_ + ".lock"));
  auto patient = Launch({"--lock-wait-ms", "60000"});
  held->reset();
  EXPECT_EQ(patient->WaitLine(), ReadyLine(*patient)) << patient->error();
}

TEST_F(ManagerProcess, AnotherUserIsRefused) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto manager = StartManager();
  ASSERT_TRUE(manager);
  // Open every door that the file system keeps, so that only the credentials are left.
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod((directory_ / "run").c_str(), 0755), 0);
  ASSERT_EQ(::chmod(socket_.c_str(), 0666), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(9);
    const auto client = RawClient::Connect(Options());
    ::_exit(client ? 1 : client.error().code == Code::kRefused ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  auto client = Open(Options());
  EXPECT_TRUE(client && client->Ping());
}

TEST_F(ManagerProcess, StatusShowsTheFigures) {
  auto manager = StartManager();
  ASSERT_TRUE(manager);
  auto client = Open(Options());
  ASSERT_TRUE(client);
  ASSERT_EQ(client->Publish(Chain(1, 5)).value(), 5U);
  auto json_tool = Tool({"status", "--socket", socket_, "--json"});
  EXPECT_EQ(json_tool->WaitExit(), 0) << json_tool->error();
  const auto json = nlohmann::json::parse(json_tool->output());
  EXPECT_EQ(json["pid"], manager->pid());
  EXPECT_EQ(json["incarnation"].get<std::string>().size(), 32U);
  std::map<std::string, double> values;
  for (const auto& sample : json["samples"]) values[sample["name"]] = sample["value"];
  EXPECT_EQ(values["orbitkv_blocks_resident"], 5);
  EXPECT_EQ(values["orbitkv_sessions"], 1);
  EXPECT_EQ(values["orbitkv_pool_bytes"], 16 << 20);
  EXPECT_GT(values["orbitkv_limit_leased_bytes_per_instance"], 0);
  auto text_tool = Tool({"status", "--socket", socket_});
  EXPECT_EQ(text_tool->WaitExit(), 0);
  EXPECT_THAT(text_tool->output(), HasSubstr("orbitkv_blocks_resident"));
}

TEST_F(ManagerProcess, StatusWithoutAManagerSaysSo) {
  auto tool = Tool({"status", "--socket", socket_});
  const auto [status, text] = Complaint(*tool);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(text, HasSubstr(socket_));
}

TEST_F(ManagerProcess, BadInputIsOneLineAndStatusTwo) {
  const std::filesystem::path config = directory_ / "manager.toml";
  ASSERT_TRUE(os::ReplaceFile(config, "pool_byte = \"1GiB\"\n"));
  ASSERT_TRUE(os::ReplaceFile(directory_ / "file", ""));
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--pool-byte", "1GiB"}, "--pool-bytes"}, {{"--pool-bytes", "1TB"}, "TiB"},
      {{"--pool-bytes", "4TiB"}, "larger than"}, {{"--config", config}, "pool_bytes"},
      {{"--max-sessions", "0"}, "max_sessions"}, {{"--socket", directory_ / "file" / "m.sock"}, "--socket"},
      {{"--config", directory_}, "--config"},    {{"serve"}, "--help"},
  };
  for (const auto& [arguments, expected] : cases) {
    std::vector<std::string> command = {ORBITKV_MANAGER_PROGRAM, "--log-level", "off"};
    if (arguments.front() != "--socket") command.insert(command.end(), {"--socket", socket_});
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program(directory_, command);
    const auto [status, text] = Complaint(program);
    EXPECT_EQ(status, 2) << text;
    EXPECT_THAT(text, HasSubstr(expected));
  }
  EXPECT_FALSE(std::filesystem::exists(socket_));
}

TEST_F(ManagerProcess, TablesThatFindNoMemoryAreOneLine) {
#ifdef ORBITKV_TEST_UNDER_ASAN
  GTEST_SKIP() << "the sanitizer's own shadow is larger than any limit";
#endif
  auto program = Launch({"--log-level", "off", "--max-slots", "20000000"}, [] {
    const rlimit limit = {std::uint64_t{3} << 30U, std::uint64_t{3} << 30U};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(125);
  });
  const auto [status, text] = Complaint(*program);
  EXPECT_EQ(status, 2) << text;
  EXPECT_THAT(text, HasSubstr("--max-slots"));
}

TEST_F(ManagerProcess, ADirectoryThatItMayNotWriteIsNamedWithTheRemedy) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  // The other user may read the program and everything on the way, and write nothing.
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  const auto program = directory_ / "manager";
  std::filesystem::copy_file(ORBITKV_MANAGER_PROGRAM, program);
  ASSERT_TRUE(os::EnsureDirectory(directory_ / "run", 0755));
  for (const char* socket : {"run/m.sock", "run/deeper/m.sock"}) {
    Program manager(directory_, {program, "--log-level", "off", "--socket", directory_ / socket, "--pool-bytes", pool_},
                    [] {
                      if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(125);
                    });
    const auto [status, text] = Complaint(manager);
    EXPECT_EQ(status, 2) << text;
    EXPECT_THAT(text, AllOf(HasSubstr(socket), HasSubstr("make its directory writable")));
  }
}

TEST_F(ManagerProcess, HelpAndVersion) {
  Program help(directory_, {ORBITKV_MANAGER_PROGRAM, "--help"});
  EXPECT_EQ(help.WaitExit(), 0);
  EXPECT_THAT(help.output(), AllOf(HasSubstr("--socket"), HasSubstr("--pool-bytes"), HasSubstr("--config")));
  Program version(directory_, {ORBITKV_MANAGER_PROGRAM, "--version"});
  EXPECT_EQ(version.WaitExit(), 0);
  EXPECT_THAT(version.output(), HasSubstr("orbitkv-manager "));
  auto tool = Tool({"--version"});
  EXPECT_EQ(tool->WaitExit(), 0);
  auto unknown = Tool({"statu"});
  EXPECT_EQ(unknown->WaitExit(), 2);
}

}  // namespace
}  // namespace orbitkv::integration
