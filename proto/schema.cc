#include "proto/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace headrace::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::string scalar_type_text(const FieldDescriptor& field, bool plural) {
  if (rule_of(field).size_text()) {
    return plural ? "sizes" : "a size (\"64MiB\", or an integer in bytes)";
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return plural ? "booleans" : "true or false";
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return plural ? "integers" : "an integer";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return plural ? "numbers" : "a number";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a block {...}";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        const EnumValueDescriptor& value = *field.enum_type()->value(i);
        if (refusal_of(value).empty()) {
          names.push_back(value.name());
        }
      }
      return fmt::format("one of {}", fmt::join(names, ", "));
    }
    default:
      return plural ? "texts" : "text";
  }
}

}  // namespace

bool is_key(const FieldDescriptor& field) {
  return field.options().HasExtension(key_rule);
}

const KeyRule& rule_of(const FieldDescriptor& field) {
  return field.options().GetExtension(key_rule);
}

const BlockRule& rule_of(const Descriptor& descriptor) {
  return descriptor.options().GetExtension(block_rule);
}

const std::string& refusal_of(const EnumValueDescriptor& descriptor) {
  return descriptor.options().GetExtension(value_rule).refused();
}

std::optional<KeyMatch> find_key(const Descriptor& block, std::string_view name) {
  for (int i = 0; i < block.field_count(); ++i) {
    const FieldDescriptor& field = *block.field(i);
    if (!is_key(field)) {
      continue;
    }
    const KeyRule& rule = rule_of(field);
    if (field.name() == name) {
      return KeyMatch{&field, NameKind::current};
    }
    if (std::find(rule.alias().begin(), rule.alias().end(), name) != rule.alias().end()) {
      return KeyMatch{&field, NameKind::alias};
    }
    if (std::find(rule.old_name().begin(), rule.old_name().end(), name) != rule.old_name().end()) {
      return KeyMatch{&field, NameKind::old};
    }
  }
  return std::nullopt;
}

const FieldDescriptor* key_at(const Descriptor& block, std::string_view path) {
  const size_t dot = path.find('.');
  const FieldDescriptor* const field = block.FindFieldByName(std::string(path.substr(0, dot)));
  if (field == nullptr || !is_key(*field) || dot == std::string_view::npos) {
    return field != nullptr && is_key(*field) ? field : nullptr;
  }
  return field->message_type() == nullptr ? nullptr
                                          : key_at(*field->message_type(), path.substr(dot + 1));
}

std::vector<std::string> key_names(const Descriptor& block, bool all_names) {
  std::vector<std::string> names;
  for (int i = 0; i < block.field_count(); ++i) {
    const FieldDescriptor& field = *block.field(i);
    if (!is_key(field)) {
      continue;
    }
    names.push_back(field.name());
    if (all_names) {
      const KeyRule& rule = rule_of(field);
      names.insert(names.end(), rule.alias().begin(), rule.alias().end());
      names.insert(names.end(), rule.old_name().begin(), rule.old_name().end());
    }
  }
  return names;
}

const EnumValueDescriptor* find_value(const EnumDescriptor& values, std::string_view text) {
  for (int i = 0; i < values.value_count(); ++i) {
    if (equal_ignoring_case(values.value(i)->name(), text)) {
      return values.value(i);
    }
  }
  return nullptr;
}

void for_each_key(const Descriptor& block, const std::string& path, const KeyVisitor& visit) {
  for (int i = 0; i < block.field_count(); ++i) {
    const FieldDescriptor& field = *block.field(i);
    if (!is_key(field)) {
      continue;
    }
    const std::string field_path = path.empty() ? field.name() : path + "." + field.name();
    visit(field_path, field);
    if (field.message_type() != nullptr) {
      for_each_key(*field.message_type(), field_path, visit);
    }
  }
}

std::string type_text(const FieldDescriptor& field) {
  if (!field.is_repeated()) {
    return scalar_type_text(field, /*plural=*/false);
  }
  const KeyRule& rule = rule_of(field);
  const std::string elements = scalar_type_text(field, /*plural=*/true);
  if (rule.has_length()) {
    return fmt::format("a list of {} {}", rule.length(), elements);
  }
  return fmt::format("{}a list of {}", rule.single_value() ? "text or " : "", elements);
}

std::string value_text(const FieldDescriptor& field) {
  return type_text(field) + (auto_text(field) ? " or \"auto\"" : "");
}

std::string element_text(const FieldDescriptor& field) {
  return scalar_type_text(field, /*plural=*/false);
}

std::string default_text(const FieldDescriptor& field) {
  const KeyRule& rule = rule_of(field);
  if (rule.default_list_size() > 0) {
    return fmt::format("[{}]", fmt::join(rule.default_list(), ", "));
  }
  if (!field.has_default_value()) {
    return "none";
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return fmt::format("{}", field.default_value_int32());
    case FieldDescriptor::CPPTYPE_INT64:
      return fmt::format("{}", field.default_value_int64());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", field.default_value_double());
    case FieldDescriptor::CPPTYPE_ENUM:
      return field.default_value_enum()->name();
    default:
      return fmt::format("\"{}\"", field.default_value_string());
  }
}

bool in_range(const KeyRule& rule, double number) {
  return std::isfinite(number) && (!rule.has_min() || number >= rule.min()) &&
         (!rule.has_above() || number > rule.above()) &&
         (!rule.has_max() || number <= rule.max()) && (!rule.has_below() || number < rule.below());
}

std::string range_text(const KeyRule& rule) {
  std::string low;
  std::string high;
  if (rule.has_min() && rule.has_max()) {
    return fmt::format("from {} to {}", rule.min(), rule.max());
  }
  if (rule.has_min()) {
    low = fmt::format("at least {}", rule.min());
  } else if (rule.has_above()) {
    low = fmt::format("above {}", rule.above());
  }
  if (rule.has_max()) {
    high = fmt::format("at most {}", rule.max());
  } else if (rule.has_below()) {
    high = fmt::format("below {}", rule.below());
  }
  return low.empty() || high.empty() ? low + high : low + ", " + high;
}

std::string_view unit_text(Unit unit) {
  constexpr std::array<std::string_view, Unit_ARRAYSIZE> kNames = {
      "",         "bytes",   "elements", "steps", "sequences",
      "requests", "threads", "ratio",    "ranks", "bytes/s"};
  return kNames[static_cast<size_t>(unit)];
}

std::optional<std::string> auto_text(const FieldDescriptor& field) {
  if (rule_of(field).has_auto_()) {
    return rule_of(field).auto_();
  }
  if (rule_of(*field.containing_type()).auto_is_default() && field.message_type() == nullptr) {
    return "the default";
  }
  return std::nullopt;
}

}  // namespace headrace::proto
