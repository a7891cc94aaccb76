#include "orbitkv/testing/sim/history.h"

#include <fmt/format.h>
#include <iterator>

namespace orbitkv::sim {

void History::Note(std::string_view what, std::initializer_list<Field> fields) {
  Add(now_ns_);
  for (const char c : what) Add(static_cast<unsigned char>(c));
  for (const Field& field : fields) Add(field.value);
  if (keep_ == 0) return;
  lines_.push_back(Line(what, fields));
  if (lines_.size() > keep_) lines_.pop_front();
}

void History::Violation(std::string_view what, std::initializer_list<Field> fields) {
  Note(what, fields);
  if (!violation_) violation_ = Line(what, fields);
}

std::string History::Line(std::string_view what, std::initializer_list<Field> fields) const {
  std::string line = fmt::format("{:>14.6f} ms  {}", static_cast<double>(now_ns_) / 1e6, what);
  for (const Field& field : fields) fmt::format_to(std::back_inserter(line), " {}={}", field.name, field.value);
  return line;
}

std::string History::text() const {
  std::string all;
  for (const std::string& line : lines_) {
    all += line;
    all += '\n';
  }
  return all;
}

}  // namespace orbitkv::sim
