#include "tools/step_range.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace headrace::tools {

namespace {

std::optional<int64_t> parse_step(std::string_view text) {
  int64_t step = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, step);
  return error == std::errc() && rest == end && step > 0 ? std::optional(step) : std::nullopt;
}

}  // namespace

engine::StepRange parse_step_range(const std::string& option, const std::string& text) {
  const std::string_view all = text;
  const size_t dash = all.find('-');
  const auto first = parse_step(all.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_step(all.substr(dash + 1));
  if (!first || !last || *last < *first) {
    throw UsageError(fmt::format(
        "{} {}: expected a step as 4, or the first and the last one as 3-5", option, text));
  }
  return {*first, *last};
}

}  // namespace headrace::tools
