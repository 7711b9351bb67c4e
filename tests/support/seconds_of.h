#pragma once

#include <functional>

#include "base/seconds.h"

namespace headrace::test {

/// How long the call takes.
inline double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return seconds_between(begin, std::chrono::steady_clock::now());
}

}  // namespace headrace::test
