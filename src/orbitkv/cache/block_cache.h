// The block cache: which KV blocks are in the pool, who may not lose them, and what goes when room is needed.
//
// A block is named by (namespace row, block hash) and has one component per (group, shard) of its namespace, each in a
// slot of its own. A group has a component where its ratio divides depth + 1. *Dense* groups are stored at every such
// depth; *sparse* ones (windows, states) where an engine kept them, and they may be evicted alone. A group is complete
// in a block when all its shards are present, none suspect; a block is served when all its dense groups are complete,
// and one group at least.
//
// Blocks form the tree of prompt prefixes, linked by their dense components; the dense part of a block that others
// continue is not evicted before them. An entry without any slot stays while others continue it or somebody has pinned
// it, so that the tree keeps its shape; it is never served.
//
// A slot's way: Reserve hands it to one writer (not in the index; several writers of one key have slots of their own),
// Commit makes it the component's slot or frees it when another writer was first. Meanwhile the block that it will
// continue counts it as one that does, so that a prompt on its way in does not push out its own beginning. Dropped
// bytes that a grant still reads stay untouched until the last granted pin is gone (draining).
//
// Pins: *found* pins belong to leases; they keep a block until the LeaseRevoker gives leases up under pressure.
// *Granted* pins belong to copies under way; nothing takes those blocks or moves their bytes.
//
// Owns: the index and its bookkeeping, sized at construction: no allocation and no rehash afterwards, except in
// AddNamespace. The pool belongs to the caller and outlives the cache; its slots are allocated and freed only here.
// Threads: one (the dispatcher). Never blocks; no clock: now_ns comes in with calls and never goes back.
// Units: bytes and nanoseconds. Components are numbered in the order of the namespace's ComponentSpecs.
// Errors: stated per call; a miss is an optional. A BlockRef whose block is gone is kStale (or false), never a crash;
//         unpinning what is not pinned is a broken invariant of the caller.
// Invariants: no slot belongs to two blocks; a granted block's slots are neither freed nor reused; a pinned entry keeps
//             its ref; a child is deeper than its parent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"
#include "orbitkv/cache/block_index.h"
#include "orbitkv/cache/eviction.h"
#include "orbitkv/cache/ghost_list.h"
#include "orbitkv/pool/pool.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::cache {

struct CacheConfig {
  std::uint32_t max_blocks = 0;  // entries of the index
  std::uint32_t max_namespaces = 1024;
  std::uint64_t hash_seed = 0;                         // random per Manager life, so that nobody can aim at one bucket
  std::uint64_t incomplete_after_ns = 10'000'000'000;  // from the first commit of a block that lacks components
  std::uint32_t max_revokes = 64;                      // leases given up for one reservation
};

// Names one entry while it exists. Value type; a ref that outlives its entry is recognised.
struct BlockRef {
  std::uint32_t index = 0xffffffffU;
  std::uint32_t generation = 0;
  auto operator<=>(const BlockRef&) const = default;
  bool is_none() const { return index == 0xffffffffU; }
};

struct ComponentSpec {
  std::uint32_t group = 0;
  std::uint32_t shard = 0;
  std::uint32_t slot_bytes = 0;  // pages and checksum list of one block
  auto operator<=>(const ComponentSpec&) const = default;
};

struct GroupSpec {
  std::uint32_t ratio = 1;  // depths from one component of the group to the next
  bool dense = true;
  auto operator<=>(const GroupSpec&) const = default;
};

// A block with groups of its namespace, group g as bit g.
struct BlockUse {
  BlockRef ref;
  std::uint32_t groups = 0;
  auto operator<=>(const BlockUse&) const = default;
};

// Implemented by who keeps the leases.
class LeaseRevoker {
 public:
  virtual ~LeaseRevoker() = default;
  // Gives up one lease, the one that is missed least, by UnpinFound for each of its blocks. False when there is none.
  // Called from within Reserve and Commit; may call nothing else of the cache.
  virtual bool RevokeOne() = 0;
};

// Of a block that is not served.
enum class Absence : std::uint8_t {
  kNeverSeen,   // as far as is remembered
  kEvicted,     // it was served and made room
  kIncomplete,  // parts of it are here
};

