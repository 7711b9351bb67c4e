#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/seconds.h"
#include "base/units.h"

namespace headrace::tools {

namespace {

constexpr int kBarColumns = 30;
constexpr double kTerminalInterval = 0.1;
constexpr double kPlainInterval = 5;

}  // namespace

Progress::Progress(std::string title, int64_t total)
    : title_(std::move(title)),
      total_(std::max<int64_t>(total, 1)),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (is_terminal_ && drawn_) {
    fmt::print(stderr, "\n");
  }
}

void Progress::update(int64_t done, const std::string& note) {
  done_ = std::clamp<int64_t>(done, 0, total_);
  const auto now = Clock::now();
  const double since = seconds_between(last_, now);
  const bool finished = done_ == total_;
  if (!finished && since < (is_terminal_ ? kTerminalInterval : kPlainInterval)) {
    return;
  }
  last_ = now;
  draw(note);
}

void Progress::clear() {
  if (is_terminal_ && drawn_) {
    fmt::print(stderr, "\r\033[K");
    drawn_ = false;
  }
}

std::string Progress::time_left() const {
  const double elapsed = seconds_since(start_);
  if (done_ == total_) {
    return fmt::format("took {}", format_duration(elapsed));
  }
  if (done_ == 0) {
    return "";
  }
  const double left = elapsed * static_cast<double>(total_ - done_) / static_cast<double>(done_);
  return fmt::format("{} left", format_duration(left));
}

void Progress::draw(const std::string& note) {
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  if (!is_terminal_) {
    fmt::print(stderr, "{}: {:3.0f} %  {}  {}\n", title_, share * 100, time_left(), note);
    return;
  }
  const int full = static_cast<int>(share * kBarColumns);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} %  {}  {}", title_,
             std::string(static_cast<size_t>(full), '#'),
             std::string(static_cast<size_t>(kBarColumns - full), '.'), share * 100, time_left(),
             note);
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace headrace::tools
