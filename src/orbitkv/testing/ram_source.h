// A backing source in memory, for tests: what it holds, how long each read or save takes and how it goes wrong are set
// by the test.
//
// Owns: its components, and the reads and saves that are not due yet. Threads: locked outside. Blocks: no.
// Units: nanoseconds of whatever clock the test has. Errors: none; faults are what it is told.
// Invariant: every submitted read comes out of Step once, and every save out of StepSaves, the earliest due first, then
//            in the order of submission.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "orbitkv/service/source.h"

namespace orbitkv::testing {

class RamSource : public service::Source {
 public:
  enum class Fault : std::uint8_t { kNone, kShort, kFailed, kWrongBytes };
  struct Done {
    std::uint64_t id = 0;
    service::LoadResult result = service::LoadResult::kOk;
    std::uint64_t checksum = 0;
  };
  struct Saved {
    std::uint64_t id = 0;
    service::SaveResult result = service::SaveResult::kSaved;
  };

  // bytes may be empty where nobody looks at them.
  void Put(const service::ComponentKey& key, const service::SourceRecord& record, std::vector<std::byte> bytes = {});
  // Located no more; reads under way fail.
  void Erase(const service::ComponentKey& key);
  std::optional<service::SourceRecord> Locate(const service::ComponentKey& key) const override;
  bool Keeps(const service::ComponentKey& key, std::uint64_t checksum) const override;
  std::uint64_t losses() const override { return losses_; }

  void set_delay(std::function<std::uint64_t(const service::ComponentKey&)> delay_ns) {
    delay_ns_ = std::move(delay_ns);
  }
  void set_fault(std::function<Fault(const service::ComponentKey&)> fault) { fault_ = std::move(fault); }

  void Submit(const service::LoadRequest& request, std::uint64_t now_ns);
  // Reads that are due. pool: where their bytes go; empty where nobody looks at them.
  std::vector<Done> Step(std::uint64_t now_ns, std::span<std::byte> pool = {});
  // Of a read or a save.
  std::optional<std::uint64_t> next_due_ns() const;

  void set_save_delay(std::function<std::uint64_t(const service::ComponentKey&)> delay_ns) {
    save_delay_ns_ = std::move(delay_ns);
  }
  void set_save_fault(std::function<service::SaveResult(const service::ComponentKey&)> fault) {
    save_fault_ = std::move(fault);
  }
  void Save(const service::SaveRequest& request, std::uint64_t now_ns);
  // Saves that are due: their bytes are copied out of the pool now.
  std::vector<Saved> StepSaves(std::uint64_t now_ns, std::span<const std::byte> pool = {});
  std::size_t saves() const { return saves_.size(); }
  std::size_t components() const { return components_.size(); }
  std::size_t reads() const { return reads_.size(); }
  std::uint64_t located() const { return located_; }

 private:
  struct Component {
    service::SourceRecord record;
    std::vector<std::byte> bytes;
  };

  std::map<state::StateKey, Component> components_;
  std::multimap<std::uint64_t, service::LoadRequest> reads_;  // by due time
  std::function<std::uint64_t(const service::ComponentKey&)> delay_ns_;
  std::function<Fault(const service::ComponentKey&)> fault_;
  std::multimap<std::uint64_t, service::SaveRequest> saves_;  // by due time
  std::function<std::uint64_t(const service::ComponentKey&)> save_delay_ns_;
  std::function<service::SaveResult(const service::ComponentKey&)> save_fault_;
  std::uint64_t losses_ = 0;
  mutable std::uint64_t located_ = 0;
};

}  // namespace orbitkv::testing
