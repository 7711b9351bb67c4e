#pragma once

#include <google/protobuf/descriptor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/options.pb.h"

// What the options in the .proto files say about the keys of ds_config.json, by reflection. Pure
// functions over descriptors, which live as long as the process.

namespace headrace::proto {

/// Whether the field is a key of the configuration; others are filled by the parser.
bool is_key(const google::protobuf::FieldDescriptor& field);
const KeyRule& rule_of(const google::protobuf::FieldDescriptor& field);
const BlockRule& rule_of(const google::protobuf::Descriptor& block);
/// Why the value is refused; empty: it is not.
const std::string& refusal_of(const google::protobuf::EnumValueDescriptor& value);

enum class NameKind { current, alias, old };
struct KeyMatch {
  const google::protobuf::FieldDescriptor* field = nullptr;
  NameKind kind = NameKind::current;
};
/// The key that `name` means in `block`, under any of its names.
std::optional<KeyMatch> find_key(const google::protobuf::Descriptor& block, std::string_view name);
/// The key at a path of current names, such as "fp16.enabled"; null: there is none.
const google::protobuf::FieldDescriptor* key_at(const google::protobuf::Descriptor& block,
                                                std::string_view path);
/// The keys of a block in the order of the schema, with all their names where asked for.
std::vector<std::string> key_names(const google::protobuf::Descriptor& block, bool all_names);
/// The value of an enumeration that the text means, whatever its case; null: none.
const google::protobuf::EnumValueDescriptor* find_value(
    const google::protobuf::EnumDescriptor& values, std::string_view text);

/// Calls `visit` with path and field for every key below `block`, depth first.
using KeyVisitor =
    std::function<void(const std::string& path, const google::protobuf::FieldDescriptor& field)>;
void for_each_key(const google::protobuf::Descriptor& block, const std::string& path,
                  const KeyVisitor& visit);

/// "an integer", "one of none, cpu, nvme", "a list of 2 numbers".
std::string type_text(const google::protobuf::FieldDescriptor& field);
/// What a value may be: its type, or "auto" where the key takes it.
std::string value_text(const google::protobuf::FieldDescriptor& field);
/// What an element of a list may be; of another key, its type.
std::string element_text(const google::protobuf::FieldDescriptor& field);
/// The default as JSON would have it; "none" where there is none.
std::string default_text(const google::protobuf::FieldDescriptor& field);
/// Whether a number, which must be finite, is within the key's range.
bool in_range(const KeyRule& rule, double number);
/// "at least 1", "from 0 to 3", "above 0"; empty: any number.
std::string range_text(const KeyRule& rule);
/// "bytes", "elements", ...; empty: none.
std::string_view unit_text(Unit unit);
/// What "auto" becomes; nothing where it is refused.
std::optional<std::string> auto_text(const google::protobuf::FieldDescriptor& field);

}  // namespace headrace::proto
