#include "proto/scalar_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/units.h"
#include "proto/json_text.h"
#include "proto/nearest.h"
#include "proto/schema.h"

namespace headrace::proto {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

/// 2^63: the first floating-point value beyond int64.
constexpr double kInt64End = 9223372036854775808.0;

/// What a value is read for: a key, or an element of its list, which has a path of its own.
struct Place {
  const FieldDescriptor& field;
  const std::string& path;
  bool is_element = false;

  /// Ends a list of what is accepted.
  std::string_view or_auto() const {
    return !is_element && auto_text(field) ? ", or \"auto\"" : "";
  }
  std::string expected() const { return is_element ? element_text(field) : value_text(field); }
};

bool looks_like_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// What to do about a value of the wrong type, where that is obvious.
std::string hint_for(const json& value, const Place& place) {
  const bool wants_bool = place.field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "auto") {
      return auto_text(place.field) ? "; only the whole list can be \"auto\""
                                    : "; this key has no \"auto\"";
    }
    const bool is_bool = text == "true" || text == "false" || text == "True" || text == "False";
    if ((wants_bool && is_bool) || (!wants_bool && looks_like_number(text))) {
      return "; remove the quotes";
    }
  }
  if (wants_bool && value.is_number_integer() && (value == 0 || value == 1)) {
    return fmt::format("; write {}", value == 1 ? "true" : "false");
  }
  return "";
}

[[noreturn]] void fail_type(const json& value, const Place& place) {
  throw InputError(fmt::format("{}: expected {}, got {}{}", place.path, place.expected(),
                               describe(value), hint_for(value, place)));
}

void check_range(double number, const std::string& shown, const Place& place) {
  const KeyRule& rule = rule_of(place.field);
  if (!in_range(rule, number)) {
    const std::string_view unit = unit_text(rule.unit());
    throw InputError(fmt::format("{}: {} is out of range; the value must be {}{}{}{}", place.path,
                                 shown, range_text(rule), unit.empty() ? "" : ", in ", unit,
                                 place.or_auto()));
  }
}

int64_t size_from(const std::string& text, const Place& place) {
  try {
    return parse_bytes(text, place.path).count();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}{}", error.what(), place.or_auto()));
  }
}

int64_t integer_from(const json& value, const Place& place) {
  if (rule_of(place.field).size_text() && value.is_string()) {
    return size_from(value.get_ref<const std::string&>(), place);
  }
  if (!value.is_number()) {
    fail_type(value, place);
  }
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) != number) {
      fail_type(value, place);
    }
    if (number >= kInt64End || number < -kInt64End) {
      throw InputError(fmt::format("{}: {} does not fit in 64 bits", place.path, value.dump()));
    }
    return static_cast<int64_t>(number);
  }
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw InputError(fmt::format("{}: {} does not fit in 64 bits", place.path, value.dump()));
  }
  return value.get<int64_t>();
}

void read_integer(const json& value, const Place& place, Message& block) {
  const FieldDescriptor& field = place.field;
  const int64_t number = integer_from(value, place);
  check_range(static_cast<double>(number), value.is_string() ? describe(value) : value.dump(),
              place);
  const Reflection& fields = *block.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    fields.SetInt64(&block, &field, number);
    return;
  }
  if (number > std::numeric_limits<int32_t>::max() ||
      number < std::numeric_limits<int32_t>::min()) {
    throw InputError(fmt::format("{}: {} does not fit in 32 bits", place.path, number));
  }
  fields.SetInt32(&block, &field, static_cast<int32_t>(number));
}

void read_double(const json& value, const Place& place, Message& block) {
  const FieldDescriptor& field = place.field;
  if (!value.is_number()) {
    fail_type(value, place);
  }
  const auto number = value.get<double>();
  if (!std::isfinite(number)) {
    throw InputError(fmt::format("{}: the number is too large", place.path));
  }
  check_range(number, value.dump(), place);
  if (field.is_repeated()) {
    block.GetReflection()->AddDouble(&block, &field, number);
  } else {
    block.GetReflection()->SetDouble(&block, &field, number);
  }
}

void read_enum(const json& value, const Place& place, Message& block) {
  const FieldDescriptor& field = place.field;
  if (!value.is_string()) {
    fail_type(value, place);
  }
  const auto& text = value.get_ref<const std::string&>();
  const EnumValueDescriptor* found = find_value(*field.enum_type(), text);
  if (found == nullptr) {
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(field.enum_type()->value_count()));
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      names.push_back(field.enum_type()->value(i)->name());
    }
    const auto guess = nearest(text, names);
    throw InputError(fmt::format("{}: expected {}, got {}{}", place.path, place.expected(),
                                 describe(value),
                                 guess ? fmt::format("; did you mean \"{}\"?", *guess) : ""));
  }
  if (!refusal_of(*found).empty()) {
    throw InputError(
        fmt::format("{}: {} is not supported: {}", place.path, found->name(), refusal_of(*found)));
  }
  block.GetReflection()->SetEnum(&block, &field, found);
}

void read_text(const json& value, const Place& place, Message& block) {
  const FieldDescriptor& field = place.field;
  if (!value.is_string()) {
    fail_type(value, place);
  }
  const auto& text = value.get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) {
    throw InputError(fmt::format("{}: the text holds a zero character", place.path));
  }
  if (field.is_repeated()) {
    block.GetReflection()->AddString(&block, &field, text);
  } else {
    block.GetReflection()->SetString(&block, &field, text);
  }
}

void read_at(const json& value, const Place& place, Message& block) {
  const FieldDescriptor& field = place.field;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) {
        fail_type(value, place);
      }
      block.GetReflection()->SetBool(&block, &field, value.get<bool>());
      return;
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      read_integer(value, place, block);
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      read_double(value, place, block);
      return;
    case FieldDescriptor::CPPTYPE_ENUM:
      read_enum(value, place, block);
      return;
    case FieldDescriptor::CPPTYPE_STRING:
      read_text(value, place, block);
      return;
    default:
      throw InternalError(fmt::format("{}: the schema has a type that is not read", place.path));
  }
}

}  // namespace

void read_scalar(const json& value, const FieldDescriptor& field, const std::string& path,
                 Message& block) {
  read_at(value, {field, path}, block);
}

void read_list(const json& value, const FieldDescriptor& field, const std::string& path,
               Message& block) {
  const KeyRule& rule = rule_of(field);
  if (!value.is_array()) {
    if (!rule.single_value()) {
      fail_type(value, {field, path});
    }
    read_scalar(value, field, path, block);
    return;
  }
  for (size_t i = 0; i < value.size(); ++i) {
    read_at(value[i], {field, fmt::format("{}[{}]", path, i), /*is_element=*/true}, block);
  }
  if (rule.has_length() && value.size() != static_cast<size_t>(rule.length())) {
    throw InputError(
        fmt::format("{}: expected {}, got {} of them", path, value_text(field), value.size()));
  }
}

}  // namespace headrace::proto
