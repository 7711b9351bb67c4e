#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"

namespace headrace::model {

/// The shapes of configs/models, which are built into the program: config.json files of published
/// models, and of two made-up ones. configs/models/README.md says where they come from.
std::vector<std::string> shape_names();

/// The shape of that name; UsageError listing the names otherwise.
ModelConfig shape_config(const std::string& name);

/// What `--model` names: a folder with a config.json, such a file, or else a shape by name.
/// InputError where it is none of them.
ModelConfig find_model_config(const std::string& folder_file_or_name);

}  // namespace headrace::model
