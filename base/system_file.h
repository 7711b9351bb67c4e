#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// The small text files in which a Linux system describes itself, below /proc and /sys. A file that
// is missing or cannot be read says nothing; none of these functions throws for it. Thread-safe.

/// The first line, without blanks around it; empty where there is none.
std::string first_line_of(const std::string& path);

/// The text after `key` and a blank, tab or colon on the first line that begins with it, without
/// blanks around it; nothing where no line does.
std::optional<std::string> field_of(const std::string& path, std::string_view key);

/// The first number in a text, which may have other text around it; nothing where there is none or
/// it does not fit.
std::optional<int64_t> number_in(std::string_view text);

/// The number of a one-line file, of a field.
std::optional<int64_t> number_of(const std::string& path);
std::optional<int64_t> number_of(const std::string& path, std::string_view key);

}  // namespace headrace
