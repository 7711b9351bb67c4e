#include "base/check.h"

namespace headrace::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw InternalError(
      fmt::format("internal error: {} (check `{}` failed at {}:{}); please report it", message,
                  condition, file, line));
}

}  // namespace headrace::detail
