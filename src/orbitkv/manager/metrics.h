// Every counter, gauge and budget of a Manager in one registry, named in the Prometheus conventions.
//
// The parts of the Manager keep plain numbers; each registers a source that reports them, and Collect asks all sources
// in the order of registration.
//
// Owns: the sources; what they refer to outlives the registry. Threads: one (the dispatcher). Blocks: no.
// Invariants: names begin with orbitkv_; a counter's name ends in _total, a gauge's does not; one sample per name and
//             label set. Breaking one is our own error and ends the process.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace orbitkv::manager {

struct MetricSample {
  std::string name;
  std::string help;
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
  bool is_counter = false;
};

class MetricSink {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  void Counter(std::string name, std::string help, double value, Labels labels = {});
  void Gauge(std::string name, std::string help, double value, Labels labels = {});

 private:
  friend class Metrics;
  void Add(MetricSample sample);
  std::vector<MetricSample> samples_;
};

class Metrics {
 public:
  using Source = std::function<void(MetricSink&)>;
  void AddSource(Source source) { sources_.push_back(std::move(source)); }
  std::vector<MetricSample> Collect() const;

 private:
  std::vector<Source> sources_;
};

}  // namespace orbitkv::manager
