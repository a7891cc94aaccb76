#include "orbitkv/manager/ssd_backing.h"

#include <algorithm>
#include <utility>

#include "orbitkv/manager/store_terms.h"

namespace orbitkv::manager {
namespace {

struct CounterFigure {
  const char* name;
  const char* help;
  std::uint64_t store::LogCounters::* field;
};

constexpr CounterFigure kCounters[] = {
    {"orbitkv_ssd_saves_total", "Components written to the store.", &store::LogCounters::saves},
    {"orbitkv_ssd_cached_bytes_total", "Bytes of components written for the first time.",
     &store::LogCounters::saved_bytes},
    {"orbitkv_ssd_written_bytes_total", "Bytes written to the device; over cached bytes, the wear of a cached byte.",
     &store::LogCounters::written_bytes},
    {"orbitkv_ssd_reinserted_total", "Components written again because they were read.",
     &store::LogCounters::reinserted},
    {"orbitkv_ssd_reinserted_bytes_total", "Bytes of those.", &store::LogCounters::reinserted_bytes},
    {"orbitkv_ssd_saves_no_room_total", "Components not taken: too much waits, or the index is full.",
     &store::LogCounters::saves_no_room},
    {"orbitkv_ssd_saves_failed_total", "Components that could not be written.", &store::LogCounters::saves_failed},
    {"orbitkv_ssd_loads_total", "Components read.", &store::LogCounters::loads},
    {"orbitkv_ssd_loaded_bytes_total", "Bytes of those.", &store::LogCounters::loaded_bytes},
    {"orbitkv_ssd_loads_failed_total", "Components that could not be read, for any reason.",
     &store::LogCounters::loads_failed},
    {"orbitkv_ssd_loads_wrong_total", "Records that did not match their checksum or key.",
     &store::LogCounters::loads_wrong},
    {"orbitkv_ssd_read_errors_total", "Reads that the device failed.", &store::LogCounters::read_errors},
    {"orbitkv_ssd_write_errors_total", "Writes that the device failed.", &store::LogCounters::write_errors},
    {"orbitkv_ssd_slow_total", "Reads and writes that took longer than their deadline.", &store::LogCounters::slow},
    {"orbitkv_ssd_pauses_total", "Times the device was left alone for a while.", &store::LogCounters::pauses},
    {"orbitkv_ssd_evicted_segments_total", "Segments given up for room.", &store::LogCounters::evicted_segments},
    {"orbitkv_ssd_evicted_records_total", "Components given up with them.", &store::LogCounters::evicted_records},
    {"orbitkv_ssd_forgotten_records_total", "Components that could not be read and are not offered again.",
     &store::LogCounters::forgotten_records},
};

}  // namespace

std::expected<void, std::string> SsdBacking::Open(std::uint64_t deadline_ns) {
  std::string problem;
  for (const std::string& path : options_.paths) {
    SsdRunner::Options options;
    options.path = path;
    options.bytes = options_.bytes;
    options.deadline_ns = deadline_ns;
    options.ring = options_.ring;
    options.around = options_.around;
    auto runner = SsdRunner::Open(options);
    if (runner) {
      stores_.push_back(std::move(*runner));
    } else {
      problem = std::move(runner.error());
      break;
    }
  }
  if (problem.empty()) return {};
  stores_.clear();
  return std::unexpected(std::move(problem));
}

std::optional<service::SourceRecord> SsdBacking::Locate(const service::ComponentKey& key) const {
  for (const auto& store : stores_) {
    const auto facts = store->Locate(key);
    if (facts && facts->payload_bytes == key.slot_bytes) return SourceRecordOf(*facts);
  }
  return std::nullopt;
}

bool SsdBacking::Keeps(const service::ComponentKey& key, std::uint64_t checksum) const {
  return std::ranges::any_of(stores_, [&](const auto& store) {
    const auto facts = store->Kept(key);
    return facts && facts->payload_bytes == key.slot_bytes && facts->checksum == checksum;
  });
}

std::uint64_t SsdBacking::losses() const {
  std::uint64_t losses = 0;
  for (const auto& store : stores_) losses += store->losses();
  return losses;
}

Status SsdBacking::Start(int pool_fd, std::uint64_t pool_bytes, Reports reports) {
  ORBITKV_ASSIGN_OR_RETURN(pool_, os::Mapping::Map(pool_fd, pool_bytes, os::Access::kReadWrite));
  reports_ = std::move(reports);
  for (const auto& store : stores_) {
    ORBITKV_TRY(store->Start(pool_.bytes(), [this](const store::LogEnd& end) { Report(end); }));
  }
  return {};
}

void SsdBacking::Stop() {
  for (const auto& store : stores_) store->Stop();
}

void SsdBacking::Report(const store::LogEnd& end) const {
  if (end.load) {
    reports_.loaded(end.id, LoadResultOf(end.result), end.checksum);
  } else {
    reports_.saved(end.id, SaveResultOf(end.result));
  }
}

void SsdBacking::Submit(const service::LoadRequest& request) {
  const store::LoadJob job = LoadJobOf(request);
  for (const auto& store : stores_) {
    if (store->Locate(job.key)) return store->Load(job);
  }
  reports_.loaded(request.id, service::LoadResult::kFailed, 0);
}

void SsdBacking::Save(const service::SaveRequest& request) {
  const store::SaveJob job = SaveJobOf(request);
  const std::size_t first = request.key.hash.Prefix64() % stores_.size();
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    SsdRunner& store = *stores_[(first + i) % stores_.size()];
    if (store.gauges().writable) return store.Save(job);
  }
  reports_.saved(request.id, service::SaveResult::kFailed);
}

void SsdBacking::AddFigures(Metrics& metrics) const {
  metrics.AddSource([this](MetricSink& sink) {
    for (const auto& store : stores_) {
      const MetricSink::Labels labels = {{"path", store->path()}};
      const store::LogCounters counters = store->counters();
      for (const CounterFigure& figure : kCounters) {
        sink.Counter(figure.name, figure.help, static_cast<double>(counters.*(figure.field)), labels);
      }
      const store::StoreGauges gauges = store->gauges();
      sink.Gauge("orbitkv_ssd_bytes", "Size of the store's file, a hard limit.", static_cast<double>(gauges.file_bytes),
                 labels);
      sink.Gauge("orbitkv_ssd_segments", "Segments.", gauges.segments, labels);
      sink.Gauge("orbitkv_ssd_segments_free", "Segments that hold nothing.", gauges.free_segments, labels);
      sink.Gauge("orbitkv_ssd_records", "Components in the store.", gauges.records, labels);
      sink.Gauge("orbitkv_ssd_index_bytes", "Memory of the store's index.", static_cast<double>(gauges.index_bytes),
                 labels);
      sink.Gauge("orbitkv_ssd_readable", "0 while the device is left alone after failed reads.",
                 gauges.readable ? 1 : 0, labels);
      sink.Gauge("orbitkv_ssd_writable", "0 while it is left alone after failed writes.", gauges.writable ? 1 : 0,
                 labels);
      sink.Gauge("orbitkv_ssd_recovery_seconds", "What finding its contents took at start.",
                 static_cast<double>(store->recovery_ns()) / 1e9, labels);
    }
  });
}

}  // namespace orbitkv::manager
