#include "tools/text.h"

#include <fmt/format.h>

namespace headrace::tools {

std::string over_bound(double actual, double bound) {
  return bound > 0 ? fmt::format("{:+.1f} %", 100 * (actual / bound - 1)) : std::string("-");
}

std::string with_bound(Bytes moved, Bytes bound) {
  return fmt::format(
      "{} (bound {}, {})", format_bytes(moved), format_bytes(bound),
      over_bound(static_cast<double>(moved.count()), static_cast<double>(bound.count())));
}

}  // namespace headrace::tools
