// What lies behind the pool on SSDs: one or several stores, each in a file or on a block device of its own.
//
// A block is kept in one store, chosen by its hash among those that can be written. Blocks are found whichever store
// they are in, so that stores may be added and removed.
//
// Owns: the stores, their threads, its mapping of the pool. Threads: as Backing says; Open by the owner before Start.
// Blocks: Open and Stop, as SsdRunner's. Units: bytes; nanoseconds.
// Errors: Open with one line for people; nothing stays open then.
// Invariant: as Backing says.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "orbitkv/manager/backing.h"
#include "orbitkv/manager/metrics.h"
#include "orbitkv/manager/ssd_runner.h"
#include "orbitkv/os/mapping.h"

namespace orbitkv::manager {

class SsdBacking final : public Backing {
 public:
  struct Options {
    std::vector<std::string> paths;
    std::uint64_t bytes = 0;     // of each file; 0: what is there
    bool ring = true;            // false: threads, whatever the kernel permits
    SsdRunner::Around around{};  // each store's way to its device
  };

  explicit SsdBacking(Options options) : options_(std::move(options)) {}
  ~SsdBacking() override { Stop(); }

  std::expected<void, std::string> Open(std::uint64_t deadline_ns) override;

  std::optional<service::SourceRecord> Locate(const service::ComponentKey& key) const override;
  bool Keeps(const service::ComponentKey& key, std::uint64_t checksum) const override;
  std::uint64_t losses() const override;
  Status Start(int pool_fd, std::uint64_t pool_bytes, Reports reports) override;
  void Stop() override;
  void Submit(const service::LoadRequest& request) override;
  void Save(const service::SaveRequest& request) override;

  void AddFigures(Metrics& metrics) const override;

 private:
  void Report(const store::LogEnd& end) const;

  const Options options_;
  os::Mapping pool_;
  Reports reports_;
  std::vector<std::unique_ptr<SsdRunner>> stores_;
};

}  // namespace orbitkv::manager
