#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>

namespace headrace {

/// Messages for the user on stderr, thread-safe. `once` variants print a given key only the first
/// time in the process.
enum class LogLevel { debug, info, warning, error };

void set_log_level(LogLevel level);
void log_message(LogLevel level, const std::string& text);
void log_message_once(LogLevel level, const std::string& key, const std::string& text);

/// While it lives, messages go to `take` and not to stderr, from any thread. One at a time.
class LogCapture {
 public:
  using Take = std::function<void(LogLevel level, const std::string& text)>;
  explicit LogCapture(Take take);
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture();
};

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace headrace
