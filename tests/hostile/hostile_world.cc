#include "hostile_world.h"

#include <csignal>
#include <fstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"

namespace orbitkv::hostile {
namespace {

using testing::Chain;

constexpr std::uint32_t kBlocks = 4;
constexpr std::uint64_t kReadyNs = 20'000'000'000;
// Chains that the neighbour cycles through, so that what it stores is bounded.
constexpr std::uint32_t kChains = 64;

constexpr const char* kHeld[] = {
    "orbitkv_sessions",
    "orbitkv_sessions_detached",
    "orbitkv_connections",
    "orbitkv_instances",
    "orbitkv_leases",
    "orbitkv_grants",
    "orbitkv_armed_ranks",
    "orbitkv_leased_bytes",
    "orbitkv_found_pins",
    "orbitkv_granted_pins",
    "orbitkv_reservations",
    "orbitkv_reserved_slots",
    "orbitkv_verifications",
    "orbitkv_reserves_running",
    "orbitkv_queries_running",
    "orbitkv_draining_slots",
    "orbitkv_leases_remembered",
    "orbitkv_hashes_held",
    "orbitkv_pool_slots_writing",
    "orbitkv_suspect_components",
};

std::size_t EntriesOf(const std::string& directory) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) ++count;
  return count;
}

std::size_t StatusKiB(pid_t pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoul(line.substr(key.size()));
  }
  return 0;
}

}  // namespace

Attacker::Attacker(const Work& work) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe(ends), 0);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    work([&ends] {
      const char ready = 'y';
      if (::write(ends[1], &ready, 1) != 1) ::_exit(1);
    });
    ::close(ends[1]);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char ready = 'n';
  if (os::WaitReadable(ends[0], os::DeadlineAfter(kReadyNs))) static_cast<void>(::read(ends[0], &ready, 1) == 1);
  ::close(ends[0]);
  EXPECT_EQ(ready, 'y') << "the attack did not get as far as it should";
}

Attacker::~Attacker() {
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void HostileWorld::SetUp() {
  ManagerWorld::SetUp();
  pool_ = "64MiB";
  std::vector<std::string> options = ManagerOptions();
  options.insert(options.end(), {"--max-slots", "8192"});  // so that bytes run out first
  manager_ = StartManager(options);
  ASSERT_TRUE(manager_);
  neighbour_ = Open(Options("neighbour"));
  ASSERT_TRUE(neighbour_);
  ASSERT_TRUE(Becomes(*neighbour_, "orbitkv_pool_reserved_bytes", 64 << 20));
  // Once around, so that what is made at first use is there before the books are opened.
  ExerciseNeighbour(kChains);
  before_ = ReadBooks();
  ASSERT_GT(before_.fds, 0U);
}

void HostileWorld::TearDown() {
  attackers_.clear();
  neighbour_.reset();
  if (manager_) {
    manager_->Signal(SIGTERM);
    EXPECT_EQ(manager_->WaitExit(), 0) << manager_->error();
  }
  ManagerWorld::TearDown();
}

HostileWorld::Books HostileWorld::ReadBooks() {
  const std::string proc = "/proc/" + std::to_string(manager_->pid());
  Books books{.fds = EntriesOf(proc + "/fd"),
              .threads = EntriesOf(proc + "/task"),
              .rss_anon_bytes = StatusKiB(manager_->pid(), "RssAnon:") << 10U,
              .held = {}};
  const auto figures = neighbour_->Figures();
  EXPECT_TRUE(figures) << ToString(figures.error());
  if (!figures) return books;
  for (const char* name : kHeld) {
    EXPECT_TRUE(figures->contains(name)) << name;
    if (figures->contains(name)) books.held[name] = figures->at(name);
  }
  return books;
}

void HostileWorld::ExerciseNeighbour(int times) {
  for (int i = 0; i < times && !HasFailure(); ++i) {
    const std::uint32_t number = next_++;
    const auto hashes = Chain(1 + number % kChains, kBlocks);
    const auto stored = neighbour_->Publish(hashes);
    ASSERT_TRUE(stored) << ToString(stored.error());
    ASSERT_TRUE(*stored == kBlocks || number > kChains) << *stored;
    const auto restored = neighbour_->Restore(number, hashes, GrantId(number));
    ASSERT_TRUE(restored) << ToString(restored.error());
    ASSERT_EQ(*restored, kBlocks);
    ASSERT_TRUE(neighbour_->Ping());
  }
}

void HostileWorld::ExpectUnharmed(std::size_t rss_slack_mib) {
  attackers_.clear();
  Books after;
  EXPECT_TRUE(integration::Eventually([&] {
    after = ReadBooks();
    return after.held == before_.held && after.fds == before_.fds;
  }));
  for (const auto& [name, value] : before_.held) EXPECT_EQ(after.held[name], value) << name;
  EXPECT_EQ(after.fds, before_.fds);
  EXPECT_EQ(after.threads, before_.threads);
  const std::size_t slack_mib = kKeepsFreedMemory ? 1024 : rss_slack_mib;
  EXPECT_LE(after.rss_anon_bytes, before_.rss_anon_bytes + (slack_mib << 20U));
  ExerciseNeighbour();
  EXPECT_TRUE(manager_->running());
}

}  // namespace orbitkv::hostile
