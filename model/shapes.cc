#include "model/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "base/embedded_file.h"
#include "base/error.h"
#include "model/checkpoint.h"
#include "model/checkpoint_file.h"

namespace headrace {
std::span<const EmbeddedFile> embedded_model_shapes();
}  // namespace headrace

namespace headrace::model {

namespace {

const EmbeddedFile* find_shape(const std::string& name) {
  const auto shapes = embedded_model_shapes();
  const auto found = std::find_if(shapes.begin(), shapes.end(),
                                  [&](const EmbeddedFile& shape) { return name == shape.stem(); });
  return found == shapes.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& shape : embedded_model_shapes()) {
    names.emplace_back(shape.stem());
  }
  return names;
}

ModelConfig shape_config(const std::string& name) {
  const EmbeddedFile* const shape = find_shape(name);
  if (shape == nullptr) {
    throw UsageError(fmt::format("there is no model shape \"{}\"; shapes are {}", name,
                                 fmt::join(shape_names(), ", ")));
  }
  return parse_model_config(std::string(shape->text),
                            fmt::format("configs/models/{}", shape->name));
}

ModelConfig find_model_config(const std::string& folder_file_or_name) {
  std::error_code error;
  if (std::filesystem::is_directory(folder_file_or_name, error)) {
    return load_model_config(folder_file_or_name);
  }
  if (std::filesystem::is_regular_file(folder_file_or_name, error)) {
    return parse_model_config(read_text_file(folder_file_or_name, kMiB), folder_file_or_name);
  }
  if (find_shape(folder_file_or_name) != nullptr) {
    return shape_config(folder_file_or_name);
  }
  throw InputError(
      fmt::format("--model {}: there is no such folder or file, and no model shape of that name; "
                  "shapes are {}",
                  folder_file_or_name, fmt::join(shape_names(), ", ")));
}

}  // namespace headrace::model
