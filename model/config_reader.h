#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace headrace::model {

/// Typed, range-checked access to the keys of one JSON object of a config.json. Every failure is an
/// InputError that names the file, the key and what is accepted. A null value counts as absent
/// where a default is given.
class ConfigReader {
 public:
  /// `prefix` comes before key names in messages ("rope_scaling."). `object` must outlive the
  /// reader.
  ConfigReader(const nlohmann::json& object, std::string origin, std::string prefix = {})
      : object_(&object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

  /// The value, or nullptr where the key is absent or null.
  const nlohmann::json* find(const std::string& key) const;
  /// Whether the key is written, be it as null.
  bool has(const std::string& key) const { return object_->contains(key); }

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  int64_t integer_or(const std::string& key, int64_t low, int64_t high, int64_t absent) const;
  std::optional<int64_t> optional_integer(const std::string& key, int64_t low, int64_t high) const;
  /// A finite number in (above, high].
  double number(const std::string& key, double above, double high) const;
  double number_or(const std::string& key, double above, double high, double absent) const;
  bool boolean_or(const std::string& key, bool absent) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& absent) const;
  /// A reader of a nested object; nullopt where absent or null.
  std::optional<ConfigReader> object(const std::string& key) const;

  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

 private:
  const nlohmann::json& required(const std::string& key) const;

  const nlohmann::json* object_;
  std::string origin_;
  std::string prefix_;
};

}  // namespace headrace::model
