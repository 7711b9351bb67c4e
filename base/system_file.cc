#include "base/system_file.h"

#include <charconv>
#include <fstream>

namespace headrace {

namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) {
    return "";
  }
  return std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

}  // namespace

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? trimmed(line) : "";
}

std::optional<std::string> field_of(const std::string& path, std::string_view key) {
  constexpr std::string_view kSeparators = " \t:";
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) {
      continue;
    }
    const std::string_view rest = std::string_view(line).substr(key.size());
    if (rest.empty() || kSeparators.find(rest.front()) == std::string_view::npos) {
      continue;
    }
    const auto begin = rest.find_first_not_of(kSeparators);
    return begin == std::string_view::npos ? "" : trimmed(rest.substr(begin));
  }
  return std::nullopt;
}

std::optional<int64_t> number_in(std::string_view text) {
  const auto begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<int64_t> number_of(const std::string& path) {
  return number_in(first_line_of(path));
}

std::optional<int64_t> number_of(const std::string& path, std::string_view key) {
  const auto text = field_of(path, key);
  return text ? number_in(*text) : std::nullopt;
}

}  // namespace headrace
