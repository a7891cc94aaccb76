// What happened in one simulated life: every step in order, as a running hash and, when somebody wants to read it, as
// text.
// Owns: its lines. Threads: one. Blocks: no. Units: virtual nanoseconds since the start of the life.
// Invariants: the hash covers every note with its time and numbers; two lives of one seed have the same hash. The first
//             violation is kept, later ones are its consequences.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace orbitkv::sim {

struct Field {
  const char* name;
  std::uint64_t value;
};

class History {
 public:
  // lines: how many of the newest notes are kept as text; 0 keeps none and costs nothing.
  explicit History(std::size_t lines) : keep_(lines) {}

  void SetTime(std::uint64_t now_ns) { now_ns_ = now_ns; }
  void Note(std::string_view what, std::initializer_list<Field> fields = {});
  // A promise was broken.
  void Violation(std::string_view what, std::initializer_list<Field> fields = {});

  std::uint64_t hash() const { return hash_; }
  const std::optional<std::string>& violation() const { return violation_; }
  std::string text() const;

 private:
  void Add(std::uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3ULL; }
  std::string Line(std::string_view what, std::initializer_list<Field> fields) const;

  const std::size_t keep_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
  std::deque<std::string> lines_;
  std::optional<std::string> violation_;
};

}  // namespace orbitkv::sim
