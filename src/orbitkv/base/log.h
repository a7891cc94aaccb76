// Structured logs on standard error: time, level, component tag, then the message with key=value pairs.
// Owns: one process-wide spdlog logger, created at first use.
// Threads: any. Blocks: for the write to standard error; never called per block on a hot path.
// Errors: none; a line that cannot be written is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <fmt/core.h>
#include <string_view>
#include <utility>

#include "orbitkv/base/mutex.h"

namespace orbitkv::log {

enum class Level : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };

void SetLevel(Level level);
bool Enabled(Level level);
void Write(Level level, std::string_view component, std::string_view message);

template <typename... Args>
void Debug(std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kDebug)) Write(Level::kDebug, component, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Info(std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kInfo)) Write(Level::kInfo, component, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Warning(std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kWarning)) Write(Level::kWarning, component, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void Error(std::string_view component, fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(Level::kError)) Write(Level::kError, component, fmt::format(format, std::forward<Args>(args)...));
}

// Says whether a repeated line may be written now: at most one per interval. suppressed() is the number of lines that
// were held back since the last one that was allowed.
class RateLimit {
 public:
  explicit RateLimit(std::chrono::milliseconds interval) : interval_(interval) {}
  bool Allow(std::chrono::steady_clock::time_point now) ORBITKV_EXCLUDES(mutex_);
  std::uint64_t suppressed() ORBITKV_EXCLUDES(mutex_);

 private:
  const std::chrono::milliseconds interval_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point next_ ORBITKV_GUARDED_BY(mutex_){};
  std::uint64_t held_ ORBITKV_GUARDED_BY(mutex_) = 0;
  std::uint64_t suppressed_ ORBITKV_GUARDED_BY(mutex_) = 0;
};

}  // namespace orbitkv::log
