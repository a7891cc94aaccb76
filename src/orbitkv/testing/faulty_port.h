// A transfer backend whose operations go wrong as the test says, around one that works.
//
// Owns: the operations that are held back. Threads: one. Blocks: no. Units: bytes.
// Errors: none of its own; each fault is what the header of Fault says.
// Invariant: every operation still has one outcome, unless it is held for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "orbitkv/orbite/port.h"

namespace orbitkv::testing {

enum class Fault : std::uint8_t {
  kNone,
  kIoError,   // EIO, nothing moved
  kNoSpace,   // ENOSPC
  kGone,      // ENODEV
  kReadOnly,  // EROFS
  kShort,     // the first half, and says so
  kTorn,      // the first half, and claims all of it
  kFlip,      // one bit of what was read is wrong
  kHold,      // does not begin until ReleaseHeld
};

class FaultyPort final : public orbite::Port {
 public:
  using Choose = std::function<Fault(const orbite::Operation&)>;

  explicit FaultyPort(orbite::Port& inner) : inner_(inner) {}
  void set_fault(Choose choose) { choose_ = std::move(choose); }
  // Held operations go on, as if they were started now. fault: what becomes of them.
  void ReleaseHeld(Fault fault = Fault::kNone);
  std::size_t held() const { return held_.size(); }
  // Reports the last outcome once more, as a backend that was confused by a reset would.
  void RepeatLast();

  bool Start(const orbite::Operation& operation) override;
  void Flush() override { inner_.Flush(); }
  void Reap(std::vector<orbite::Outcome>& out) override;
  void Pin(std::span<std::byte> memory) override { inner_.Pin(memory); }

 private:
  struct Changed {
    Fault fault = Fault::kNone;
    std::vector<os::IoPiece> pieces;
    std::uint64_t claimed_bytes = 0;
  };
  bool StartWith(const orbite::Operation& operation, Fault fault);

  orbite::Port& inner_;
  Choose choose_;
  std::list<orbite::Operation> held_;
  std::unordered_map<std::uint64_t, Changed> changed_;
  std::vector<orbite::Outcome> ready_;
  orbite::Outcome last_;
};

}  // namespace orbitkv::testing
