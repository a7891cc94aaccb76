// Blocks on their way from the backing source into the pool.
//
// A load is of one group of a block: it reads the component of each shard that is not here into a slot reserved for
// that, within the permits of bytes in flight. It belongs to no look-up: those that wait for it are told when it ends,
// and when they are all gone it still ends with its components in the cache. Two look-ups of one block share its load.
//
// How fast the source delivers is measured while reads are under way.
//
// Owns: the reserved slots of components being read, and the permits of their bytes. Threads: one. Blocks: no.
// Units: bytes of slots as the pool rounds them.
// Errors: what comes short, fails or carries another checksum than the source remembered is a miss; the slot is freed.
// Invariant: a slot is freed or committed only when its read was reported, because until then somebody writes into it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_cache.h"
#include "orbitkv/service/limits.h"
#include "orbitkv/service/registry.h"
#include "orbitkv/service/source.h"
#include "orbitkv/service/types.h"

namespace orbitkv::service {

class Loads {
 public:
  enum class Start : std::uint8_t {
    kStarted,   // the waiter will be named when it ends
    kHere,      // resident already
    kAbsent,    // the source does not have all that is lacking
    kNoRoom,    // nothing can be evicted for it
    kNoPermit,  // when a load has ended, there may be one
  };
  // A group of a block. depth: hash blocks before it.
  struct Piece {
    state::BlockHash hash;
    std::uint32_t depth = 0;
    std::uint32_t group = 0;
  };
  // A load that has ended.
  struct Ended {
    NamespaceRow row;
    state::BlockHash hash;
    std::uint32_t group = 0;
    std::vector<std::uint64_t> waiters;
  };

  Loads(const Limits& limits, cache::BlockCache& cache, Counters& counters)
      : limits_(limits), cache_(cache), counters_(counters) {}

  void SetSource(const Source* source) { source_ = source; }
  bool has_source() const { return source_ != nullptr; }
  // Whether each shard's component is here or could be read.
  bool Locatable(const Namespace& space, const state::BlockHash& hash, std::uint32_t depth, std::uint32_t group) const;
  // warm: within the smaller share of permits that waits for nobody.
  Start Begin(const Namespace& space, const Piece& piece, bool warm, std::uint64_t waiter, std::uint64_t now_ns);
  std::vector<LoadRequest> Take() { return std::exchange(untaken_, {}); }
  bool untaken() const { return !untaken_.empty(); }
  // The block that ended with this report; none when others of its components are being read, or for an unknown id.
  std::optional<Ended> Done(std::uint64_t id, LoadResult result, std::uint64_t checksum, std::uint64_t now_ns);
  // Bytes of reads under way, and how fast they come; none when that was not measured lately.
  std::uint64_t bytes() const { return bytes_; }
  std::optional<double> BytesPerSecond(std::uint64_t now_ns) const;
  // Reads under way of this namespace.
  bool Uses(NamespaceRow row) const;
  void Export(Gauges& gauges) const;

 private:
  struct PieceKey {
    NamespaceRow row;
    state::BlockHash hash;
    std::uint32_t group = 0;
    auto operator<=>(const PieceKey&) const = default;
  };
  struct Load {
    std::uint32_t open = 0;  // components being read
    bool warm = false;
    std::vector<std::uint64_t> waiters;
  };
  struct Read {
    PieceKey piece;
    std::optional<state::BlockHash> parent;
    std::uint32_t depth = 0;
    std::uint32_t component = 0;
    pool::SlotIndex slot;
    std::uint64_t generation = 0;
    std::uint64_t checksum = 0;
    std::uint64_t offset = 0;
    std::uint64_t slot_bytes = 0;
  };

  std::optional<SourceRecord> Locate(const Namespace& space, const Piece& piece, std::uint32_t shard) const;
  bool Permitted(std::uint64_t bytes, bool warm) const;
  // The reads of what is lacking, with their slots reserved; none when that ended otherwise, as outcome says.
  std::vector<Read> Reserve(const Namespace& space, const Piece& piece, bool warm, std::uint64_t now_ns,
                            Start& outcome);
  void Measure(std::uint64_t loaded_bytes, std::uint64_t now_ns);
  void EndMeasure();

  const Limits& limits_;
  cache::BlockCache& cache_;
  Counters& counters_;
  const Source* source_ = nullptr;
  std::map<PieceKey, Load> loads_;
  std::map<std::uint64_t, Read> reads_;
  std::vector<LoadRequest> untaken_;
  std::uint64_t next_id_ = 1;
  std::uint64_t bytes_ = 0;
  std::uint64_t warm_bytes_ = 0;
  // Of the source's speed.
  double bytes_per_second_ = 0;
  std::uint64_t measured_ns_ = 0;  // when it was measured last; 0: never
  std::uint64_t measuring_since_ns_ = 0;
  std::uint64_t measuring_until_ns_ = 0;  // when the last of them ended
  std::uint64_t measuring_bytes_ = 0;     // that came since then
  bool measuring_goes_on_ = false;        // reads were under way before
};

}  // namespace orbitkv::service
