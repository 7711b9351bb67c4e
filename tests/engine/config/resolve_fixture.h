#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/config/resolve.h"
#include "proto/config_parser.h"

namespace headrace::engine {

/// `keys` completed to a file that needs no command line.
inline std::string file_with(const std::string& keys) {
  return "{\"train_batch_size\": 8" + (keys.empty() ? "" : ", " + keys) + "}";
}

inline Resolution resolve_text(const std::string& text, const ResolveContext& context = {}) {
  return resolve(proto::parse_config(text, "c.json").config, context, "c.json");
}

inline Settings settings_of(const std::string& keys, const ResolveContext& context = {}) {
  return resolve_text(file_with(keys), context).settings;
}

/// The message of the InputError that the text causes.
inline std::string problem_of(const std::string& text, const ResolveContext& context = {}) {
  try {
    resolve_text(text, context);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted: " + text;
}

inline std::vector<std::string> texts(const Resolution& resolution) {
  std::vector<std::string> result;
  for (const proto::Note& note : resolution.notes) {
    result.push_back(note.text);
  }
  return result;
}

}  // namespace headrace::engine
