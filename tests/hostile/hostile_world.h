// A Manager process, a neighbour that behaves, and whoever attacks them; with the books before and after.
// Owns: the Manager, the neighbour's session, attackers until they are ended. Threads: one.
// Blocks: as long as the Manager needs; every wait has a deadline.
// Errors: gtest failures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "manager_world.h"

namespace orbitkv::hostile {

// AddressSanitizer does, for a while; then what was given back does not show.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kKeepsFreedMemory = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kKeepsFreedMemory = true;
#else
inline constexpr bool kKeepsFreedMemory = false;
#endif
#else
inline constexpr bool kKeepsFreedMemory = false;
#endif

// A process of its own that runs `work` and then waits to be killed. `work` calls its argument once the attack is on.
// Owns: the process and those that it forks. Blocks: the constructor, until the attack is on.
class Attacker {
 public:
  using Work = std::function<void(const std::function<void()>& ready)>;
  explicit Attacker(const Work& work);
  ~Attacker();
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

class HostileWorld : public integration::ManagerWorld {
 protected:
  // What must be the same before and after.
  struct Books {
    std::size_t fds = 0;
    std::size_t threads = 0;
    std::size_t rss_anon_bytes = 0;
    std::map<std::string, double> held;  // gauges of what sessions can hold
  };

  void SetUp() override;
  void TearDown() override;
  virtual std::vector<std::string> ManagerOptions() const { return {}; }

  // The neighbour stores blocks, finds them and reads them back, byte by byte, `times` times; and pings.
  void ExerciseNeighbour(int times = 20);
  // Ends the attack and checks that the Manager answers and holds nothing more than before.
  void ExpectUnharmed(std::size_t rss_slack_mib = 16);
  Books ReadBooks();
  double Figure(const std::string& name) { return ManagerWorld::Figure(*neighbour_, name); }
  double Growth(const std::string& counter, double before) { return Figure(counter) - before; }
  void Attack(const Attacker::Work& work) { attackers_.push_back(std::make_unique<Attacker>(work)); }

  std::unique_ptr<integration::Program> manager_;
  std::unique_ptr<testing::RawClient> neighbour_;
  std::vector<std::unique_ptr<Attacker>> attackers_;
  Books before_;

 private:
  std::uint32_t next_ = 1;
};

}  // namespace orbitkv::hostile
