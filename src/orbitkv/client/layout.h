// The engine's pages as registered: where each layer's page of a block lies, and what one block takes in the pool.
// Owns: nothing of the pages; the engine keeps them until the client has stopped. Threads: values. Blocks: no.
// Units: bytes, tokens. Errors: Validate as copy::PageLayout, and kInvalid for a block that no slot can hold.
#pragma once

#include <cstdint>
#include <span>

#include "orbitkv/base/result.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/state/identity.h"
#include "orbitkv/state/state_key.h"

namespace orbitkv::client {

struct Layout {
  copy::PageLayout pages;
  std::uint32_t block_tokens = 0;
  state::Digest namespace_digest{};  // filled in by the client

  std::uint32_t slot_bytes() const {
    return static_cast<std::uint32_t>(copy::SlotBytes(pages.layer_count(), pages.page_bytes));
  }
  std::uint64_t block_bytes() const { return copy::PayloadBytes(pages.layer_count(), pages.page_bytes); }
  state::GroupShape shape() const { return {block_tokens, pages.layer_count(), pages.page_bytes}; }
  copy::SlotIdentity Identity(const state::BlockHash& hash, std::uint32_t shard) const {
    return {namespace_digest, hash, 0, shard};
  }

  Status Validate() const;
  // Whether both describe the same pages.
  bool Same(const Layout& other) const;
  Status CheckBlocks(std::span<const state::BlockHash> hashes, std::span<const std::uint32_t> block_ids) const;
};

}  // namespace orbitkv::client
