// Engines and a Manager that live, are killed, and fail at random, for a few seconds in an ordinary run and for half an
// hour in a long one (ORBITKV_SOAK_SECONDS sets the time). Every byte that an engine is given is right, nothing is held
// when the engines are gone, and nothing grows.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <unistd.h>

#include "driven_program.h"
#include "manager_world.h"

#include "orbitkv/base/prng.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/unix_socket.h"
#include "orbitkv/testing/effort.h"

namespace orbitkv::integration {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::size_t kEngines = 8;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kStoreBytes = 32 * kMiB;  // each of two
constexpr std::uint32_t kLongest = 16;
// Of every shape, so that all of them together are ten times what the stores hold, and the stores more than the pool.
constexpr std::uint64_t kShapeBytes = 160 * kMiB;
// AddressSanitizer keeps what is freed for a while.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsTold = false;
#elif defined(__has_feature)
constexpr bool kMemoryIsTold = !__has_feature(address_sanitizer);
#else
constexpr bool kMemoryIsTold = true;
#endif
// Private memory of the Manager that one look may show and the next one not.
constexpr std::uint64_t kNoiseKib = 2048;

struct Shape {
  std::uint32_t layers;
  std::uint64_t page_bytes;
};
constexpr Shape kShapes[] = {{2, 4096}, {3, 5003}, {4, 16'384}, {2, 131'072}, {1, 500'000}};
static_assert(std::size(kShapes) * kShapeBytes >= 10 * 2 * kStoreBytes);

enum class PoolKind : std::uint8_t {
  kKept,     // the directory of the life before
  kEmptied,  // the same directory, with nothing in it
  kUnnamed,
};

std::uint64_t Seconds() {
  const char* const given = std::getenv("ORBITKV_SOAK_SECONDS");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : testing::Effort(12, 1800);
}

// What a process has, as the kernel tells it.
struct Footprint {
  std::uint64_t private_kib = 0;
  std::multiset<std::string> descriptors;  // without what differs from life to life
  std::multiset<std::string> threads;      // without those that the kernel makes and ends for io_uring
};

Footprint FootprintOf(pid_t pid) {
  Footprint footprint;
  const std::filesystem::path folder = "/proc/" + std::to_string(pid);
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) footprint.private_kib = std::stoull(line.substr(8));
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "fd", error)) {
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), error);
    const bool output = target.extension() == ".out" || target.extension() == ".err";
    const std::string name = output ? "output" : target.string();
    if (!error) footprint.descriptors.insert(name.substr(0, name.find(":[")));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "task", error)) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm") >> std::ws, name);
    if (!name.starts_with("iou-")) footprint.threads.insert(name);
  }
  return footprint;
}

class Soak : public ManagerWorld {
 protected:
  void SetUp() override {
    ManagerWorld::SetUp();
    pool_ = "24MiB";
    pool_directory_ = std::filesystem::path("/dev/shm") / ("orbitkv_soak_" + std::to_string(::getpid()));
    for (const char* name : {"a", "b"}) stores_.push_back(directory_ / name);
    seed_ = testing::Seed();
    prng_ = Prng(seed_);
    think_us_ = testing::LongRun() ? 60'000 : 5'000;
  }
  void TearDown() override {
    engines_.clear();
    watcher_.reset();
    manager_.reset();
    std::filesystem::remove_all(pool_directory_);
    ManagerWorld::TearDown();
  }

