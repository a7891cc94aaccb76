#include "orbitkv/base/log.h"

#include <atomic>
#include <memory>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace orbitkv::log {
namespace {

std::atomic<Level> g_level{Level::kInfo};

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
    case Level::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  // Never destroyed: threads of other static objects may still log while the process exits.
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("orbitkv", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::debug);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

}  // namespace

void SetLevel(Level level) { g_level.store(level, std::memory_order_relaxed); }

bool Enabled(Level level) { return level >= g_level.load(std::memory_order_relaxed) && level != Level::kOff; }

void Write(Level level, std::string_view component, std::string_view message) {
  Logger().log(ToSpdlog(level), "[{}] {}", component, message);
}

bool RateLimit::Allow(std::chrono::steady_clock::time_point now) {
  MutexLock lock(mutex_);
  if (now < next_) {
    ++held_;
    return false;
  }
  next_ = now + interval_;
  suppressed_ = held_;
  held_ = 0;
  return true;
}

std::uint64_t RateLimit::suppressed() {
  MutexLock lock(mutex_);
  return suppressed_;
}

}  // namespace orbitkv::log
