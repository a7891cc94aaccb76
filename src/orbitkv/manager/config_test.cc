#include "orbitkv/manager/config.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace orbitkv::manager {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Strings = std::vector<std::string>;

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("orbitkv_config_" + std::to_string(getpid()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string File(const std::string& text) {
    const std::string path = dir_ / "manager.toml";
    std::ofstream(path) << text;
    return path;
  }
  static Config Good(const Strings& args, const Strings& environment = {}) {
    auto line = ParseCommandLine(args, environment);
    EXPECT_TRUE(line) << (line ? "" : line.error());
    return line ? line->config : Config{};
  }
  static std::string Bad(const Strings& args, const Strings& environment = {}) {
    auto line = ParseCommandLine(args, environment);
    EXPECT_FALSE(line);
    if (line) return "";
    EXPECT_THAT(line.error(), Not(HasSubstr("\n")));
    return line.error();
  }

  std::filesystem::path dir_;
};

TEST_F(ConfigTest, FlagsWinOverVariablesOverFileOverDefaults) {
  const std::string file = File("pool_bytes = \"1GiB\"\nmax_sessions = 5\nspin_us = 7\nlog_level = \"error\"\n");
  const Config config = Good({"--config", file, "--pool-bytes", "3GiB"},
                             {"ORBITKV_POOL_BYTES=2GiB", "ORBITKV_MAX_SESSIONS=6", "XDG_RUNTIME_DIR=/run/user/7"});
  EXPECT_EQ(config.pool_bytes, std::uint64_t{3} << 30);
  EXPECT_EQ(config.max_sessions, 6U);
  EXPECT_EQ(config.spin_us, 7U);
  EXPECT_EQ(config.log_level, log::Level::kError);
  EXPECT_EQ(config.lease_ms, 10'000U);
  EXPECT_EQ(config.ssd_write_policy, WritePolicy::kAll);
  EXPECT_EQ(config.eviction_policy, "reuse");
  EXPECT_EQ(Good({"--eviction-policy", "s3-fifo"}).eviction_policy, "s3-fifo");
  EXPECT_EQ(Good({"--eviction-policy", "default"}).eviction_policy, "reuse");
  EXPECT_THAT(Bad({"--eviction-policy", "fifo"}), AllOf(HasSubstr("eviction-policy"), HasSubstr("w-tinylfu")));
  EXPECT_TRUE(config.recompute);
  EXPECT_FALSE(Good({"--recompute", "off"}).recompute);
  EXPECT_EQ(Good({"--ssd-write-policy", "reuse"}).ssd_write_policy, WritePolicy::kReuse);
  EXPECT_THAT(Bad({"--ssd-write-policy", "some"}), HasSubstr("off, all, reuse"));
  const Config ssd = Good({"--ssd-path", "/a", "--ssd-path=/b:/c", "--ssd-bytes", "64MiB"});
  EXPECT_EQ(ssd.ssd_paths, (std::vector<std::string>{"/a", "/b", "/c"}));
  EXPECT_EQ(ssd.ssd_bytes, std::uint64_t{64} << 20U);
  EXPECT_THAT(Bad({"--ssd-path", "a"}), HasSubstr("absolute"));
  EXPECT_THAT(Bad({"--ssd-path", "/a", "--ssd-path", "/a"}), HasSubstr("twice"));
  EXPECT_THAT(Bad({"--ssd-bytes", "1GiB"}), HasSubstr("without an ssd_path"));
  EXPECT_THAT(Bad({"--ssd-path", "/a", "--ssd-bytes", "1MiB"}), HasSubstr("outside"));
  EXPECT_EQ(config.socket, "/run/user/7/orbitkv/manager.sock");
}

TEST_F(ConfigTest, DefaultSocketWithoutRuntimeDirectory) {
  EXPECT_EQ(Good({}).socket, "/run/orbitkv/manager.sock");
  EXPECT_EQ(Good({}, {"XDG_RUNTIME_DIR="}).socket, "/run/orbitkv/manager.sock");
  EXPECT_EQ(Good({}, {"ORBITKV_SOCKET=/a/b"}).socket, "/a/b");
  EXPECT_EQ(Good({"--socket=/c/d"}, {"ORBITKV_SOCKET=/a/b"}).socket, "/c/d");
}

TEST_F(ConfigTest, UnknownNamesAreRefusedWithTheNearestKnownOne) {
  EXPECT_THAT(Bad({"--pool-byte", "1GiB"}), AllOf(HasSubstr("--pool-byte"), HasSubstr("--pool-bytes")));
  EXPECT_THAT(Bad({"--sockett=/x"}), AllOf(HasSubstr("unknown flag --sockett;"), HasSubstr("--socket")));
  EXPECT_THAT(Bad({"serve"}), HasSubstr("unexpected argument 'serve'"));
  EXPECT_THAT(Bad({"--config", File("\nmax_session = 4\n")}),
              AllOf(HasSubstr("manager.toml:2"), HasSubstr("'max_session'"), HasSubstr("'max_sessions'")));
  EXPECT_THAT(Bad({}, {"ORBITKV_POOL_BYTE=1GiB"}), HasSubstr("ORBITKV_POOL_BYTES"));
}

TEST_F(ConfigTest, VariablesOfOtherProgramsAreOnlyWarned) {
  const auto line = ParseCommandLine(Strings{}, Strings{"ORBITKV_SGLANG_ENDPOINT=/x", "PATH=/bin"});
  ASSERT_TRUE(line);
  ASSERT_EQ(line->warnings.size(), 1U);
  EXPECT_THAT(line->warnings[0], HasSubstr("ORBITKV_SGLANG_ENDPOINT"));
}

TEST_F(ConfigTest, WrongValuesNameWhereTheyWereGiven) {
  EXPECT_THAT(Bad({"--pool-bytes", "4GB"}), AllOf(HasSubstr("--pool-bytes"), HasSubstr("'4GB'"), HasSubstr("GiB")));
  EXPECT_THAT(Bad({}, {"ORBITKV_SPIN_US=-1"}), HasSubstr("ORBITKV_SPIN_US"));
  EXPECT_THAT(Bad({"--config", File("huge_pages = \"on\"\n")}), AllOf(HasSubstr("huge_pages"), HasSubstr("auto")));
  EXPECT_THAT(Bad({"--config", File("max_sessions = [1]\n")}), HasSubstr("max_sessions"));
  EXPECT_THAT(Bad({"--config", File("pool_bytes = \n")}), HasSubstr("manager.toml:1"));
  EXPECT_THAT(Bad({"--config", dir_ / "absent.toml"}), HasSubstr("absent.toml"));
  EXPECT_THAT(Bad({"--log-level", "loud"}), HasSubstr("warning"));
  EXPECT_THAT(Bad({"--pool-bytes"}), HasSubstr("--pool-bytes"));
}

TEST_F(ConfigTest, WhateverIsGivenTheComplaintIsOneLine) {
  EXPECT_THAT(Bad({"--pool-bytes", "1\n2"}), HasSubstr("'1?2'"));
  EXPECT_THAT(Bad({"--config", File("\"a\\nb\" = 1\n")}), HasSubstr("unknown key 'a?b'"));
  EXPECT_THAT(Bad({}, {"ORBITKV_SPIN_US=\n"}), HasSubstr("ORBITKV_SPIN_US"));
  const auto line = ParseCommandLine(Strings{}, Strings{"ORBITKV_OF\nANOTHER=1"});
  ASSERT_TRUE(line);
  EXPECT_THAT(line->warnings.at(0), HasSubstr("ORBITKV_OF?ANOTHER"));
}

TEST_F(ConfigTest, AFileWithoutAnEndIsRefused) {
  EXPECT_THAT(Bad({"--config", "/dev/zero"}), AllOf(HasSubstr("/dev/zero"), HasSubstr("larger")));
  EXPECT_THAT(Bad({"--config", dir_}), HasSubstr("--config"));
}

TEST_F(ConfigTest, LimitsAreChecked) {
  EXPECT_THAT(Bad({"--pool-bytes", "1MiB"}), HasSubstr("pool_bytes = 1048576 is outside 2097152"));
  EXPECT_THAT(Bad({"--max-sessions", "0"}), HasSubstr("max_sessions"));
  EXPECT_THAT(Bad({"--lease-budget-percent", "101"}), HasSubstr("lease_budget_percent"));
  EXPECT_THAT(Bad({"--session-lease-budget-percent", "0"}), HasSubstr("session_lease_budget_percent"));
  EXPECT_THAT(Bad({"--load-budget-percent", "0"}), HasSubstr("load_budget_percent"));
  EXPECT_THAT(Bad({"--socket", "relative.sock"}), HasSubstr("absolute path"));
  EXPECT_THAT(Bad({"--socket", "/" + std::string(107, 'a')}), HasSubstr("shorter"));
  EXPECT_EQ(Good({"--socket", "/" + std::string(106, 'a')}).socket.size(), 107U);
}

TEST_F(ConfigTest, PoolIsRoundedDownToWholeUnits) {
  EXPECT_EQ(Good({"--pool-bytes", "5000000"}).pool_bytes, std::uint64_t{4} << 20);
}

TEST_F(ConfigTest, HelpAndVersion) {
  const auto help = ParseCommandLine(Strings{"--help"}, Strings{});
  ASSERT_TRUE(help);
  EXPECT_THAT(help->print, AllOf(HasSubstr("--pool-bytes"), HasSubstr("--lease-ms"), HasSubstr("--config")));
  const auto version = ParseCommandLine(Strings{"--version"}, Strings{});
  ASSERT_TRUE(version);
  EXPECT_EQ(version->print, std::string("orbitkv-manager ") + ORBITKV_VERSION + "\n");
}

TEST(ParseBytes, UnitsAndLimits) {
  EXPECT_EQ(ParseBytes("0").value(), 0U);
  EXPECT_EQ(ParseBytes("12KiB").value(), 12U << 10U);
  EXPECT_EQ(ParseBytes("3TiB").value(), std::uint64_t{3} << 40);
  for (const char* bad : {"", "GiB", "1.5GiB", "1 GiB", "-1", "1gib", "99999999999999999999", "99999999999TiB"}) {
    EXPECT_FALSE(ParseBytes(bad)) << bad;
  }
}

}  // namespace
}  // namespace orbitkv::manager