enum class ReserveStatus : std::uint8_t {
  kHaveIt = 1,
  kSlot = 2,
  kNotNow = 3,  // nothing can be evicted, or the component is being verified
};

struct ReserveRequest {
  NamespaceRow row{};
  state::BlockHash hash{};
  std::uint32_t component = 0;
  std::optional<state::BlockHash> parent{};  // as in the commit that is to follow
  std::uint32_t depth = 0;
};

struct ReserveOutcome {
  ReserveStatus status = ReserveStatus::kNotNow;
  pool::Slot slot{};  // with kSlot; slot.slot_bytes is the slot's size, at least the component's
};

struct CommitRequest {
  NamespaceRow row{};
  state::BlockHash hash{};
  std::optional<state::BlockHash> parent{};  // the group's block before, none for its first one
  std::uint32_t depth = 0;                   // hash blocks before it
  std::uint32_t component = 0;
  pool::SlotIndex slot{};
  std::uint64_t generation = 0;
  std::uint64_t checksum = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t answer_tokens = 0;
  bool saved = false;  // it came from behind the pool, for somebody who will use it
};

enum class CommitOutcome : std::uint8_t {
  kStored = 1,
  kAlreadyThere = 2,  // another commit came first; this writer's slot is freed
  // Not stored: a slot that is not reserved under that generation (untouched), or a depth that contradicts the tree, a
  // component under verification or no room in the index (the slot is freed).
  kLost = 3,
};

// Where a component's bytes are.
struct PlanSlot {
  pool::SlotIndex slot{};
  std::uint64_t offset = 0;
  std::uint64_t generation = 0;
  std::uint64_t checksum = 0;
  std::uint32_t payload_bytes = 0;  // as in the ComponentSpec
  std::uint32_t slab = 0;
  std::optional<state::BlockHash> parent{};  // as committed
  std::uint32_t depth = 0;
};

// Whether a component is kept behind the pool, too.
enum class SaveState : std::uint8_t { kNot, kUnderWay, kSaved };

// A slot of an earlier life that a process may still be touching. Its block, pinned; none when it holds no block that
// is served.
struct HeldSlot {
  pool::SlotIndex slot{};
  std::uint64_t generation = 0;
  BlockRef ref;
};

// What a slot holds.
struct SlotContent {
  BlockRef ref;
  NamespaceRow row{};
  state::BlockHash hash{};
  std::uint32_t component = 0;
  std::uint64_t generation = 0;
  SaveState save = SaveState::kNot;
  bool used = false;  // by NoteSavedUse, since its save state changed
};

struct AdoptOutcome {
  std::uint64_t adopted = 0;  // components
  std::uint64_t adopted_bytes = 0;
  std::uint64_t discarded = 0;  // sealed slots that are of no use here
  std::vector<HeldSlot> held;
};

enum class DropReason : std::uint8_t {
  kChecksum,  // the bytes are wrong; counted against the slot, which is retired at the second time
  kWithdrawn,
};

struct CacheCounters {
  std::uint64_t hits = 0;     // blocks that MatchPrefix and Find returned
  std::uint64_t misses = 0;   // look-ups that ended at a block that is not served
  std::uint64_t inserts = 0;  // blocks that became complete
  std::uint64_t commits = 0;  // components stored
  std::uint64_t adopted = 0;  // components of an earlier life
  std::uint64_t already_there = 0;
  std::uint64_t lost_commits = 0;
  std::uint64_t aborted = 0;          // reservations given back
  std::uint64_t evictions = 0;        // blocks evicted
  std::uint64_t evicted_unsaved = 0;  // of those, that waited to be saved
  std::uint64_t reclaimed_slabs = 0;  // times that room of other slot sizes was taken
  std::uint64_t incomplete = 0;       // blocks that lacked a component for too long
  std::uint64_t dropped_corrupt = 0;  // components dropped because of record or payload
  std::uint64_t dropped = 0;          // components dropped for any reason
  std::uint64_t revoked = 0;          // leases given up
  std::uint64_t not_now = 0;
};

struct CacheGauges {
  std::uint64_t entries = 0;   // used entries of the index, with those that hold no slot
  std::uint64_t complete = 0;  // blocks that are served
  std::uint64_t reserved_slots = 0;
  std::uint64_t found_pins = 0;
  std::uint64_t granted_pins = 0;
  std::uint64_t suspect = 0;
  std::uint64_t draining = 0;  // slots
};

