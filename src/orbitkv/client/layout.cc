#include "orbitkv/client/layout.h"

#include <algorithm>
#include <limits>

namespace orbitkv::client {

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
  return block_tokens == other.block_tokens && pages.page_bytes == other.pages.page_bytes &&
         pages.block_count == other.pages.block_count &&
         std::ranges::equal(pages.layers, other.pages.layers, [](const copy::LayerView& a, const copy::LayerView& b) {
           return a.base == b.base && a.block_stride_bytes == b.block_stride_bytes;
         });
}

Status Layout::CheckBlocks(std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> block_ids) const {
  if (hashes.empty()) return Fail(Code::kInvalid, "no blocks given");
  if (hashes.size() != block_ids.size()) {
    return Fail(Code::kInvalid, "hashes and block ids differ in number; give one id for each hash", hashes.size(),
                block_ids.size());
  }
  for (const std::uint32_t id : block_ids) {
    if (id >= pages.block_count) {
      return Fail(Code::kInvalid, "a block id is outside the registered layout", id, pages.block_count);
    }
  }
  return {};
}

}  // namespace orbitkv::client