  // ---- the Manager
  bool StartLife(PoolKind kind) {
    if (kind == PoolKind::kEmptied) std::filesystem::remove_all(pool_directory_);
    std::vector<std::string> command = Command({"--ssd-bytes", std::to_string(kStoreBytes), "--ssd-write-policy",
                                                prng_.Below(3) == 0 ? "reuse" : "all", "--lock-wait-ms", "50000"});
    command.front() = ORBITKV_FAULTY_MANAGER_PROGRAM;
    command.insert(command.begin() + 1, std::to_string(prng_.Next()));
    for (const auto& store : stores_) command.insert(command.end(), {"--ssd-path", store});
    if (kind != PoolKind::kUnnamed) command.insert(command.end(), {"--pool-path", pool_directory_});
    manager_ = std::make_unique<DrivenProgram>(directory_, command);
    const std::string line = manager_->Next();
    EXPECT_EQ(line, ReadyLine(manager_->program())) << manager_->program().error();
    if (line.empty()) return false;
    if (kind == PoolKind::kKept && manager_->program().error().find("recovered life=") != std::string::npos) {
      kept_ += manager_->program().error().find("components=0 ") == std::string::npos ? 1 : 0;
    }
    watcher_ = Open(Options("watcher"));
    ++lives_;
    return watcher_ != nullptr;
  }
  void EndLife(bool kill) {
    if (!kill) Tell("none", 0);
    AddFigures();
    watcher_.reset();
    manager_->program().Signal(kill ? SIGKILL : SIGTERM);
    EXPECT_EQ(manager_->program().WaitExit(), kill ? 128 + SIGKILL : 0) << manager_->program().error();
  }
  void Tell(const std::string& fault, std::uint64_t permille) {
    EXPECT_EQ(manager_->Do("fault " + fault + " " + std::to_string(permille)), "ok") << manager_->program().error();
  }
  void AddFigures() {
    const auto figures = watcher_->Figures();
    ASSERT_TRUE(figures) << ToString(figures.error());
    for (const auto& [name, value] : *figures) {
      const std::string plain = name.substr(0, name.find('{'));
      if (plain.ends_with("_total")) sums_[plain] += value;
    }
  }

  // ---- engines
  void StartEngine(std::size_t seat) {
    const Shape& shape = kShapes[prng_.Below(std::size(kShapes))];
    const std::uint64_t chain_bytes = shape.layers * shape.page_bytes * kLongest;
    const std::vector<std::string> command = {ORBITKV_SOAK_CLIENT_PROGRAM,
                                              socket_,
                                              "engine" + std::to_string(++engines_started_),
                                              std::to_string(prng_.Next()),
                                              std::to_string(shape.layers),
                                              std::to_string(shape.page_bytes),
                                              std::to_string(kShapeBytes / chain_bytes + 1),
                                              std::to_string(kLongest),
                                              std::to_string(think_us_)};
    engines_[seat] = std::make_unique<DrivenProgram>(directory_, command);
  }
  void KillEngine(std::size_t seat) {
    engines_[seat]->program().Signal(SIGKILL);
    EXPECT_EQ(engines_[seat]->program().WaitExit(), 128 + SIGKILL) << engines_[seat]->program().output();
  }
  void StopEngine(std::size_t seat) {
    const std::string line = engines_[seat]->Do("stop");
    EXPECT_THAT(line, StartsWith("stopped ")) << engines_[seat]->program().error();
    EXPECT_EQ(engines_[seat]->program().WaitExit(), 0) << line << engines_[seat]->program().error();
    std::uint64_t turns = 0;
    std::uint64_t stored = 0;
    std::uint64_t restored = 0;
    std::uint64_t mismatched = 0;
    const int read = std::sscanf(line.c_str(), "stopped turns=%lu stored=%lu restored=%lu mismatched=%lu", &turns,
                                 &stored, &restored, &mismatched);
    EXPECT_EQ(read, 4) << line;
    EXPECT_EQ(mismatched, 0U);
    turns_ += turns;
    stored_ += stored;
    restored_ += restored;
  }
  // Nobody has ended by itself: an engine does when it was given a wrong byte.
  bool AllRun() {
    for (const auto& engine : engines_) {
      if (engine->program().running()) continue;
      ADD_FAILURE() << engine->program().output() << engine->program().error();
      return false;
    }
    if (manager_->program().running()) return true;
    ADD_FAILURE() << manager_->program().error();
    return false;
  }