class BlockCache {
 public:
  using PolicyFactory = std::function<std::unique_ptr<EvictionPolicy>(std::uint32_t max_blocks)>;

  // kInvalid for limits that do not fit together. Null: LRU.
  static Result<std::unique_ptr<BlockCache>> Create(const CacheConfig& config, pool::Pool& pool,
                                                    const PolicyFactory& policy = nullptr);
  void SetLeaseRevoker(LeaseRevoker* revoker) { revoker_ = revoker; }

  // row is at least 1 and at most max_namespaces. The same row again with equal specs changes nothing; with others,
  // kRefused. kInvalid for a component that can never fit into the pool.
  // groups: one for each group number; without any, all groups are dense and of ratio 1. kBusy when blocks of too many
  // different sizes are known.
  Status AddNamespace(NamespaceRow row, std::span<const ComponentSpec> components,
                      std::span<const GroupSpec> groups = {});

  // Whether AddNamespace would take a new row of these.
  Status CheckNamespace(std::span<const ComponentSpec> components, std::span<const GroupSpec> groups = {}) const;
  // Makes the row free for another namespace. kBusy while a block or a slot being written belongs to it.
  Status ForgetNamespace(NamespaceRow row);

  // ---- look-up ----
  // The block when it is served.
  std::optional<BlockRef> Find(NamespaceRow row, const state::BlockHash& hash);
  // Appends the longest run of served blocks at the start of hashes to out and returns its length.
  std::uint32_t MatchPrefix(NamespaceRow row, std::span<const state::BlockHash> hashes, std::vector<BlockRef>& out);
  // Appends one BlockUse per hash: the groups that are complete there; without a ref when there is none.
  void LookUp(NamespaceRow row, std::span<const state::BlockHash> hashes, std::vector<BlockUse>& out);
  bool IsServed(BlockRef ref) const;
  // Why it is not served, or kIncomplete when it is: for people. The last evicted blocks are remembered, as many as the
  // index has entries and kMostEvictedKept at most.
  Absence WhyAbsent(NamespaceRow row, const state::BlockHash& hash) const;
  std::uint64_t BytesOf(BlockRef ref) const;            // bytes of the slots that hang on it; 0 when stale
  std::uint64_t BytesPerBlock(NamespaceRow row) const;  // with all components; 0 when unknown
  std::uint32_t ComponentCount(NamespaceRow row) const;
  // Marks blocks, or groups of them, as used now; stale refs are skipped.
  void Touch(std::span<const BlockRef> refs, std::uint64_t now_ns);
  void Touch(std::span<const BlockUse> uses, std::uint64_t now_ns);

  // ---- pins; each call counts one, and holds all that the block has ----
  bool PinFound(BlockRef ref);           // false when the block is not served
  bool PinGranted(BlockRef ref);         // false when the block is not served
  bool PinFound(const BlockUse& use);    // false when one of the groups is not complete
  bool PinGranted(const BlockUse& use);  // false when one of the groups is not complete
  void UnpinFound(BlockRef ref);
  void UnpinGranted(BlockRef ref);

  // ---- publish ----
  ReserveOutcome Reserve(const ReserveRequest& request, std::uint64_t now_ns);
  CommitOutcome Commit(const CommitRequest& request, std::uint64_t now_ns);
  // kStale when the slot is not reserved under that generation (any more).
  Status AbortReserved(pool::SlotIndex slot, std::uint64_t generation);
  // The writer takes long: what its block continues may be evicted again. Nothing when the slot is not reserved under
  // that generation (any more).
  void LetParentGo(pool::SlotIndex slot, std::uint64_t generation);
  // The writer of a missing component is gone: the block is among the first victims from now on.
  void WriterLost(NamespaceRow row, const state::BlockHash& hash);

  // ---- an earlier life ----
  // Before anything else is stored, and after AddNamespace for the rows that are known: takes what the pool recovered,
  // in the order of last use, as if it had been committed then. Each sealed slot becomes a component, or is freed.
  AdoptOutcome Adopt(std::vector<pool::RecoveredSlot> slots, std::uint64_t now_ns);
  // The component that is served from a slot.
  std::optional<SlotContent> InSlot(pool::SlotIndex slot) const;
  // Nobody of the earlier life touches it any more.
  void LetGo(const HeldSlot& held);

