#include "base/utc.h"

#include <array>

namespace headrace {

std::string utc_text(std::time_t unix_seconds, const char* format) {
  std::tm parts{};
  if (::gmtime_r(&unix_seconds, &parts) == nullptr) {
    return "";
  }
  std::array<char, 128> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

}  // namespace headrace
