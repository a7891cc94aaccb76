// What lies behind the pool, as an SSD would: components that were saved there, over the lives of Managers.
// Owns: a copy of each component's bytes. Threads: one. Blocks: no. Units: bytes.
// Invariant: the bytes are those of the write that the component was saved from, unless a fault hit them in the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "orbitkv/service/source.h"
#include "orbitkv/state/identity.h"

namespace orbitkv::sim {

struct Saved {
  service::ComponentKey key;
  service::SourceRecord record;
  std::uint64_t write = 0;
  std::vector<std::byte> bytes{};
};

class Store {
 public:
  // Fills the bytes in from the write.
  const Saved& Save(Saved saved, const state::GroupShape& group);
  // With the bytes that were in the pool, whole or not.
  void Put(Saved saved) { saved_[saved.key] = std::move(saved); }
  void Erase(const service::ComponentKey& key) { saved_.erase(key); }
  const Saved* Find(const service::ComponentKey& key) const;
  // None when there is nothing.
  const Saved* Any(std::uint64_t pick) const;
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (const auto& [key, saved] : saved_) fn(saved);
  }

 private:
  std::map<state::StateKey, Saved> saved_;
};

}  // namespace orbitkv::sim