  // ---- restore ----
  // kStale: no such block; kNotFound: the component is absent or suspect; kCorrupt: its record is damaged or names
  // something else, and the component has been dropped.
  Result<PlanSlot> Plan(BlockRef ref, std::uint32_t component);
  // The same for a suspect component, for the verifier.
  Result<PlanSlot> PlanSuspect(BlockRef ref, std::uint32_t component);
  // A reader saw a mismatch: not served and not evicted until ClearSuspect or Drop. kNotFound when it is not present.
  Status MarkSuspect(BlockRef ref, std::uint32_t component);
  Status ClearSuspect(BlockRef ref, std::uint32_t component);
  Status Drop(BlockRef ref, std::uint32_t component, DropReason reason);

  // ---- saving behind the pool; nothing of it survives the block ----
  // The block with the groups that are complete, as LookUp without being counted.
  BlockUse Peek(NamespaceRow row, const state::BlockHash& hash) const;
  // Whether that one component is here and not doubted.
  bool Has(NamespaceRow row, const state::BlockHash& hash, std::uint32_t component) const;
  // While it waits, room is made from other blocks of about the same worth. False when it waits already, or is gone.
  bool AwaitSave(BlockRef ref);
  void EndAwaitSave(BlockRef ref);
  // Appends the components of these groups that are here and neither saved nor under way.
  void Unsaved(const BlockUse& use, std::vector<std::uint32_t>& components) const;
  // Remembers that these groups were used. Whether Unsaved would name a component.
  bool NoteSavedUse(const BlockUse& use);
  // Of the component in that slot; nothing when it is another one by now.
  void SetSaveState(BlockRef ref, std::uint32_t component, std::uint64_t generation, SaveState state);

  // Finds blocks that stay incomplete. Cheap; call it with every timer.
  void Tick(std::uint64_t now_ns);
  // When Tick has something to do next; none when nothing waits.
  std::optional<std::uint64_t> next_deadline_ns() const;

