#pragma once

#include <fmt/format.h>

#include "base/error.h"

namespace headrace::detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& message);
}

/// Always-on check of an invariant; throws InternalError with the condition, the place and the
/// formatted values. Arguments must have no side effects. For programming errors only: bad input
/// and failed I/O have their own error types.
#define HR_CHECK(condition, ...)                                                                  \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      ::headrace::detail::check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
    }                                                                                             \
  } while (false)
