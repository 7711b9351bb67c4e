#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace headrace::proto {

/// Something the user should know about the configuration that is not an error.
struct Note {
  LogLevel level = LogLevel::info;
  std::string text;
};

/// Collects what is wrong with a configuration so that all of it is reported at once.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    texts_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool empty() const { return texts_.empty(); }
  /// There is no point in looking for more.
  bool full() const { return texts_.size() >= kMost; }
  /// Throws an InputError that lists the problems found in `source`, if any.
  void throw_if_any(const std::string& source) const;

 private:
  static constexpr size_t kMost = 25;
  std::vector<std::string> texts_;
};

}  // namespace headrace::proto
