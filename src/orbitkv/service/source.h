// Where blocks may be had that are not in the pool: an SSD store, other hosts. The service decides what is read into
// which slot and which slots are worth saving; whoever owns the Service carries reads and saves out and reports back.
//
// Owns: nothing. Threads: a Source is asked on the dispatcher and looks only at what it keeps in memory.
// Blocks: never. Units: bytes.
// Errors: a source that promised a component and cannot deliver it reports that; it becomes a miss. What could not be
//         saved is in the pool only.
// Invariants: every LoadRequest that was taken is reported exactly once, also after its look-up is gone: until then its
//             slot belongs to the read. Every SaveRequest that was taken is reported exactly once: until then nobody
//             changes the bytes of its slot.
#pragma once

#include <cstdint>
#include <optional>

#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::service {

// One component of a block: what is in one slot.
struct ComponentKey : state::StateKey {
  std::uint32_t slot_bytes = 0;  // pages and checksum list
  const state::StateKey& state_key() const { return *this; }
  bool operator==(const ComponentKey&) const = default;
};

// What the source remembers of a component since it was saved.
struct SourceRecord {
  std::optional<state::BlockHash> parent{};  // none at depth 0
  std::uint32_t depth = 0;                   // blocks before it
  std::uint64_t checksum = 0;                // of the slot; binds identity and bytes
};

class Source {
 public:
  virtual ~Source() = default;
  // What it could deliver now.
  virtual std::optional<SourceRecord> Locate(const ComponentKey& key) const = 0;
  // Whether it still has what was saved as this, be it readable at the moment or not.
  virtual bool Keeps(const ComponentKey& key, std::uint64_t checksum) const = 0;
  // Rises after it has lost components that were saved: given up for room, or found unreadable.
  virtual std::uint64_t losses() const = 0;
};

// How a slot's bytes are made up: pages, then the list of their checksums. What a slot's checksum is computed over.
struct ComponentShape {
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;
  bool operator==(const ComponentShape&) const = default;
};

// Read a component into a slot that the Manager has reserved for it. Exactly key.slot_bytes bytes are written.
struct LoadRequest {
  std::uint64_t id = 0;  // names the load to LoadDone
  ComponentKey key{};
  ComponentShape shape{};
  std::uint64_t offset = 0;  // in the pool
  std::uint64_t generation = 0;
};

enum class LoadResult : std::uint8_t {
  kOk,      // all bytes are in the slot
  kShort,   // fewer bytes came than the component has
  kFailed,  // the source has it no more, or reading failed
};

// Keep what is in a slot, so that it is found when it is in the pool no more: the first key.slot_bytes bytes of it.
struct SaveRequest {
  std::uint64_t id = 0;  // names the save to SaveDone
  ComponentKey key{};
  SourceRecord record{};  // what Locate shall say of it
  ComponentShape shape{};
  std::uint64_t offset = 0;  // in the pool
  std::uint64_t generation = 0;
};

enum class SaveResult : std::uint8_t {
  kSaved,   // Locate finds it from now on; also when it did before
  kNoRoom,  // not taken: the source is full, or writing faster than it can
  kFailed,  // writing failed
};

}  // namespace orbitkv::service