  // ---- what happens
  void DrawFault() {
    struct Choice {
      const char* fault;
      std::uint64_t permille;
    };
    constexpr Choice kChoices[] = {{"none", 0},        {"none", 0},    {"io-error", 100},   {"io-error", 1000},
                                   {"no-space", 1000}, {"gone", 1000}, {"read-only", 1000}, {"short", 200},
                                   {"torn", 100},      {"flip", 300},  {"hold", 100},       {"hold", 1000}};
    const Choice& choice = kChoices[prng_.Below(std::size(kChoices))];
    Tell(choice.fault, choice.permille);
  }
  // Bytes that change where they lie; the store's head is the one thing that has no second copy.
  void Damage() {
    const os::UniqueFd file(::open(stores_[prng_.Below(stores_.size())].c_str(), O_WRONLY | O_CLOEXEC));
    const std::uint64_t at = kMiB + prng_.Below(kStoreBytes - 2 * kMiB);
    const std::uint64_t word = prng_.Next();
    EXPECT_EQ(::pwrite(file.get(), &word, sizeof word, static_cast<off_t>(at)), static_cast<ssize_t>(sizeof word));
  }
  bool Happen(bool managers_end) {
    const std::uint64_t dice = prng_.Below(managers_end ? 20 : 17);
    const std::size_t seat = prng_.Below(kEngines);
    if (dice < 5) {
      KillEngine(seat);
      StartEngine(seat);
    } else if (dice < 7) {
      StopEngine(seat);
      StartEngine(seat);
    } else if (dice < 14) {
      DrawFault();
    } else if (dice < 17) {
      Damage();
    } else {
      EndLife(dice < 19);
      Pause(prng_.Below(200 * kMs));
      if (!StartLife(static_cast<PoolKind>(prng_.Below(3)))) return false;
    }
    return AllRun();
  }
  static void Pause(std::uint64_t ns) { os::WaitReadable(-1, os::DeadlineAfter(ns)); }
  // Lets things happen for so long; after each of them it calls look().
  template <typename Fn>
  bool Churn(std::uint64_t seconds_tenths, bool managers_end, const Fn& look) {
    const std::uint64_t pause_ns = (testing::LongRun() ? 2000 : 200) * kMs;
    const std::uint64_t until_ns = os::DeadlineAfter(seconds_tenths * 100 * kMs);
    while (os::MonotonicNs() < until_ns) {
      Pause(prng_.Below(pause_ns));
      if (!Happen(managers_end)) return false;
      look();
    }
    return true;
  }

  // ---- what is left
  void ExpectDeviceServesAgain() {
    Tell("none", 0);
    const auto all = [this](const char* name, double value) {
      const auto figures = watcher_->Figures();
      if (!figures) return false;
      return std::ranges::all_of(stores_, [&](const auto& store) {
        const auto found = figures->find(std::string(name) + "{" + store.string() + "}");
        return found != figures->end() && found->second == value;
      });
    };
    for (const char* gauge : {"orbitkv_ssd_readable", "orbitkv_ssd_writable"}) {
      // A device that failed for long is left alone for as long as kPatienceNs.
      EXPECT_TRUE(Eventually([&] { return all(gauge, 1); }) || Eventually([&] { return all(gauge, 1); })) << gauge;
    }
    for (const char* counter : {"orbitkv_loads_ok_total", "orbitkv_saves_ok_total"}) {
      const double before = Figure(*watcher_, counter);
      EXPECT_TRUE(Eventually([&] { return Figure(*watcher_, counter) > before; })) << counter;
    }
  }
  void ExpectNothingHeld() {
    for (const char* gauge : {"orbitkv_sessions_detached", "orbitkv_leases",
                              "orbitkv_leased_bytes",      "orbitkv_grants",
                              "orbitkv_armed_ranks",       "orbitkv_found_pins",
                              "orbitkv_granted_pins",      "orbitkv_reservations",
                              "orbitkv_reserved_slots",    "orbitkv_queries_running",
                              "orbitkv_reserves_running",  "orbitkv_tickets",
                              "orbitkv_tickets_in_line",   "orbitkv_tickets_ready",
                              "orbitkv_warm_ups",          "orbitkv_loads",
                              "orbitkv_load_bytes",        "orbitkv_saves",
                              "orbitkv_save_bytes",        "orbitkv_saves_in_line",
                              "orbitkv_hashes_held",       "orbitkv_draining_slots",
                              "orbitkv_held_slots",        "orbitkv_earlier_sessions",
                              "orbitkv_verifications",     "orbitkv_pool_slots_writing"}) {
      EXPECT_TRUE(Becomes(*watcher_, gauge, 0)) << gauge << " is " << Figure(*watcher_, gauge);
    }
    // The watcher's own.
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_sessions", 1));
    EXPECT_TRUE(Becomes(*watcher_, "orbitkv_instances", 1));
  }
  // What these processes have in /dev/shm is the pool's directory, with the four files that belong there.
  void ExpectNothingElseInShm() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(pool_directory_)) {
      names.insert(entry.path().filename());
    }
    EXPECT_EQ(names, (std::set<std::string>{"lock", "liveness", "pool", "tables"}));
    for (const pid_t pid : {manager_->program().pid(), engines_[0]->program().pid()}) {
      std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
      for (std::string line; std::getline(maps, line);) {
        if (line.find("/dev/shm/") == std::string::npos) continue;
        EXPECT_THAT(line, HasSubstr(pool_directory_.string() + "/"));
      }
    }
  }
  void ExpectFlat() const {
    if (!kMemoryIsTold || private_kib_.size() < 8) return;
    const auto quarter = static_cast<std::ptrdiff_t>(private_kib_.size() / 4);
    const auto first = private_kib_.begin();
    const std::uint64_t early = *std::max_element(first + quarter, first + 2 * quarter);
    const std::uint64_t late = *std::min_element(first + 3 * quarter, private_kib_.end());
    EXPECT_LE(late, early + kNoiseKib);
    std::printf("private memory of the Manager: %lu KiB early, %lu KiB late, in %zu looks\n", early, late,
                private_kib_.size());
  }

  std::filesystem::path pool_directory_;
  std::vector<std::filesystem::path> stores_;
  std::uint64_t seed_ = 1;
  Prng prng_{1};
  std::uint64_t think_us_ = 0;
  std::unique_ptr<DrivenProgram> manager_;
  std::unique_ptr<testing::RawClient> watcher_;
  std::vector<std::unique_ptr<DrivenProgram>> engines_;
  std::map<std::string, double> sums_;  // of counters, over all lives
  std::vector<std::uint64_t> private_kib_;
  std::uint64_t engines_started_ = 0;
  std::uint64_t lives_ = 0;
  std::uint64_t kept_ = 0;  // lives that began with blocks of the one before
  std::uint64_t turns_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t restored_ = 0;
};