  const CacheCounters& counters() const { return counters_; }
  const CacheGauges& gauges() const { return gauges_; }
  const pool::Pool& pool() const { return pool_; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;
  static constexpr std::uint32_t kMaxGroups = 32;  // bits of a word
  static constexpr std::uint32_t kMostEvictedKept = 1U << 18U;

  enum class SlotUse : std::uint8_t { kNone, kReserved, kPresent, kSuspect, kDraining, kHeld };
  enum class Lateness : std::uint8_t { kNotWaiting, kWaiting, kLate };

  // One per slot of the pool, so that a block's slots are a list without storage of its own and a slot names its block.
  struct SlotNode {
    std::uint64_t generation = 0;
    std::uint32_t owner = kNone;  // entry; of a reserved slot the namespace row
    std::uint32_t next = kNone;   // slot of the same entry; of a reserved slot the entry that it holds as its parent
    std::uint32_t component = 0;
    SlotUse use = SlotUse::kNone;
    SaveState save = SaveState::kNot;
    bool used = false;  // since save changed
  };

  // What is evicted as one: all of a block, or its sparse groups alone.
  enum class Part : std::uint8_t { kWhole, kSparse };

  // The first cache line is what a look-up reads.
  struct alignas(64) Entry {
    state::BlockHash hash{};
    NamespaceRow row{};
    std::uint32_t generation = 0;  // of the ref; changes when the entry is given back
    std::uint32_t lacking = 0;     // dense components that are absent or suspect, or 1 without a complete group
    std::uint32_t complete = 0;    // groups
    std::uint32_t found = 0;
    std::uint32_t granted = 0;
    std::uint64_t last_use_ns = 0;  // of the dense part

    std::uint64_t sparse_use_ns = 0;
    std::uint64_t waiting_since_ns = 0;
    std::uint32_t first_slot = kNone;
    std::uint32_t parent = kNone;
    std::uint32_t children = 0;  // entries, and reserved slots of what will be such
    std::uint32_t depth = 0;
    std::uint32_t present = 0;         // components with a slot, with the suspect ones
    std::uint32_t sparse_present = 0;  // of those, in sparse groups
    std::uint32_t suspects = 0;        // of those
    std::uint32_t prev_waiting = kNone;
    std::uint32_t next_waiting = kNone;  // also links unused entries
    std::uint32_t late_lane = kNone;     // while late
    bool used = false;
    bool candidate = false;
    bool sparse_candidate = false;
    bool partial = false;  // a sparse group has some of its shards only
    bool awaits_save = false;
    Lateness lateness = Lateness::kNotWaiting;
  };
  static_assert(sizeof(Entry) == 128);

  struct List {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };

  struct Group {
    GroupSpec spec;
    std::uint32_t shards = 0;
  };

  struct Namespace {
    std::vector<ComponentSpec> components;
    std::vector<GroupSpec> specs;  // as given
    std::vector<Group> groups;     // by group number
    std::uint32_t dense_groups = 0;
    bool simple = false;  // one group, dense and of ratio 1
    std::uint64_t block_bytes = 0;
    std::uint32_t lane = kNone;         // of dense parts, kNone without dense groups
    std::uint32_t sparse_lane = kNone;  // kNone without sparse groups
  };

  // Parts of blocks whose components take the same slot sizes: evicting any of them makes room for any other.
  struct Lane {
    std::vector<std::uint64_t> slot_sizes;  // ascending, each once
    Part part = Part::kWhole;
    std::uint32_t policy_lane = 0;  // its number in the part's policy
    List late;                      // incomplete for too long, oldest first
    std::uint32_t evictions_since_reclaim = 0;
    bool Has(std::uint64_t slot_bytes) const;
  };

  BlockCache(const CacheConfig& config, pool::Pool& pool, PolicyFactory policies,
             std::unique_ptr<EvictionPolicy> policy);

  // block_cache.cc
  const Namespace* FindNamespace(NamespaceRow row) const;
  static Status DescribeGroups(std::span<const GroupSpec> groups, Namespace& space);
  Result<Namespace> Describe(std::span<const ComponentSpec> components, std::span<const GroupSpec> groups) const;
  static std::vector<std::uint64_t> SlotSizes(const Namespace& space, Part part);
  std::uint32_t FindLane(const Namespace& space, Part part) const;
  std::uint32_t LaneFor(const Namespace& space, Part part);
  // What policies know a block by.
  std::uint64_t KeyOf(NamespaceRow row, const state::BlockHash& hash) const {
    std::uint64_t mixed = hash.Prefix64() ^ config_.hash_seed;
    mixed = (mixed ^ (mixed >> 32U)) * 0x9e3779b97f4a7c15ULL + row.value();
    return (mixed ^ (mixed >> 29U)) * 0xbf58476d1ce4e5b9ULL;
  }
  // The same, and other for each namespace that a row is given to.
  std::uint64_t KeyOfLife(NamespaceRow row, const state::BlockHash& hash) const {
    return KeyOf(row, hash) + row_lives_[row.value()] * 0xd6e8feb86659fd93ULL;
  }
  std::uint32_t HashOf(NamespaceRow row, const state::BlockHash& hash) const {
    return static_cast<std::uint32_t>(KeyOf(row, hash) >> 32U);
  }
  std::uint32_t Lookup(NamespaceRow row, const state::BlockHash& hash) const;
  const Entry* Deref(BlockRef ref) const;
  Entry* Deref(BlockRef ref) { return const_cast<Entry*>(std::as_const(*this).Deref(ref)); }
  BlockRef RefOf(std::uint32_t entry) const { return BlockRef{entry, entries_[entry].generation}; }
  void TouchEntry(std::uint32_t entry, std::uint32_t groups);
  void NoteUse(const Entry& entry);
  template <typename Visit>
  void Walk(NamespaceRow row, std::span<const state::BlockHash> hashes, Visit&& visit) const;
  bool HasGroups(const BlockUse& use) const;
  bool Pin(BlockRef ref, bool granted);
  void AdvanceClock(std::uint64_t now_ns) { now_ns_ = std::max(now_ns_, now_ns); }

  // entries.cc
  std::uint32_t NewEntry(NamespaceRow row, const state::BlockHash& hash, std::uint32_t depth);
  void Settle(std::uint32_t entry);
  void UpdateCandidate(std::uint32_t entry);
  void SetParent(std::uint32_t entry, const state::BlockHash& parent, std::uint32_t parent_depth);
  void Attach(std::uint32_t entry, std::uint32_t slot, const CommitRequest& request);
  void Detach(std::uint32_t entry, std::uint32_t slot);
  void UnlinkSlot(std::uint32_t entry, std::uint32_t slot);
  void FreeSlot(std::uint32_t slot);
  void FreeDraining(std::uint32_t entry);
  std::uint32_t FindComponent(const Entry& entry, std::uint32_t component) const;
  static Part PartOf(const Namespace& space, std::uint32_t component) {
    return space.groups[space.components[component].group].spec.dense ? Part::kWhole : Part::kSparse;
  }
  EvictionPolicy& PolicyOf(Part part) { return part == Part::kWhole ? *policy_ : *sparse_policy_; }
  void Recount(std::uint32_t entry);
  void RecountGroups(std::uint32_t entry, const Namespace& space);
  void UpdateWaiting(std::uint32_t entry);
  List& ListOf(const Entry& entry);
  void SetLateness(std::uint32_t entry, Lateness lateness);

  // room.cc
  bool MakeRoom(std::uint64_t slot_bytes);
  bool MakeEntryRoom();
  bool EvictLate(std::uint64_t slot_bytes);
  bool Reclaim(std::optional<pool::Window> window, std::uint64_t keep_since_ns);
  bool ReclaimAny(std::uint64_t slot_bytes);
  bool ReclaimColder(std::uint64_t slot_bytes, std::uint32_t own_lane, std::uint64_t own_last_use_ns);
  static bool IsEvictable(const Entry& entry) { return entry.found == 0 && entry.granted == 0 && entry.suspects == 0; }
  void Evict(std::uint32_t entry, Part part);
  void DropPartialGroups(std::uint32_t entry);
  std::optional<std::uint32_t> Victim(const Lane& lane) const;
  std::uint32_t CheapVictim(const Lane& lane);
  std::uint64_t LastUse(std::uint32_t entry, Part part) const;
  pool::SlotIndex SlotOf(std::uint32_t entry, Part part) const;
  Part PartOfSlot(std::uint32_t slot) const;
  std::uint32_t ColdestLane(std::uint64_t slot_bytes, bool with_that_size) const;
  std::uint32_t ColdestLaneOf(Part part) const;
  bool Revoke(std::uint32_t& budget);

  // publish.cc
  std::uint32_t FindParent(const ReserveRequest& request, const GroupSpec& group, bool make);
  void HoldParent(std::uint32_t parent);
  void ReleaseParent(std::uint32_t parent);
  std::expected<std::uint32_t, CommitOutcome> EntryFor(const CommitRequest& request, const Namespace& space);
  void Enter(std::uint32_t entry, std::uint32_t slot, const CommitRequest& request, const GroupSpec& group);

  // adopt.cc
  BlockRef AdoptOne(const pool::RecoveredSlot& slot);
  std::optional<CommitRequest> RequestOf(const wire::SlotRecord& record) const;

  // restore.cc
  Result<PlanSlot> PlanAny(BlockRef ref, std::uint32_t component, bool suspect);
  void DropSlot(std::uint32_t entry, std::uint32_t slot);

  const CacheConfig config_;
  pool::Pool& pool_;
  const PolicyFactory policies_;
  std::unique_ptr<EvictionPolicy> policy_;         // of whole blocks
  std::unique_ptr<EvictionPolicy> sparse_policy_;  // of sparse parts; made with the first sparse group
  LeaseRevoker* revoker_ = nullptr;
  BlockIndex index_;
  std::vector<Entry> entries_;
  std::uint32_t free_entries_ = 0;
  std::vector<SlotNode> nodes_;           // by slot index
  std::vector<Namespace> namespaces_;     // by row
  std::vector<std::uint32_t> row_users_;  // by row: entries and reserved slots
  std::vector<std::uint64_t> row_lives_;  // by row: namespaces that had it before
  GhostList evicted_;                     // KeyOfLife of blocks
  std::vector<Lane> lanes_;
  List waiting_;  // incomplete blocks that are not late yet, oldest first
  std::uint64_t now_ns_ = 0;
  CacheCounters counters_;
  CacheGauges gauges_;
};

}  // namespace orbitkv::cache
