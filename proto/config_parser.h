#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/ds_config.pb.h"
#include "proto/problems.h"

namespace headrace::proto {

/// A configuration as written: only what the file says is set.
struct ParsedConfig {
  DsConfig config;
  /// Old names and keys without effect, one each, in a fixed order.
  std::vector<Note> notes;
};

/// Reads the text of a ds_config.json (comments allowed) by the schema in ds_config.proto. Throws
/// one InputError that lists every problem: unknown keys with the nearest known one, wrong types,
/// values out of range, what is not supported. `source` is the file's name in messages.
ParsedConfig parse_config(std::string_view text, const std::string& source);

/// parse_config on a file's content; IoError when it cannot be read.
ParsedConfig load_config(const std::string& path);

/// Whether the key at `path` ("fp16.enabled") was given as "auto".
bool is_automatic(const DsConfig& config, std::string_view path);

}  // namespace headrace::proto
