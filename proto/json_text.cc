#include "proto/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "base/error.h"
#include "proto/problems.h"

namespace headrace::proto {
namespace {

using nlohmann::json;

constexpr size_t kDeepestNesting = 32;
constexpr size_t kLongestQuote = 60;

/// Watches the parser go by: finds duplicate keys, which a parsed tree no longer shows, and stops
/// at unreasonable nesting.
class StructureCheck {
 public:
  explicit StructureCheck(std::string source) : source_(std::move(source)) {}

  void see(json::parse_event_t event, const json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        open();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        levels_.pop_back();
        break;
      case json::parse_event_t::key:
        see_key(value.get_ref<const std::string&>());
        break;
      case json::parse_event_t::value:
        break;
    }
  }
  const Problems& problems() const { return problems_; }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string current;
  };

  void open() {
    if (levels_.size() >= kDeepestNesting) {
      throw InputError(fmt::format("{}: blocks and lists are nested deeper than {} levels", source_,
                                   kDeepestNesting));
    }
    levels_.emplace_back();
  }

  void see_key(const std::string& name) {
    levels_.back().current = name;
    if (levels_.back().keys.insert(name).second || problems_.full()) {
      return;
    }
    std::string path;
    for (const Level& level : levels_) {
      if (!level.current.empty()) {
        path += (path.empty() ? "" : ".") + level.current;
      }
    }
    problems_.add("{}: the key is given twice; delete one", in_quotes(path));
  }

  std::string source_;
  std::vector<Level> levels_;
  Problems problems_;
};

struct Place {
  size_t line = 1;
  size_t column = 1;
};

Place place_of(std::string_view text, size_t offset) {
  Place place;
  for (size_t i = 0; i < std::min(offset, text.size()); ++i) {
    if (text[i] == '\n') {
      ++place.line;
      place.column = 1;
    } else {
      ++place.column;
    }
  }
  return place;
}

/// The last character before `offset` that is not white space; 0 where there is none.
char before(std::string_view text, size_t offset) {
  while (offset > 0) {
    const char c = text[--offset];
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') {
      return c;
    }
  }
  return 0;
}

/// Offset of the word that the parser stumbled over, given where it stopped in it.
size_t word_start(std::string_view text, size_t stop) {
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+';
  };
  while (stop > 0 && in_word(text[stop - 1])) {
    --stop;
  }
  return stop;
}

std::string syntax_problem(std::string_view text, size_t stop, const std::string& reason) {
  const char found = text.empty() || stop >= text.size() ? '\0' : text[stop];
  if ((found == '}' || found == ']') && before(text, stop) == ',') {
    return fmt::format("a comma before '{}': JSON has no trailing commas; delete it", found);
  }
  std::string_view word = text.substr(word_start(text, stop));
  word = word.substr(0, std::min(word.find_first_of(",]} \t\r\n"), word.size()));
  constexpr std::array<std::string_view, 6> kNotNumbers = {"NaN",       "nan",      "Infinity",
                                                           "-Infinity", "infinity", "inf"};
  if (std::find(kNotNumbers.begin(), kNotNumbers.end(), word) != kNotNumbers.end()) {
    return fmt::format("{} is not a number that JSON or a setting can have", word);
  }
  if (word == "True" || word == "False" || word == "None") {
    return fmt::format("{} is Python; JSON has true, false and null", word);
  }
  if (found == '\'') {
    return "JSON needs double quotes";
  }
  return reason;
}

/// The part of the library's message that follows its own position.
std::string reason_of(const json::exception& error) {
  std::string text = error.what();
  for (const std::string_view mark : {" - ", "] "}) {
    const size_t at = text.find(mark);
    if (at != std::string::npos) {
      return text.substr(at + mark.size());
    }
  }
  return text;
}

}  // namespace

json parse_json_text(std::string_view text, const std::string& source) {
  if (text.size() > kLongestText) {
    throw InputError(
        fmt::format("{}: too long for a configuration (at most {} bytes)", source, kLongestText));
  }
  StructureCheck check(source);
  const json::parser_callback_t callback = [&check](int /*depth*/, json::parse_event_t event,
                                                    json& value) {
    check.see(event, value);
    return true;
  };
  try {
    json parsed = json::parse(text, callback, /*allow_exceptions=*/true, /*ignore_comments=*/true);
    check.problems().throw_if_any(source);
    return parsed;
  } catch (const json::parse_error& error) {
    const size_t stop = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
    const Place place = place_of(text, stop);
    throw InputError(fmt::format("{}:{}:{}: {}", source, place.line, place.column,
                                 syntax_problem(text, stop, reason_of(error))));
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: {}", source, reason_of(error)));
  }
}

std::string in_quotes(std::string_view text) {
  size_t length = std::min(text.size(), kLongestQuote);
  // Not in the middle of a UTF-8 sequence.
  while (length < text.size() && length > 0 &&
         (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  std::string result = "\"";
  for (const char c : text.substr(0, length)) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7F) {
      result += fmt::format("\\x{:02x}", code);
    } else {
      result += c;
    }
  }
  return result + (length < text.size() ? "...\"" : "\"");
}

std::string describe(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case json::value_t::string:
      return "the text " + in_quotes(value.get_ref<const std::string&>());
    case json::value_t::array:
      return "a list";
    case json::value_t::object:
      return "a block {...}";
    default:
      return "the number " + value.dump();
  }
}

}  // namespace headrace::proto
