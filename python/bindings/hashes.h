// Block hashes prepared for the native side once: a list that grows at its end, and slices that share its memory.
// Owns: shares the hashes with its slices. Threads: under the GIL; a span taken from hold() stays valid without it.
// Blocks: no. Units: hash_bytes is what one hash has, up to 32; shorter ones are padded with zeros.
// Errors: InvalidArgument for a length that is no whole number of hashes. Invariant: a slice never changes; extending
// the list leaves slices alone.
#pragma once

#include <cstddef>
#include <memory>
#include <nanobind/nanobind.h>
#include <span>
#include <vector>

#include "orbitkv/state/state_key.h"

namespace orbitkv::python {

class BlockHashes {
 public:
  using Storage = std::vector<state::BlockHash>;

  BlockHashes(nanobind::handle data, int hash_bytes);

  std::size_t size() const { return count_; }
  // What a call without the GIL keeps, and the hashes in it.
  std::shared_ptr<const Storage> hold() const { return storage_; }
  std::span<const state::BlockHash> span() const { return std::span(*storage_).subspan(first_, count_); }

  BlockHashes Slice(const nanobind::slice& slice) const;
  nanobind::bytes At(std::ptrdiff_t index) const;
  void Extend(nanobind::handle items);

 private:
  BlockHashes(std::shared_ptr<Storage> storage, std::size_t first, std::size_t count, std::size_t hash_bytes)
      : storage_(std::move(storage)), first_(first), count_(count), hash_bytes_(hash_bytes) {}
  void Append(const char* data, std::size_t bytes);

  std::shared_ptr<Storage> storage_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t hash_bytes_ = 0;
};

}  // namespace orbitkv::python
