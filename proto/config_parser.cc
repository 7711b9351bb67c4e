#include "proto/config_parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "base/error.h"
#include "proto/json_text.h"
#include "proto/nearest.h"
#include "proto/scalar_reader.h"
#include "proto/schema.h"

namespace headrace::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

constexpr size_t kFewKeys = 12;

std::string join_path(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

/// Blocks of the whole schema that have a key of this name.
std::vector<std::string> blocks_with(std::string_view name) {
  std::vector<std::string> paths;
  for_each_key(*DsConfig::descriptor(), "", [&](const std::string& path, const auto& field) {
    const Descriptor* inner = field.message_type();
    if (inner != nullptr && find_key(*inner, name)) {
      paths.push_back(path);
    }
  });
  if (find_key(*DsConfig::descriptor(), name)) {
    paths.emplace_back("the top level");
  }
  return paths;
}

bool equals_default(const Message& block, const FieldDescriptor& field) {
  const auto& fields = *block.GetReflection();
  if (field.message_type() != nullptr || field.is_repeated() || !field.has_default_value()) {
    return false;
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return fields.GetBool(block, &field) == field.default_value_bool();
    case FieldDescriptor::CPPTYPE_INT32:
      return fields.GetInt32(block, &field) == field.default_value_int32();
    case FieldDescriptor::CPPTYPE_INT64:
      return fields.GetInt64(block, &field) == field.default_value_int64();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fields.GetDouble(block, &field) == field.default_value_double();
    case FieldDescriptor::CPPTYPE_ENUM:
      return fields.GetEnumValue(block, &field) == field.default_value_enum()->number();
    default:
      return fields.GetString(block, &field) == field.default_value_string();
  }
}

/// Whether a block switches itself off by its key `enabled`.
bool is_switched_off(const Message& block) {
  const FieldDescriptor* enabled = block.GetDescriptor()->FindFieldByName("enabled");
  return enabled != nullptr && enabled->cpp_type() == FieldDescriptor::CPPTYPE_BOOL &&
         !block.GetReflection()->GetBool(block, enabled);
}

/// Walks a JSON tree and the schema side by side. No key is named here: everything follows from the
/// options in the .proto files.
class ConfigReader {
 public:
  explicit ConfigReader(DsConfig& config) : config_(config) {}

  void read_block(const json& object, Message& block, const std::string& path);

  const Problems& problems() const { return problems_; }
  std::vector<Note> take_notes() { return std::move(notes_); }

 private:
  json without_switches(const json& object, const Descriptor& block, const std::string& path);
  void read_key(const std::string& name, const json& value, Message& block,
                const std::string& path);
  void read_value(const json& value, const FieldDescriptor& field, Message& block,
                  const std::string& path);
  void read_inner_block(const json& value, const FieldDescriptor& field, Message& block,
                        const std::string& path);
  void apply_effect(const FieldDescriptor& field, const Message& block, const std::string& path);
  void check_required(const Message& block, const std::string& path);
  void check_parameters(const Message& block, const std::string& path);
  void report_unknown(const std::string& name, const Descriptor& block, const std::string& path);

  template <class... Args>
  void note(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    notes_.push_back({level, fmt::format(format, std::forward<Args>(args)...)});
  }

  DsConfig& config_;
  Problems problems_;
  std::vector<Note> notes_;
  std::set<std::string> seen_;  // paths, under their current names
};

void ConfigReader::read_block(const json& object, Message& block, const std::string& path) {
  const json expanded = without_switches(object, *block.GetDescriptor(), path);
  for (const auto& [name, value] : expanded.items()) {
    if (problems_.full()) {
      return;
    }
    read_key(name, value, block, path);
  }
  check_required(block, path);
  check_parameters(block, path);
}

/// Replaces former switches ("cpu_offload": true) by what they mean.
json ConfigReader::without_switches(const json& object, const Descriptor& block,
                                    const std::string& path) {
  json result = object;
  for (int i = 0; i < block.field_count(); ++i) {
    const FieldDescriptor& field = *block.field(i);
    const auto given = result.find(field.name());
    if (!rule_of(field).has_switch_for() || given == result.end() || !given->is_boolean()) {
      continue;  // a value of another type is reported when the key is read
    }
    const bool on = given->get<bool>();
    const std::string switch_path = join_path(path, field.name());
    const std::string& meaning = rule_of(field).switch_for();
    result.erase(given);
    note(LogLevel::warning, "{} is an old key, read as {}; write that instead", switch_path,
         on ? meaning : "nothing, because it is false");
    if (!on) {
      continue;
    }
    const json replacement = json::parse(meaning);
    for (const auto& [name, value] : replacement.items()) {
      if (result.contains(name)) {
        problems_.add("{}: given together with {}, which replaces it; delete {}", switch_path,
                      join_path(path, name), switch_path);
      } else {
        result[name] = value;
      }
    }
  }
  return result;
}

void ConfigReader::read_key(const std::string& name, const json& value, Message& block,
                            const std::string& path) {
  const auto match = find_key(*block.GetDescriptor(), name);
  if (!match) {
    if (!rule_of(*block.GetDescriptor()).open()) {
      report_unknown(name, *block.GetDescriptor(), path);
    }
    return;
  }
  const FieldDescriptor& field = *match->field;
  const std::string field_path = join_path(path, field.name());
  if (match->kind == NameKind::old) {
    note(LogLevel::warning, "{} is an old name, read as {}", join_path(path, name), field_path);
  }
  if (!seen_.insert(field_path).second) {
    problems_.add("{}: given twice, under two of its names; delete one", field_path);
    return;
  }
  if (value.is_null()) {
    return;  // the same as not given
  }
  try {
    read_value(value, field, block, field_path);
  } catch (const InputError& error) {
    problems_.add("{}{}", error.what(),
                  match->kind == NameKind::current ? "" : " (written as " + in_quotes(name) + ")");
  }
}

void ConfigReader::read_value(const json& value, const FieldDescriptor& field, Message& block,
                              const std::string& path) {
  if (value == "auto" && auto_text(field)) {
    config_.add_automatic(path);
    return;
  }
  if (field.message_type() != nullptr) {
    read_inner_block(value, field, block, path);
    return;
  }
  if (field.is_repeated()) {
    read_list(value, field, path, block);
  } else {
    read_scalar(value, field, path, block);
  }
  apply_effect(field, block, path);
}

void ConfigReader::read_inner_block(const json& value, const FieldDescriptor& field, Message& block,
                                    const std::string& path) {
  const KeyRule& rule = rule_of(field);
  if (value.is_boolean() && rule.has_when_true()) {
    const bool on = value.get<bool>();
    note(LogLevel::warning, "{}: {} is the former way to write {}", path, on,
         on ? rule.when_true() : "an absent block");
    if (on) {
      read_block(json::parse(rule.when_true()),
                 *block.GetReflection()->MutableMessage(&block, &field), path);
    }
    return;
  }
  if (!value.is_object()) {
    throw InputError(
        fmt::format("{}: expected {}, got {}", path, value_text(field), describe(value)));
  }
  if (rule.effect() == UNSUPPORTED && value.empty()) {
    return;
  }
  Message& inner = *block.GetReflection()->MutableMessage(&block, &field);
  if (rule.effect() != UNSUPPORTED) {
    read_block(value, inner, path);
  }
  apply_effect(field, block, path);
}

void ConfigReader::apply_effect(const FieldDescriptor& field, const Message& block,
                                const std::string& path) {
  const KeyRule& rule = rule_of(field);
  if (rule.effect() == UNSUPPORTED && !equals_default(block, field)) {
    problems_.add("{}: not supported: {}", path, rule.reason());
  }
  if (rule.effect() == NO_EFFECT) {
    if (field.message_type() != nullptr &&
        is_switched_off(block.GetReflection()->GetMessage(block, &field))) {
      return;
    }
    note(LogLevel::info, "{} has no effect here: {}", path, rule.reason());
  }
}

void ConfigReader::check_required(const Message& block, const std::string& path) {
  const Descriptor& descriptor = *block.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string field_path = join_path(path, field.name());
    if (rule_of(field).required() && !seen_.contains(field_path)) {
      problems_.add("{}: missing; {} needs it: {}", field_path, path, value_text(field));
    }
  }
}