TEST_F(Soak, EveryByteIsRightAndNothingIsLeft) {
  std::printf("seed %lu, %lu s\n", seed_, Seconds());
  ASSERT_TRUE(StartLife(PoolKind::kEmptied));
  const Footprint before = FootprintOf(manager_->program().pid());
  engines_.resize(kEngines);
  for (std::size_t seat = 0; seat < kEngines; ++seat) StartEngine(seat);
  ASSERT_TRUE(Churn(Seconds() * 7, true, [] {}));
  // The last life is the longest one.
  EndLife(true);
  ASSERT_TRUE(StartLife(PoolKind::kKept));
  ASSERT_TRUE(
      Churn(Seconds() * 3, false, [&] { private_kib_.push_back(FootprintOf(manager_->program().pid()).private_kib); }));
  ExpectDeviceServesAgain();
  ExpectNothingElseInShm();
  for (std::size_t seat = 0; seat < kEngines; ++seat) StopEngine(seat);
  ExpectNothingHeld();
  const Footprint after = FootprintOf(manager_->program().pid());
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  ExpectFlat();
  EndLife(false);

  std::printf(
      "%lu Managers, %lu of them with blocks of the one before, %lu engines; %lu turns, %lu blocks stored, %lu "
      "restored\n",
      lives_, kept_, engines_started_, turns_, stored_, restored_);
  for (const char* counter :
       {"orbitkv_cache_evictions_total", "orbitkv_loads_ok_total", "orbitkv_loads_failed_total",
        "orbitkv_saves_ok_total", "orbitkv_ssd_read_errors_total", "orbitkv_ssd_write_errors_total",
        "orbitkv_ssd_loads_wrong_total", "orbitkv_ssd_pauses_total", "orbitkv_ssd_evicted_segments_total"}) {
    if (testing::LongRun()) {  // a short one on a slow machine draws little
      EXPECT_GT(sums_[counter], 0) << counter;
    }
    std::printf("%s %.0f\n", counter, sums_[counter]);
  }
  for (const char* counter : {"orbitkv_restores_mismatch_total", "orbitkv_scrubbed_wrong_total",
                              "orbitkv_requests_malformed_total", "orbitkv_frames_dropped_total"}) {
    EXPECT_EQ(sums_[counter], 0) << counter;
  }
  EXPECT_GT(restored_, 0U);
  EXPECT_TRUE(kept_ > 0 || !testing::LongRun());
  for (const auto& store : stores_) {
    auto check = Tool({"store", "check", store});
    EXPECT_LE(check->WaitExit(), 1) << check->error();  // 1: damaged records, as they should be
    EXPECT_EQ(std::filesystem::file_size(store), kStoreBytes);
  }
}

}  // namespace
}  // namespace orbitkv::integration
