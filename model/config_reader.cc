#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace headrace::model {

using nlohmann::json;

void ConfigReader::fail(const std::string& key, const std::string& what) const {
  throw InputError(fmt::format("{}: \"{}{}\" {}", origin_, prefix_, key, what));
}

const json* ConfigReader::find(const std::string& key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const json& ConfigReader::required(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) {
    fail(key, has(key) ? "is null, but a value is needed" : "is missing");
  }
  return *value;
}

int64_t ConfigReader::integer(const std::string& key, int64_t low, int64_t high) const {
  const json& value = required(key);
  const bool is_int64 = value.is_number_integer() &&
                        !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
  if (!is_int64 || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    fail(key, fmt::format("is {}; it must be an integer from {} to {}", value.dump(), low, high));
  }
  return value.get<int64_t>();
}

int64_t ConfigReader::integer_or(const std::string& key, int64_t low, int64_t high,
                                 int64_t absent) const {
  return find(key) == nullptr ? absent : integer(key, low, high);
}

std::optional<int64_t> ConfigReader::optional_integer(const std::string& key, int64_t low,
                                                      int64_t high) const {
  return find(key) == nullptr ? std::nullopt : std::optional(integer(key, low, high));
}

double ConfigReader::number(const std::string& key, double above, double high) const {
  const json& value = required(key);
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!std::isfinite(number) || number <= above || number > high) {
    fail(key, fmt::format("is {}; it must be a number above {} and at most {}", value.dump(), above,
                          high));
  }
  return number;
}

double ConfigReader::number_or(const std::string& key, double above, double high,
                               double absent) const {
  return find(key) == nullptr ? absent : number(key, above, high);
}

bool ConfigReader::boolean_or(const std::string& key, bool absent) const {
  const json* value = find(key);
  if (value == nullptr) {
    return absent;
  }
  if (!value->is_boolean()) {
    fail(key, fmt::format("is {}; it must be true or false", value->dump()));
  }
  return value->get<bool>();
}

std::string ConfigReader::text(const std::string& key) const {
  const json& value = required(key);
  if (!value.is_string()) {
    fail(key, fmt::format("is {}; it must be a string", value.dump()));
  }
  return value.get<std::string>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& absent) const {
  return find(key) == nullptr ? absent : text(key);
}

std::optional<ConfigReader> ConfigReader::object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    fail(key, fmt::format("is {}; it must be an object", value->dump()));
  }
  return ConfigReader(*value, origin_, prefix_ + key + ".");
}

}  // namespace headrace::model
