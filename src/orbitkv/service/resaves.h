// What was saved and the source has lost since is saved again, while the pool still has it, when it was used meanwhile.
//
// A source gives up its oldest records for new ones, whether the pool needs them behind it or not: what engines use all
// the time is read from the pool, so the source takes it for cold. When a source tells of losses, a round goes over all
// slots of the pool, a few at a time, and asks for each component that was saved whether it is still kept. One that
// was restored since is put in line; of the others it is only remembered that they are in the pool alone, and their
// next use puts them in line: else a source that is smaller than the pool would be written for ever.
// The first round of a life over a pool that survived also puts in line what it took over, of which nobody knows what
// was saved.
//
// Owns: where the round is. Threads: one. Blocks: no. Units: nanoseconds.
// Limits: kSlotsPerStep slots in kStepNs, one round in kRoundNs; none when nothing was lost.
// Errors: none. While as many blocks wait to be saved as Saves takes from here, a round rests.
// Invariant: what a source lost before a round began is found by that round, if the pool has it when it comes by.
#pragma once

#include <cstdint>
#include <optional>

#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/saves.h"
#include "orbitkv/service/source.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

class Resaves {
 public:
  static constexpr std::uint32_t kSlotsPerStep = 64;
  static constexpr std::uint64_t kStepNs = 1'000'000;
  static constexpr std::uint64_t kRoundNs = 1'000'000'000;

  struct Parts {
    cache::BlockCache& cache;
    const Registry& registry;
    Saves& saves;
    Counters& counters;
  };
  Resaves(const Limits& limits, const Parts& parts) : limits_(limits), parts_(parts) {}

  // After the cache has taken over what an earlier life left.
  void SetSource(const Source* source);
  // The source may have lost something.
  void Note(std::uint64_t now_ns);
  void Tick(std::uint64_t now_ns);
  // A round is going on, or will.
  bool busy() const { return running() || wanted_; }
  // None when it is not busy.
  std::optional<std::uint64_t> NextDeadline() const;

 private:
  bool running() const { return next_slot_ != 0; }
  void Look(const cache::SlotContent& content);
  bool Keeps(const Namespace& space, const cache::SlotContent& content);

  const Limits& limits_;
  const Parts parts_;
  const Source* source_ = nullptr;
  std::uint64_t losses_ = 0;     // that rounds know of
  std::uint32_t next_slot_ = 0;  // 0: no round
  bool wanted_ = false;          // a round, as soon as it may begin
  bool first_ = false;           // the round is the first over what was taken over
  std::uint64_t next_ns_ = 0;    // the next step, or the earliest begin of the next round
  std::uint64_t round_ns_ = 0;   // the last one began
};

}  // namespace orbitkv::service
