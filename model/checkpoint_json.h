#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace headrace::model {

/// Parses text that must be one JSON object: no duplicate names, at most 32 levels deep. Throws
/// InputError naming `origin` (a path) and the position. Json is nlohmann::json or ordered_json.
template <class Json>
Json parse_json_object(const std::string& text, const std::string& origin);

extern template nlohmann::json parse_json_object(const std::string&, const std::string&);
extern template nlohmann::ordered_json parse_json_object(const std::string&, const std::string&);

/// A name from outside, quoted, escaped and cut to a length that fits a message.
std::string quote_name(std::string_view name);

}  // namespace headrace::model
