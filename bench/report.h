// The rows of a benchmark run: each figure beside a baseline that was measured interleaved in the same run.
// Owns: the rows. Threads: one. Blocks: no.
// Units: as each row says. Errors: none. Invariant: ratio = value / baseline_value when there is a baseline.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace orbitkv::bench {

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  std::string baseline;  // what baseline_value measures; empty for none
  double baseline_value = 0;
  std::size_t samples = 0;
};

class Report {
 public:
  void Add(Row row);
  // One JSON array: [{name, value, unit, baseline, baseline_value, ratio, samples}].
  std::string ToJson() const;

 private:
  std::vector<Row> rows_;
};

// The value at quantile q (0 to 1) of the samples, which are reordered. 0 for no samples.
double Quantile(std::vector<double>& samples, double q);

}  // namespace orbitkv::bench
