#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace headrace::proto {

/// Longest text accepted, in bytes.
inline constexpr size_t kLongestText = size_t{1} << 20;

/// Parses JSON with // and /* */ comments. `source` is the file's name in messages. Throws
/// InputError with line and column for bad syntax (trailing commas, NaN and Infinity included),
/// with the full path for a key given twice, and for text that is too long or nested too deep.
nlohmann::json parse_json_text(std::string_view text, const std::string& source);

/// `text` in quotes for a message: shortened, control characters escaped.
std::string in_quotes(std::string_view text);

/// A JSON value for a message: "the number 1.5", "the text "abc"", "a list".
std::string describe(const nlohmann::json& value);

}  // namespace headrace::proto
