// The engine's pages as registered: of each cache group where every layer's page of a block lies, what one block takes
// in the pool, and what a boundary needs of the group. And what jobs move: blocks of groups, each named by a hash.
//
// Prompts are hashed in hash blocks (state/contract.h); a block of a group is named by the last hash inside it. An
// engine with one group of full attention hashes each of its blocks, and need not know more than that.
//
// Owns: nothing of the pages; the engine keeps them until the client has stopped. Threads: values. Blocks: no.
// Units: bytes, tokens; positions in hash blocks, blocks of a group where named so.
// Errors: Compile as copy::PageLayout and RecoveryContract, and kInvalid for a block that no slot can hold; the rest
//         kInvalid, with the first fault.
// Invariant: a block of JobBlocks is one of its group's layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/client/options.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/state/contract.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::client {

// One cache group.
struct Layout {
  copy::PageLayout pages;
  std::uint32_t block_tokens = 0;
  state::GroupKind kind = state::GroupKind::kFullAttention;
  std::uint32_t span_tokens = 0;  // of a window or chunk; 0 for the other kinds

  std::uint32_t slot_bytes() const {
    return static_cast<std::uint32_t>(copy::SlotBytes(pages.layer_count(), pages.page_bytes));
  }
  std::uint64_t block_bytes() const { return copy::PayloadBytes(pages.layer_count(), pages.page_bytes); }

  Status Validate() const;
  // Whether both describe the same pages.
  bool Same(const Layout& other) const;
};

// All cache groups of an engine, in the order of their numbers.
struct GroupLayouts {
  std::vector<Layout> groups;
  std::uint32_t hash_block_tokens = 0;  // 0: the greatest common divisor of the groups' block sizes
};

// Hashes of consecutive hash blocks of a prompt.
struct HashChain {
  std::span<const state::BlockHash> hashes;
  std::uint32_t first_position = 0;
};

// What a job moves, group by group: the blocks of its runs, one behind the other.
struct JobBlocks {
  std::vector<state::GroupDemand> runs;    // none is empty
  std::vector<state::BlockHash> hashes;    // of each block
  std::vector<std::uint32_t> places;       // of each block: the index of its hash in the chain
  std::vector<std::uint32_t> block_ids;    // of the engine
  std::vector<std::uint64_t> generations;  // of the pages: none, one for all, or one for each block

  std::size_t size() const { return block_ids.size(); }
};

struct PageUse {
  std::span<const std::uint32_t> block_ids;
  std::span<const std::uint64_t> generations;
};

class EngineLayout {
 public:
  // options: who registers it; they and the groups are its namespace.
  static Result<EngineLayout> Compile(GroupLayouts declared, const ClientOptions& options);

  std::uint32_t group_count() const { return static_cast<std::uint32_t>(groups_.size()); }
  const Layout& group(std::uint32_t number) const { return groups_[number]; }
  const state::RecoveryContract& contract() const { return contract_; }
  const std::vector<state::GroupShape>& shapes() const { return shapes_; }
  bool Same(const EngineLayout& other) const;
  state::StateKey Identity(std::uint32_t group, const state::BlockHash& hash, std::uint32_t shard) const {
    return {namespace_digest_, hash, group, shard};
  }

  // The blocks that runs name, whose hashes are in the chain and whose pages are `use`.
  Result<JobBlocks> Name(const HashChain& chain, std::span<const state::GroupDemand> runs, const PageUse& use) const;
  // Every block of every group that lies in the chain whole.
  Result<std::vector<state::GroupDemand>> WholeBlocks(const HashChain& chain) const;
  // What the boundary behind the chain demands of an engine that has what lies before it.
  Result<std::vector<state::GroupDemand>> DemandOf(const HashChain& chain) const;
  std::uint64_t BytesOf(std::span<const state::GroupDemand> runs) const;

 private:
  EngineLayout(GroupLayouts declared, state::RecoveryContract contract)
      : groups_(std::move(declared.groups)), contract_(std::move(contract)) {}
  Status CheckRun(const HashChain& chain, const state::GroupDemand& run) const;

  std::vector<Layout> groups_;
  state::RecoveryContract contract_;
  std::vector<state::GroupShape> shapes_;
  state::Digest namespace_digest_{};
};

}  // namespace orbitkv::client
