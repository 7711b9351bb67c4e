#pragma once

#include <string>

namespace headrace::proto {

/// docs/configuration.md: every key of ds_config.json with type, default, unit, range, effect and
/// meaning, made from the schema.
std::string configuration_document();

}  // namespace headrace::proto
