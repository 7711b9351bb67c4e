#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <set>

namespace headrace {

namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> kLogger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "headrace", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%l%$: %v");
    return made;
  }();
  return *kLogger;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

/// Where messages go instead of stderr; empty: they go there.
struct Capture {
  std::mutex mutex;
  LogCapture::Take take;
};
Capture& capture() {
  static Capture the_capture;
  return the_capture;
}

}  // namespace

LogCapture::LogCapture(Take take) {
  const std::lock_guard lock(capture().mutex);
  capture().take = std::move(take);
}

LogCapture::~LogCapture() {
  const std::lock_guard lock(capture().mutex);
  capture().take = {};
}

void set_log_level(LogLevel level) {
  logger().set_level(spdlog_level(level));
}

void log_message(LogLevel level, const std::string& text) {
  {
    const std::lock_guard lock(capture().mutex);
    if (capture().take && logger().should_log(spdlog_level(level))) {
      capture().take(level, text);
      return;
    }
  }
  logger().log(spdlog_level(level), text);
}

void log_message_once(LogLevel level, const std::string& key, const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  {
    const std::lock_guard lock(mutex);
    if (!seen.insert(key).second) {
      return;
    }
  }
  log_message(level, text);
}

}  // namespace headrace
