#include "orbitkv/client/layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "orbitkv/client/page_generations.h"

namespace orbitkv::client {
namespace {

Status CheckChain(const HashChain& chain) {
  if (chain.hashes.empty()) return Fail(Code::kInvalid, "no blocks given");
  if (chain.hashes.size() > state::kMaxPosition || chain.first_position > state::kMaxPosition - chain.hashes.size()) {
    return Fail(Code::kInvalid, "the blocks lie too far from the prompt's start", chain.first_position);
  }
  return {};
}

std::uint32_t EndOf(const HashChain& chain) {
  return chain.first_position + static_cast<std::uint32_t>(chain.hashes.size());
}

std::size_t CountBlocks(std::span<const state::GroupDemand> runs) {
  std::size_t count = 0;
  for (const state::GroupDemand& run : runs) count += run.block_count;
  return count;
}

}  // namespace

Status Layout::Validate() const {
  ORBITKV_TRY(pages.Validate());
  if (block_tokens == 0) return Fail(Code::kInvalid, "block_tokens must be at least 1");
  const std::uint64_t bytes = copy::SlotBytes(pages.layer_count(), pages.page_bytes);
  if (bytes > std::numeric_limits<std::uint32_t>::max()) {
    return Fail(Code::kInvalid, "one block takes more than 4 GiB; use smaller blocks", bytes);
  }
  return {};
}

bool Layout::Same(const Layout& other) const {
  return block_tokens == other.block_tokens && kind == other.kind && span_tokens == other.span_tokens &&
         pages.page_bytes == other.pages.page_bytes && pages.block_count == other.pages.block_count &&
         std::ranges::equal(pages.layers, other.pages.layers, [](const copy::LayerView& a, const copy::LayerView& b) {
           return a.base == b.base && a.block_stride_bytes == b.block_stride_bytes;
         });
}

Result<EngineLayout> EngineLayout::Compile(GroupLayouts declared, const ClientOptions& options) {
  std::vector<state::GroupShape> shapes;
  state::ContractDeclaration declaration{
      .groups = {}, .hash_block_tokens = declared.hash_block_tokens, .shard_count = options.shard_count};
  for (const Layout& group : declared.groups) {
    ORBITKV_TRY(group.Validate());
    shapes.push_back({.block_tokens = group.block_tokens,
                      .page_count = group.pages.layer_count(),
                      .page_bytes = group.pages.page_bytes,
                      .kind = group.kind,
                      .span_tokens = group.span_tokens,
                      .hash_block_tokens = declared.hash_block_tokens});
    declaration.groups.push_back({group.kind, group.block_tokens, group.span_tokens, group.slot_bytes()});
  }
  ORBITKV_ASSIGN_OR_RETURN(state::RecoveryContract contract, state::RecoveryContract::Compile(declaration));
  EngineLayout layout(std::move(declared), std::move(contract));
  layout.namespace_digest_ =
      state::NamespaceDigest(options.computation_digest, options.representation_digest, shapes, options.shard_count);
  layout.shapes_ = std::move(shapes);
  return layout;
}

bool EngineLayout::Same(const EngineLayout& other) const {
  return contract_.hash_block_tokens() == other.contract_.hash_block_tokens() &&
         std::ranges::equal(groups_, other.groups_, [](const Layout& a, const Layout& b) { return a.Same(b); });
}

Status EngineLayout::CheckRun(const HashChain& chain, const state::GroupDemand& run) const {
  if (run.group >= group_count()) {
    return Fail(Code::kInvalid, "the layout has no such cache group", run.group, group_count());
  }
  const std::uint64_t ratio = contract_.ratio(run.group);
  const std::uint64_t last = std::uint64_t{run.first_block} + run.block_count;
  if ((run.first_block + std::uint64_t{1}) * ratio <= chain.first_position || last * ratio > EndOf(chain)) {
    return Fail(Code::kInvalid, "the hashes do not name all blocks of a group", run.group, run.first_block);
  }
  return {};
}

Result<JobBlocks> EngineLayout::Name(const HashChain& chain, std::span<const state::GroupDemand> runs,
                                     const PageUse& use) const {
  ORBITKV_TRY(CheckChain(chain));
  const std::size_t count = CountBlocks(runs);
  if (count == 0) return Fail(Code::kInvalid, "no blocks given");
  if (count != use.block_ids.size()) {
    return Fail(Code::kInvalid, "blocks and block ids differ in number; give one id for each block", count,
                use.block_ids.size());
  }
  ORBITKV_TRY(PageGenerations::CheckCount(count, use.generations.size()));
  JobBlocks blocks;
  blocks.block_ids.assign(use.block_ids.begin(), use.block_ids.end());
  blocks.generations.assign(use.generations.begin(), use.generations.end());
  for (const state::GroupDemand& run : runs) {
    if (run.block_count == 0) continue;
    ORBITKV_TRY(CheckRun(chain, run));
    const std::uint32_t limit = groups_[run.group].pages.block_count;
    for (std::uint32_t i = 0; i < run.block_count; ++i) {
      const std::uint32_t id = blocks.block_ids[blocks.places.size()];
      if (id >= limit) return Fail(Code::kInvalid, "a block id is outside the registered layout", id, limit);
      const std::uint32_t place = contract_.KeyPosition(run.group, run.first_block + i) - chain.first_position;
      blocks.places.push_back(place);
      blocks.hashes.push_back(chain.hashes[place]);
    }
    blocks.runs.push_back(run);
  }
  return blocks;
}

Result<std::vector<state::GroupDemand>> EngineLayout::WholeBlocks(const HashChain& chain) const {
  ORBITKV_TRY(CheckChain(chain));
  std::vector<state::GroupDemand> runs;
  for (std::uint32_t group = 0; group < group_count(); ++group) {
    const std::uint32_t ratio = contract_.ratio(group);
    const std::uint32_t first = (chain.first_position + ratio - 1) / ratio;
    const std::uint32_t end = EndOf(chain) / ratio;
    if (end > first) runs.push_back({group, first, end - first});
  }
  return runs;
}

Result<std::vector<state::GroupDemand>> EngineLayout::DemandOf(const HashChain& chain) const {
  ORBITKV_TRY(CheckChain(chain));
  return contract_.Demand(chain.first_position, EndOf(chain));
}

std::uint64_t EngineLayout::BytesOf(std::span<const state::GroupDemand> runs) const {
  std::uint64_t bytes = 0;
  for (const state::GroupDemand& run : runs) bytes += run.block_count * groups_[run.group].block_bytes();
  return bytes;
}

}  // namespace orbitkv::client
