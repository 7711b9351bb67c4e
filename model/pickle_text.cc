#include "model/pickle_text.h"

#include <bit>
#include <cstring>
#include <limits>

namespace headrace::model::pickle {

namespace {

/// A number's bytes, lowest first.
template <class Number>
std::string little_endian(Number value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) {
    text += item;
  }
  return text;
}

}  // namespace

std::string none() {
  return "N";
}

std::string boolean(bool value) {
  return value ? "\x88" : "\x89";
}

std::string integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() &&
      value <= std::numeric_limits<int32_t>::max()) {
    return "J" + little_endian(static_cast<int32_t>(value));
  }
  return "\x8a\x08" + little_endian(value);
}

std::string real(double value) {
  const std::string bytes = little_endian(value);
  return "G" + std::string(bytes.rbegin(), bytes.rend());
}

std::string text(const std::string& value) {
  return "X" + little_endian(static_cast<uint32_t>(value.size())) + value;
}

std::string tuple(const std::vector<std::string>& items) {
  return "(" + joined(items) + "t";
}

std::string list(const std::vector<std::string>& items) {
  return "](" + joined(items) + "e";
}

std::string dictionary(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string text = "}(";
  for (const auto& [key, value] : items) {
    text += key + value;
  }
  return text + "u";
}

std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string object(const std::string& module, const std::string& name,
                   const std::string& attributes) {
  return global(module, name) + ")\x81" + attributes + "b";
}

std::string document(const std::string& value) {
  return "\x80\x02" + value + ".";
}

}  // namespace headrace::model::pickle
