#include "orbitkv/testing/sim/store.h"

#include <iterator>
#include <span>

#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/testing/sim/memory.h"

namespace orbitkv::sim {

const Saved& Store::Save(Saved saved, const state::GroupShape& group) {
  saved.bytes.resize(saved.key.slot_bytes);
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t page = 0; page < group.page_count; ++page) {
    const auto bytes = std::span(saved.bytes).subspan(page * group.page_bytes, group.page_bytes);
    FillPage(saved.write, page, bytes);
    hashes.push_back(copy::HashOnly(bytes.data(), bytes.size()));
  }
  copy::WriteList(saved.bytes.data(), group.page_bytes, hashes);
  return saved_[saved.key] = std::move(saved);
}

const Saved* Store::Find(const service::ComponentKey& key) const {
  const auto found = saved_.find(key);
  return found == saved_.end() ? nullptr : &found->second;
}

const Saved* Store::Any(std::uint64_t pick) const {
  if (saved_.empty()) return nullptr;
  return &std::next(saved_.begin(), static_cast<std::ptrdiff_t>(pick % saved_.size()))->second;
}

}  // namespace orbitkv::sim
