#include "report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

namespace orbitkv::bench {

void Report::Add(Row row) {
  std::fprintf(stderr, "  %-34s %10.3f %-5s", row.name.c_str(), row.value, row.unit.c_str());
  if (!row.baseline.empty() && row.baseline_value != 0) {
    std::fprintf(stderr, "  %s %.3f, ratio %.3f", row.baseline.c_str(), row.baseline_value,
                 row.value / row.baseline_value);
  }
  std::fprintf(stderr, "  (%zu samples)\n", row.samples);
  rows_.push_back(std::move(row));
}

std::string Report::ToJson() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : rows_) {
    nlohmann::json item = {{"name", row.name}, {"value", row.value}, {"unit", row.unit}, {"samples", row.samples}};
    const bool compared = !row.baseline.empty() && row.baseline_value != 0;
    item["baseline"] = compared ? nlohmann::json(row.baseline) : nlohmann::json();
    item["baseline_value"] = compared ? nlohmann::json(row.baseline_value) : nlohmann::json();
    item["ratio"] = compared ? nlohmann::json(row.value / row.baseline_value) : nlohmann::json();
    rows.push_back(std::move(item));
  }
  return rows.dump(1);
}

double Quantile(std::vector<double>& samples, double q) {
  if (samples.empty()) return 0;
  const auto index = static_cast<std::size_t>(q * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(index), samples.end());
  return samples[index];
}

}  // namespace orbitkv::bench
