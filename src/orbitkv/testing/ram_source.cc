#include "orbitkv/testing/ram_source.h"

#include <algorithm>
#include <cstring>

namespace orbitkv::testing {

void RamSource::Put(const service::ComponentKey& key, const service::SourceRecord& record,
                    std::vector<std::byte> bytes) {
  components_[KeyOf(key)] = Component{record, std::move(bytes)};
}

void RamSource::Erase(const service::ComponentKey& key) { components_.erase(KeyOf(key)); }

std::optional<service::SourceRecord> RamSource::Locate(const service::ComponentKey& key) const {
  ++located_;
  const auto found = components_.find(KeyOf(key));
  return found == components_.end() ? std::nullopt : std::optional(found->second.record);
}

void RamSource::Submit(const service::LoadRequest& request, std::uint64_t now_ns) {
  reads_.emplace(now_ns + (delay_ns_ ? delay_ns_(request.key) : 0), request);
}

std::vector<RamSource::Done> RamSource::Step(std::uint64_t now_ns, std::span<std::byte> pool) {
  std::vector<Done> done;
  while (!reads_.empty() && reads_.begin()->first <= now_ns) {
    const service::LoadRequest request = reads_.begin()->second;
    reads_.erase(reads_.begin());
    const auto found = components_.find(KeyOf(request.key));
    if (found == components_.end()) {
      done.push_back({request.id, service::LoadResult::kFailed, 0});
      continue;
    }
    Done one{request.id, service::LoadResult::kOk, found->second.record.checksum};
    const Fault fault = fault_ ? fault_(request.key) : Fault::kNone;
    std::size_t bytes = std::min<std::size_t>(found->second.bytes.size(), request.key.slot_bytes);
    switch (fault) {
      case Fault::kNone: break;
      case Fault::kShort:
        one.result = service::LoadResult::kShort;
        bytes /= 2;
        break;
      case Fault::kFailed:
        one.result = service::LoadResult::kFailed;
        bytes = 0;
        break;
      case Fault::kWrongBytes: one.checksum ^= 1; break;
    }
    if (bytes > 0 && request.offset <= pool.size() && bytes <= pool.size() - request.offset) {
      std::memcpy(pool.data() + request.offset, found->second.bytes.data(), bytes);
      if (fault == Fault::kWrongBytes) pool[request.offset] ^= std::byte{1};
    }
    done.push_back(one);
  }
  return done;
}

std::optional<std::uint64_t> RamSource::next_due_ns() const {
  return reads_.empty() ? std::nullopt : std::optional(reads_.begin()->first);
}

}  // namespace orbitkv::testing
