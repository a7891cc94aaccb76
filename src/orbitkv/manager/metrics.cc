#include "orbitkv/manager/metrics.h"

#include <algorithm>

#include "orbitkv/base/check.h"

namespace orbitkv::manager {

void MetricSink::Add(MetricSample sample) {
  ORBITKV_CHECK(sample.name.starts_with("orbitkv_"));
  ORBITKV_CHECK(sample.name.ends_with("_total") == sample.is_counter);
  ORBITKV_CHECK(!sample.help.empty());
  ORBITKV_CHECK(std::ranges::none_of(
      samples_, [&](const MetricSample& other) { return other.name == sample.name && other.labels == sample.labels; }));
  samples_.push_back(std::move(sample));
}

void MetricSink::Counter(std::string name, std::string help, double value, Labels labels) {
  Add({std::move(name), std::move(help), std::move(labels), value, true});
}

void MetricSink::Gauge(std::string name, std::string help, double value, Labels labels) {
  Add({std::move(name), std::move(help), std::move(labels), value, false});
}

std::vector<MetricSample> Metrics::Collect() const {
  MetricSink sink;
  for (const Source& source : sources_) source(sink);
  return std::move(sink.samples_);
}

}  // namespace orbitkv::manager
