#include "orbitkv/testing/ram_source.h"

#include <algorithm>
#include <cstring>

namespace orbitkv::testing {

void RamSource::Put(const service::ComponentKey& key, const service::SourceRecord& record,
                    std::vector<std::byte> bytes) {
  components_[key] = Component{record, std::move(bytes)};
}

void RamSource::Erase(const service::ComponentKey& key) { losses_ += components_.erase(key); }

bool RamSource::Keeps(const service::ComponentKey& key, std::uint64_t checksum) const {
  const auto found = components_.find(key);
  return found != components_.end() && found->second.record.checksum == checksum;
}

std::optional<service::SourceRecord> RamSource::Locate(const service::ComponentKey& key) const {
  ++located_;
  const auto found = components_.find(key);
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
    const auto found = components_.find(request.key);
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

void RamSource::Save(const service::SaveRequest& request, std::uint64_t now_ns) {
  saves_.emplace(now_ns + (save_delay_ns_ ? save_delay_ns_(request.key) : 0), request);
}

std::vector<RamSource::Saved> RamSource::StepSaves(std::uint64_t now_ns, std::span<const std::byte> pool) {
  std::vector<Saved> done;
  while (!saves_.empty() && saves_.begin()->first <= now_ns) {
    const service::SaveRequest request = saves_.begin()->second;
    saves_.erase(saves_.begin());
    const service::SaveResult result = save_fault_ ? save_fault_(request.key) : service::SaveResult::kSaved;
    if (result == service::SaveResult::kSaved) {
      std::vector<std::byte> bytes;
      if (request.offset <= pool.size() && request.key.slot_bytes <= pool.size() - request.offset) {
        const auto slot = pool.subspan(request.offset, request.key.slot_bytes);
        bytes.assign(slot.begin(), slot.end());
      }
      Put(request.key, request.record, std::move(bytes));
    }
    done.push_back({request.id, result});
  }
  return done;
}

std::optional<std::uint64_t> RamSource::next_due_ns() const {
  if (saves_.empty()) return reads_.empty() ? std::nullopt : std::optional(reads_.begin()->first);
  return reads_.empty() ? saves_.begin()->first : std::min(reads_.begin()->first, saves_.begin()->first);
}

}  // namespace orbitkv::testing