/// Parameters that exist only for some values of `type` beside them.
void ConfigReader::check_parameters(const Message& block, const std::string& path) {
  const FieldDescriptor* type = block.GetDescriptor()->FindFieldByName("type");
  const FieldDescriptor* params = block.GetDescriptor()->FindFieldByName("params");
  if (type == nullptr || params == nullptr || !block.GetReflection()->HasField(block, type) ||
      !block.GetReflection()->HasField(block, params)) {
    return;
  }
  const std::string& chosen = block.GetReflection()->GetEnum(block, type)->name();
  const std::string params_path = join_path(path, params->name());
  for (int i = 0; i < params->message_type()->field_count(); ++i) {
    const FieldDescriptor& field = *params->message_type()->field(i);
    const auto& types = rule_of(field).only_for();
    const std::string field_path = join_path(params_path, field.name());
    if (!types.empty() && seen_.contains(field_path) &&
        std::find(types.begin(), types.end(), chosen) == types.end()) {
      problems_.add("{}: {} has no such parameter; it belongs to {}", field_path, chosen,
                    fmt::join(types, ", "));
    }
  }
}

void ConfigReader::report_unknown(const std::string& name, const Descriptor& block,
                                  const std::string& path) {
  std::string help;
  const std::vector<std::string> elsewhere = blocks_with(name);
  if (const auto guess = nearest(name, key_names(block, /*all_names=*/true))) {
    const std::string& current = find_key(block, *guess)->field->name();
    help += fmt::format("; did you mean \"{}\"?", current);
  }
  if (!elsewhere.empty() && elsewhere.size() <= 2) {
    help += fmt::format("; {} has a key of this name", fmt::join(elsewhere, " and "));
  }
  const std::vector<std::string> known = key_names(block, /*all_names=*/false);
  if (known.size() <= kFewKeys) {
    help += fmt::format("; known keys: {}", fmt::join(known, ", "));
  }
  problems_.add("{}: unknown key{}", in_quotes(join_path(path, name)), help);
}

}  // namespace

ParsedConfig parse_config(std::string_view text, const std::string& source) {
  const json root = parse_json_text(text, source);
  if (!root.is_object()) {
    throw InputError(fmt::format("{}: expected a block {{...}}, got {}", source, describe(root)));
  }
  ParsedConfig parsed;
  ConfigReader reader(parsed.config);
  reader.read_block(root, parsed.config, "");
  reader.problems().throw_if_any(source);
  parsed.notes = reader.take_notes();
  return parsed;
}

ParsedConfig load_config(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw InputError("cannot open the configuration " + path + ": " + std::strerror(errno) +
                     "; name an existing ds_config.json");
  }
  std::string text(kLongestText + 1, '\0');  // one more, so that parsing sees that it is too long
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) {
    throw IoError("cannot read the configuration", {.path = path, .error_number = errno});
  }
  return parse_config(text, path);
}

bool is_automatic(const DsConfig& config, std::string_view path) {
  const auto& paths = config.automatic();
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

}  // namespace headrace::proto
