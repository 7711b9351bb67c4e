#include "proto/config_docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "proto/ds_config.pb.h"
#include "proto/schema.h"

namespace headrace::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr std::string_view kIntroduction =
    R"(# Configuration

<!-- Made from proto/*.proto by tests/proto/config_docs_test.cc (HEADRACE_UPDATE_DOCS=1). -->

Headrace reads the `ds_config.json` files of DeepSpeed. This page lists every key it knows.

- The file is JSON; `//` and `/* */` comments are allowed, trailing commas are not.
- A key that is not on this page is an error, at every level, and so are a wrong type and a value
  out of range. All problems of a file are reported at once.
- Integers may be written as `5e8`. Sizes may be written as `"64MiB"` (binary), `"2GB"` (decimal) or
  as a number of bytes. `null` is the same as leaving the key out.
- `"auto"` is accepted where this page says what it becomes. What each one became is printed.
- "No effect" keys are understood and checked; that they change nothing is said once, with the
  reason given here.
- "Not supported" keys may be present with their default value; anything else is an error.
- Elements are counts of numbers, not bytes.

)";

std::string effect_text(const FieldDescriptor& field) {
  const KeyRule& rule = rule_of(field);
  switch (rule.effect()) {
    case NO_EFFECT:
      return "no effect: " + rule.reason();
    case UNSUPPORTED:
      return "not supported: " + rule.reason();
    default:
      return rule.has_switch_for() ? "old form" : "honored";
  }
}

std::string meaning_text(const FieldDescriptor& field) {
  const KeyRule& rule = rule_of(field);
  std::string text = rule.doc();
  if (const auto automatic = auto_text(field)) {
    text += fmt::format(" \"auto\": {}.", *automatic);
  }
  if (rule.only_for_size() > 0) {
    text += fmt::format(" Only for {}.", fmt::join(rule.only_for(), ", "));
  }
  if (rule.alias_size() > 0) {
    text += fmt::format(" Also `{}`.", fmt::join(rule.alias(), "`, `"));
  }
  if (rule.old_name_size() > 0) {
    text += fmt::format(" Old name: `{}`.", fmt::join(rule.old_name(), "`, `"));
  }
  if (field.enum_type() != nullptr) {
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      const auto& value = *field.enum_type()->value(i);
      if (!refusal_of(value).empty()) {
        text += fmt::format(" `{}` is not supported: {}.", value.name(), refusal_of(value));
      }
    }
  }
  return text;
}

std::string table_row(const FieldDescriptor& field) {
  const KeyRule& rule = rule_of(field);
  const bool is_block = field.message_type() != nullptr;
  return fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", field.name(),
                     is_block ? "block" : type_text(field),
                     is_block || default_text(field) == "none" ? "" : default_text(field),
                     unit_text(rule.unit()), range_text(rule), effect_text(field),
                     meaning_text(field));
}

void add_block(const Descriptor& block, const std::string& path, std::string& text) {
  text += fmt::format("## {}\n\n", path.empty() ? "Top level" : "`" + path + "`");
  if (rule_of(block).open()) {
    text += "Other keys of this block are accepted and not looked at.\n\n";
  }
  if (!key_names(block, false).empty()) {
    text += "| Key | Type | Default | Unit | Range | Effect here | Meaning |\n";
    text += "|---|---|---|---|---|---|---|\n";
  }
  std::vector<const FieldDescriptor*> inner;
  for (int i = 0; i < block.field_count(); ++i) {
    if (is_key(*block.field(i))) {
      text += table_row(*block.field(i));
      if (block.field(i)->message_type() != nullptr) {
        inner.push_back(block.field(i));
      }
    }
  }
  text += "\n";
  for (const FieldDescriptor* field : inner) {
    add_block(*field->message_type(), path.empty() ? field->name() : path + "." + field->name(),
              text);
  }
}

}  // namespace

std::string configuration_document() {
  std::string text(kIntroduction);
  add_block(*DsConfig::descriptor(), "", text);
  text.pop_back();  // the last block's empty line
  return text;
}

}  // namespace headrace::proto
