#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace headrace::tools {

/// Progress of a piece of long work on stderr: a bar with the time left on a terminal, a plain line
/// every few seconds elsewhere. Not thread-safe.
class Progress {
 public:
  Progress(std::string title, int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Ends the line.
  ~Progress();

  /// `done` counts up to `total`; `note` is shown behind the bar.
  void update(int64_t done, const std::string& note = "");
  /// Clears the bar so that another line can be printed above it.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(const std::string& note);
  std::string time_left() const;

  std::string title_;
  int64_t total_;
  int64_t done_ = 0;
  bool is_terminal_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace headrace::tools
